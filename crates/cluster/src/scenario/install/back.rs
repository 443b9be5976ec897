//! kube-proxy comes back, and our tables go.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use guest::workspace;
use serde_json::Value;

use crate::documents;
use crate::kubectl::{self, patiently};
use crate::proxy;
use crate::state::Cluster;

/// Step 2 and 3: when kube-proxy has synced in both families, our tables go.
pub(super) fn remove_tables(cluster: &Cluster) -> Result<()> {
    for node in &cluster.nodes {
        let words = [("s/NODE/worker-1/", &*format!("s/NODE/{}/", node.name))];
        let commands = documents::commands("migration.md", "Back to kube-proxy", &words)?;
        patiently(Duration::from_secs(120), || {
            let has = "for save in iptables-save ip6tables-save; do $save -t nat | grep -q KUBE-POSTROUTING || exit 1; done";
            node.run(cluster, has).map(drop)
        })?;
        // The first is for the image.
        for command in commands.iter().skip(1) {
            if command.contains("logs") {
                let wait = [
                    "--namespace=kube-system",
                    "wait",
                    "--for=condition=Complete",
                    "job",
                    "--selector=k8s-app=kube-ipvs-cleanup",
                    "--timeout=120s",
                ];
                kubectl::output(&wait)?;
            }
            documents::run(&workspace::root(), command)?;
        }
        let tables = node.run(cluster, "nft list tables")?;
        ensure!(!tables.contains("kube-ipvs"), "{} still has our tables: {tables}", node.name);
    }
    Ok(())
}

/// kubeadm's DaemonSet, to make it again.
pub(super) fn kube_proxy_daemon_set() -> Result<Value> {
    let mut object = kubectl::json(&["--namespace=kube-system", "get", "daemonset", "kube-proxy"])?;
    let root = object.as_object_mut().context("no object")?;
    root.remove("status");
    let metadata = root.get_mut("metadata").and_then(Value::as_object_mut).context("no metadata")?;
    for given in ["uid", "resourceVersion", "creationTimestamp", "generation"] {
        metadata.remove(given);
    }
    Ok(object)
}

/// As a distribution brings it back.
pub(super) fn kube_proxy_returns(cluster: &Cluster, object: &Value) -> Result<()> {
    kubectl::apply(std::slice::from_ref(object))?;
    proxy::wait()?;
    remove_tables(cluster)
}
