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
pub(super) fn remove_tables(cluster: &Cluster, cleanup: &[String]) -> Result<()> {
    for node in &cluster.nodes {
        patiently(Duration::from_secs(120), || {
            let has = "for save in iptables-save ip6tables-save; do $save -t nat | grep -q KUBE-POSTROUTING || exit 1; done";
            node.run(cluster, has).map(drop)
        })?;
        for command in cleanup {
            if command.contains("logs") {
                let wait = [
                    "--namespace=kube-system",
                    "wait",
                    "--for=condition=Complete",
                    "job",
                    "--selector=k8s-app=kube-ipvs-cleanup",
                    "--timeout=120s",
                ];
                kubectl::output(cluster, &wait)?;
            }
            documents::run(
                &workspace::root(),
                command,
                &[("s/NODE/worker-1/", &format!("s/NODE/{}/", node.name))],
            )?;
        }
        let tables = node.run(cluster, "nft list tables")?;
        ensure!(!tables.contains("kube-ipvs"), "{} still has our tables: {tables}", node.name);
    }
    Ok(())
}

/// kubeadm's DaemonSet, to make it again.
pub(super) fn kube_proxy_daemon_set(cluster: &Cluster) -> Result<Value> {
    let mut object = kubectl::json(cluster, &["--namespace=kube-system", "get", "daemonset", "kube-proxy"])?;
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
    kubectl::apply(cluster, std::slice::from_ref(object))?;
    proxy::wait(cluster)?;
    let commands = documents::commands("migration.md", "Back to kube-proxy")?;
    remove_tables(cluster, commands.get(1..).unwrap_or_default())
}
