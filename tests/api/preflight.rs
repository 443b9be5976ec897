//! `kubectl ipvs preflight` with the real kubectl, at a real kube-apiserver. No kubelet runs its Jobs.

use std::{os::unix::fs::symlink, process::Command};

use serde_json::json;
use testkit::{control_plane::ControlPlane, daemon::eventually};

use crate::support::operator::Clients;

/// The kinds of what it makes.
const KINDS: &str = "jobs,serviceaccounts,clusterroles,clusterrolebindings";

#[test]
#[ignore = "needs kube-apiserver and kubectl: cargo xtask test --tier api"]
fn an_api_server_takes_the_plugin_s_jobs_and_has_none_of_them_afterwards() {
    let Some(clients) = Clients::from_env_or_skip() else { return };
    let Some(server) = ControlPlane::from_env_or_skip().unwrap() else { return };
    let plugins = tempfile::tempdir().unwrap();
    symlink(env!("CARGO_BIN_EXE_kube-ipvs"), plugins.path().join("kubectl-ipvs")).unwrap();
    let kubectl = |script: &str| {
        let mut shell = Command::new("bash");
        let script = format!("PATH=$PATH:{}; {script}", plugins.path().display());
        shell.args(["-o", "pipefail", "-c", &script]).env("KUBECONFIG", server.admin_kubeconfig());
        clients.run(&mut shell, "")
    };
    eventually("there is the namespace kube-system", || kubectl("kubectl get namespace kube-system"))
        .unwrap();
    let node = "ip-255-255-255-255.ap-southeast-1.compute.internal";
    let labels = json!({ "kubernetes.io/os": "linux", "preflight": "here" });
    let object =
        json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": node, "labels": labels } });
    server.apply(&object).unwrap();

    let preflight = "kubectl ipvs preflight --image=registry.test/kube-ipvs:1 --timeout=10 -l preflight=here";
    let made = format!("kubectl get {KINDS} -A -l k8s-app=kube-ipvs-preflight -o name");
    let wait = format!("while kill -0 $! && ! {made} | grep job.batch > /dev/null; do sleep 0.2; done");
    let during = format!("{preflight} & {wait}; {made}; wait $! || test $? = 1; echo then; {made}");
    let said = kubectl(&during).unwrap();
    let (during, after) = said.split_once("then\n").unwrap();
    assert!(during.contains("job.batch/preflight-"), "{said}");
    for kind in [
        "serviceaccount",
        "clusterrole.rbac.authorization.k8s.io",
        "clusterrolebinding.rbac.authorization.k8s.io",
    ] {
        assert!(during.contains(&format!("{kind}/kube-ipvs-preflight\n")), "{said}");
    }
    let row = during.lines().find(|line| line.starts_with(node)).unwrap_or_default();
    assert!(row.contains("no answer: timed out after 10 s: its Job preflight-"), "{said}");
    assert_eq!(after, "", "{said}");
    server.delete_node(node).unwrap();
}
