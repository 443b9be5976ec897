//! Service accounts with the rights in manifests/base/rbac.yaml, or with fewer.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::ensure;
use k8s_openapi::api::{
    authentication::v1::TokenRequest,
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
    core::v1::ServiceAccount,
};
use kube::{Api, api::PostParams};
use serde_json::{Value, json};
use testkit::{control_plane::ControlPlane, daemon::eventually};

const NAMESPACE: &str = "kube-system";

/// One thing that a role allows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Right {
    group: String,
    pub(crate) resource: String,
    pub(crate) verb: String,
}

impl Right {
    /// As the API server complains when it is missing.
    pub(crate) fn refusal(&self) -> String {
        format!("cannot {} resource \"{}\" in API group \"{}\"", self.verb, self.resource, self.group)
    }
}

/// What the role in the manifest allows.
pub(crate) fn role() -> Vec<Right> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/base/rbac.yaml");
    let objects: Vec<Value> = serde_saphyr::from_multiple(&fs::read_to_string(path).unwrap()).unwrap();
    let role = objects.iter().find(|object| object["kind"] == "ClusterRole").unwrap();
    let words = |list: &Value| -> Vec<String> { serde_json::from_value(list.clone()).unwrap() };
    let mut rights = Vec::new();
    for rule in role["rules"].as_array().unwrap() {
        for group in words(&rule["apiGroups"]) {
            for resource in words(&rule["resources"]) {
                rights.extend(words(&rule["verbs"]).into_iter().map(|verb| Right {
                    group: group.clone(),
                    resource: resource.clone(),
                    verb,
                }));
            }
        }
    }
    rights
}

/// Makes a service account with these rights, and waits until the API server goes by them.
pub(crate) fn account(server: &ControlPlane, name: &str, rights: &[Right]) {
    let group = "rbac.authorization.k8s.io";
    let metadata = json!({"name": name, "namespace": NAMESPACE});
    let rule = |right: &Right| json!({"apiGroups": [right.group], "resources": [right.resource], "verbs": [right.verb]});
    let rules: Vec<_> = rights.iter().map(rule).collect();
    for object in [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}),
        json!({
            "apiVersion": format!("{group}/v1"), "kind": "ClusterRole",
            "metadata": {"name": name}, "rules": rules,
        }),
        json!({
            "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}],
        }),
    ] {
        server.apply(&object).unwrap();
    }
    for right in rights {
        eventually("the right is known", || {
            ensure!(may(server, name, right)?, "{name} has not {right:?}");
            Ok(())
        })
        .unwrap();
    }
}

fn may(server: &ControlPlane, name: &str, right: &Right) -> anyhow::Result<bool> {
    let reviews: Api<SubjectAccessReview> = Api::all(server.admin_client());
    let asked = ResourceAttributes {
        group: Some(right.group.clone()),
        resource: Some(right.resource.clone()),
        verb: Some(right.verb.clone()),
        ..ResourceAttributes::default()
    };
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(format!("system:serviceaccount:{NAMESPACE}:{name}")),
            resource_attributes: Some(asked),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let answer = server.block_on(reviews.create(&PostParams::default(), &review))?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// A kubeconfig of the account in `directory`, with a token as a pod gets it.
pub(crate) fn kubeconfig(server: &ControlPlane, account: &str, directory: &Path) -> PathBuf {
    let accounts: Api<ServiceAccount> = Api::namespaced(server.admin_client(), NAMESPACE);
    let (params, request) = (PostParams::default(), TokenRequest::default());
    let asked = accounts.create_token_request(account, &params, &request);
    let token = server.block_on(asked).unwrap().status.unwrap().token;
    let text = fs::read_to_string(server.proxy_kubeconfig()).unwrap();
    let mut kubeconfig: Value = serde_json::from_str(&text).unwrap();
    kubeconfig["users"][0]["user"] = json!({"token": token});
    let path = directory.join(account);
    fs::write(&path, kubeconfig.to_string()).unwrap();
    path
}
