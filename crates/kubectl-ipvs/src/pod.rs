//! The proxies' pods, as kubectl lists them.

use serde::Deserialize;

/// A pod of the proxy.
#[derive(Debug)]
pub(super) struct Pod {
    /// Its node; empty before it has one.
    pub(super) node: String,
    pub(super) name: String,
    /// The container with the daemon.
    pub(super) container: String,
    /// The phase; only in a `Running` pod a command can run.
    pub(super) phase: String,
}

impl Pod {
    /// The labels of the proxies' pods: of our manifests, and of kubeadm's.
    pub(super) const LABELS: &str = "k8s-app in (kube-ipvs, kube-proxy)";

    /// Reads what `kubectl get pods -o json` prints.
    pub(super) fn list(json: &[u8]) -> serde_json::Result<Vec<Self>> {
        let List { items } = serde_json::from_slice(json)?;
        Ok(items.into_iter().map(Self::from).collect())
    }

    /// Whether a command can run in it.
    pub(super) fn runs(&self) -> bool {
        self.phase == "Running"
    }
}

/// The names of the daemon's container. Another one may have been added to the pod.
const CONTAINERS: [&str; 2] = ["kube-ipvs", "kube-proxy"];

impl From<Item> for Pod {
    fn from(Item { metadata, spec, status }: Item) -> Self {
        let names = || spec.containers.iter().map(|container| &container.name);
        let container = names().find(|name| CONTAINERS.contains(&name.as_str())).or_else(|| names().next());
        Self {
            container: container.cloned().unwrap_or_default(),
            node: spec.node_name,
            name: metadata.name,
            phase: status.phase,
        }
    }
}

#[derive(Deserialize)]
struct List {
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    metadata: Metadata,
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
}

#[derive(Deserialize)]
struct Spec {
    #[serde(rename = "nodeName", default)]
    node_name: String,
    containers: Vec<Container>,
}

#[derive(Deserialize)]
struct Container {
    name: String,
}

#[derive(Default, Deserialize)]
struct Status {
    #[serde(default)]
    phase: String,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn item(name: &str, node: &Value, containers: &[&str]) -> Value {
        let containers: Vec<_> =
            containers.iter().map(|name| json!({ "name": name, "image": "i" })).collect();
        json!({
            "metadata": { "name": name, "labels": {} },
            "spec": { "nodeName": node, "containers": containers },
            "status": { "phase": "Running" },
        })
    }

    #[test]
    fn the_container_with_the_daemon_is_found_beside_others() {
        let items = [
            item("kube-ipvs-a", &json!("a"), &["kube-ipvs"]),
            item("kube-proxy-b", &json!("b"), &["sidecar", "kube-proxy"]),
            item("renamed-c", &json!("c"), &["proxy", "sidecar"]),
        ];
        let pods = Pod::list(json!({ "kind": "List", "items": items }).to_string().as_bytes()).unwrap();
        let found: Vec<_> = pods.iter().map(|pod| [&pod.node[..], &pod.name, &pod.container]).collect();
        let expected = [
            ["a", "kube-ipvs-a", "kube-ipvs"],
            ["b", "kube-proxy-b", "kube-proxy"],
            ["c", "renamed-c", "proxy"],
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_pod_that_waits_for_its_node_is_a_pod() {
        let waits = json!({ "metadata": { "name": "p" }, "spec": { "containers": [] }, "status": { "phase": "Pending" } });
        let pods = Pod::list(json!({ "items": [waits] }).to_string().as_bytes()).unwrap();
        assert_eq!((pods[0].node.as_str(), pods[0].runs()), ("", false));
    }
}
