//! The token of a service account, which the kubelet renews in its file, with a real kube-apiserver.

use std::{fs, io::Read as _, path::Path, time::Duration};

use anyhow::{Context, ensure};
use flate2::read::GzDecoder;
use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
    core::v1::{Secret, Service, ServiceAccount},
};
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use serde_json::{Value, json};
use testkit::{
    control_plane::ControlPlane,
    daemon::{Daemon, binary, eventually, eventually_within},
};

use super::{lab, register};

const NAMESPACE: &str = "kube-system";
const ACCOUNT: &str = "renewed";

/// The file is read again within a minute, as by client-go; half a minute at most is between two attempts to watch, and
/// this server has no EndpointSlices, which it must say twice.
const RENEWED_WITHIN: Duration = Duration::from_secs(60 + 2 * 30);
/// For a machine that has other work too.
const PATIENCE: Duration = Duration::from_secs(60);

/// The account, with the role that kube-proxy has.
fn create_account(server: &ControlPlane) {
    let metadata = json!({"name": ACCOUNT, "namespace": NAMESPACE});
    server.apply(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})).unwrap();
    let group = "rbac.authorization.k8s.io";
    server
        .apply(&json!({
            "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": ACCOUNT},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "system:node-proxier"},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}],
        }))
        .unwrap();
}

/// A token that is good as long as this Secret, which is made for it, exists. A pod's token is bound to its pod.
fn token(server: &ControlPlane, secret: &str) -> String {
    let metadata = json!({"name": secret, "namespace": NAMESPACE});
    server.apply(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})).unwrap();
    let bound_object_ref = Some(BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Secret".to_owned()),
        name: Some(secret.to_owned()),
        uid: None,
    });
    let request = TokenRequest {
        spec: TokenRequestSpec { bound_object_ref, ..TokenRequestSpec::default() },
        ..TokenRequest::default()
    };
    let accounts: Api<ServiceAccount> = Api::namespaced(server.admin_client(), NAMESPACE);
    let parameters = PostParams::default();
    let asked = accounts.create_token_request(ACCOUNT, &parameters, &request);
    server.block_on(asked).unwrap().status.unwrap().token
}

/// The proxy's kubeconfig, but with the token in this file.
fn kubeconfig(server: &ControlPlane, token_file: &Path) -> Value {
    let text = fs::read_to_string(server.proxy_kubeconfig()).unwrap();
    let mut kubeconfig: Value = serde_json::from_str(&text).unwrap();
    kubeconfig["users"][0]["user"] = json!({"tokenFile": token_file});
    kubeconfig
}

#[test]
#[ignore = "needs root, ip_vs and kube-apiserver: cargo xtask test --tier api"]
fn renewed_token_replaces_an_invalid_one_without_a_restart() {
    let Some(server) = ControlPlane::from_env_or_skip().unwrap() else { return };
    let files = tempfile::tempdir().unwrap();
    let path = |name: &str| files.path().join(name);
    create_account(&server);
    fs::write(path("token"), token(&server, "first")).unwrap();
    fs::write(path("kubeconfig"), kubeconfig(&server, &path("token")).to_string()).unwrap();

    // The first token is good, then it is not: the pod that it was made for is gone.
    let services: Api<Service> = Api::all(server.client_for(&path("kubeconfig")).unwrap());
    let list = || server.block_on(services.list(&ListParams::default().limit(1)));
    list().unwrap();
    server.delete::<Secret>(NAMESPACE, "first").unwrap();
    eventually("the API server refuses the token", || {
        let refused = list().err().map(|error| error.to_string());
        ensure!(refused.as_ref().is_some_and(|error| error.contains("Unauthorized")), "{refused:?}");
        Ok(())
    })
    .unwrap();

    let lab = lab(0, &server);
    register(&lab, &server, "node", None);
    let kubeconfig = path("kubeconfig");
    let daemon = Daemon::start(&lab.node, &["--kubeconfig", &kubeconfig.to_string_lossy()]).unwrap();
    eventually("status tells what the API server says", || {
        let status = daemon.ask(&lab.node, "status")?;
        ensure!(status.contains("Unauthorized") && status.contains("nodes NOT watched for "), "{status}");
        Ok(())
    })
    .unwrap();

    let renewed = token(&server, "second");
    fs::write(path("token"), &renewed).unwrap();
    eventually_within(RENEWED_WITHIN + PATIENCE, "the Services are known", || {
        let status = daemon.ask(&lab.node, "status")?;
        ensure!(status.contains("synced:          yes"), "{status}");
        Ok(())
    })
    .unwrap();
    let status = eventually_within(PATIENCE, "everything is watched", || {
        let status = daemon.status(&lab.node)?;
        let watches = status["daemon"]["source"]["watches"].as_array().context("watches")?;
        ensure!(watches.iter().all(|watch| watch["state"] == "watching"), "{status:#}");
        Ok(status)
    })
    .unwrap();
    let watches = status["daemon"]["source"]["watches"].as_array().unwrap();
    let resources: Vec<_> = watches.iter().map(|watch| watch["resource"].as_str().unwrap()).collect();
    assert_eq!(resources, ["endpointslices", "nodes", "services"]);
    let past = watches[1]["last_failure"]["cause"].as_str().unwrap();
    assert!(past.contains("Unauthorized"), "what went wrong is not forgotten: {status:#}");
    assert_eq!(daemon.log().matches("kube-ipvs starts").count(), 1, "{}", daemon.log());

    let mut report = lab.node.command(&binary().unwrap().to_string_lossy());
    report.args(["bugreport", "-", "--control-socket"]).arg(daemon.socket());
    let mut unpacked = Vec::new();
    GzDecoder::new(&report.output().unwrap().stdout[..]).read_to_end(&mut unpacked).unwrap();
    let has = |text: &str| unpacked.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(has(&kubeconfig.display().to_string()), "a bug report says which kubeconfig is used");
    assert!(!has(&renewed), "and has nothing of it");
    server.delete_node("node").unwrap();
}
