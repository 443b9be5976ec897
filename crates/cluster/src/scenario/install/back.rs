//! kube-proxy comes back, and our tables go, by the commands of docs/migration-back.md.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{
    documents,
    kubectl::{self, patiently},
    node::Node,
    proxy,
    state::Cluster,
};

/// All steps for kubeadm's DaemonSet: one node first, then the others.
pub(super) fn node_by_node(cluster: &Cluster, old_image: &str) -> Result<()> {
    let first = cluster.first_worker()?;
    let words = [("THE-IMAGE-OF-BEFORE", old_image.trim()), ("worker-1", &first.name)];
    for command in commands(&words)?.iter().take_while(|command| !is_for_all_nodes(command)) {
        documents::run(command)?;
        if command.contains("delete pod") {
            wait_for_kube_proxy(first)?;
        }
        if command.contains("delete jobs") {
            expect_no_tables(first)?;
        }
    }
    remove_tables(cluster)
}

/// When kube-proxy has synced in both families on all nodes, our tables go.
pub(super) fn remove_tables(cluster: &Cluster) -> Result<()> {
    cluster.nodes.iter().try_for_each(wait_for_kube_proxy)?;
    let commands = commands(&[])?;
    let start = commands.iter().find(|command| is_for_all_nodes(command)).context("no Jobs for all nodes")?;
    documents::run(start)?;
    documents::run_all(commands.iter().filter(|command| command.contains("-l k8s-app=kube-ipvs-cleanup")))?;
    cluster.nodes.iter().try_for_each(expect_no_tables)
}

fn commands(words: &[(&str, &str)]) -> Result<Vec<String>> {
    documents::commands("migration-back.md", "The steps", words)
}

/// Whether this begins the Jobs that remove our tables on all nodes at once.
fn is_for_all_nodes(command: &str) -> bool {
    command.contains("manifests/cleanup") && command.contains("while read")
}

/// Waits until it has synced in both families.
pub(super) fn wait_for_kube_proxy(node: &Node) -> Result<()> {
    let has = "for save in iptables-save ip6tables-save; do $save -t nat | grep -q KUBE-POSTROUTING || exit 1; done";
    patiently(Duration::from_secs(120), || node.run(has).map(drop))
}

/// Fails if the node has tables of ours.
pub(super) fn expect_no_tables(node: &Node) -> Result<()> {
    let tables = node.run("nft list tables")?;
    ensure!(!tables.contains("kube-ipvs"), "{} still has our tables: {tables}", node.name);
    Ok(())
}

/// kubeadm's object of this kind for kube-proxy, to make it again.
pub(super) fn to_make_again(kind: &str) -> Result<Value> {
    let mut object = kubectl::json(&format!("--namespace=kube-system get {kind} kube-proxy"))?;
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
    kubectl::apply(&object.to_string())?;
    proxy::wait()?;
    remove_tables(cluster)
}
