//! On to kube-proxy in nftables or iptables mode, by the commands of docs/migration.md.
//!
//! The kube-proxy of the cluster has code for ipvs mode, and deletes all virtual servers when it starts. So nodes are
//! drained, and what is proved is that nobody elsewhere notices; tests/peer/way_out.rs has the rest.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use guest::workspace;

use super::UnderLoad;
use crate::documents;
use crate::kubectl::patiently;
use crate::node::Node;
use crate::proxy::Proxy;
use crate::scenario::{clients::Clients, nodes};
use crate::state::Cluster;

/// From kube-ipvs in kubeadm's DaemonSet, whose image was this before.
pub(super) fn go_on(cluster: &Cluster, under_load: &UnderLoad<'_>, to: Proxy, old_image: &str) -> Result<()> {
    let last = cluster.workers().last().context("a cluster without workers")?;
    // Pods of the test have no controller.
    let drain = ("--delete-emptydir-data", "--delete-emptydir-data --force");
    let commands = commands(&[("MODE", to.mode()), ("THE-IMAGE-OF-BEFORE", old_image), drain])?;
    let of_a_node = |command: &&String| command.contains("worker-1");
    let first = commands.iter().position(|command| of_a_node(&command)).context("no commands for a node")?;
    let (before, rest) = commands.split_at(first);
    let (of_a_node, after): (Vec<&String>, Vec<&String>) = rest.iter().partition(of_a_node);
    for command in before {
        documents::run(&workspace::root(), command)?;
    }

    // The clients meet the other nodes.
    let clients = Clients::start(cluster, &under_load.web, 0)?;
    nodes::leave_out(last)?;
    hand_over(cluster, last, &of_a_node)?;
    let moved = Cluster { proxy: to, ..cluster.clone() };
    nodes::answers(&moved, &under_load.web, last)?;
    nodes::lead_to(last)?;
    clients.end()?.expect_all_answered()?;

    for node in cluster.nodes.iter().filter(|node| node.name != last.name) {
        hand_over(cluster, node, &of_a_node)?;
    }
    for command in after {
        documents::run(&workspace::root(), command)?;
    }
    moved.save()?;
    cluster.nodes.iter().try_for_each(|node| cut_what_is_left(cluster, node))
}

fn commands(words: &[(&str, &str)]) -> Result<Vec<String>> {
    documents::commands("migration.md", "On to kube-proxy in nftables or iptables mode", words)
}

fn hand_over(cluster: &Cluster, node: &Node, commands: &[&String]) -> Result<()> {
    for command in commands {
        documents::run(&workspace::root(), &command.replace("worker-1", &node.name))?;
    }
    let left = node.run(cluster, "ip -brief link show kube-ipvs0 2>/dev/null || true")?;
    ensure!(left.is_empty(), "{}: {left}", node.name);
    Ok(())
}

/// Ends the wait for connections that never end, such as those to the API server; nothing of ours is left then.
fn cut_what_is_left(cluster: &Cluster, node: &Node) -> Result<()> {
    let kubectl = "kubectl -n kube-system";
    let job = format!("ipvs-cleanup-{}", node.name);
    let now = "s/--keep-ipvs/--hand-over\\n        - --wait=0s/";
    for command in [
        format!("{kubectl} delete job {job}"),
        format!(
            "kubectl kustomize manifests/cleanup | sed 's/NODE/{}/; {now}' | kubectl apply -f -",
            node.name
        ),
        format!("{kubectl} wait --for=condition=Complete job/{job} --timeout=120s"),
        format!("{kubectl} delete job {job}"),
    ] {
        documents::run(&workspace::root(), &command)?;
    }
    let look = "nft list tables | grep kube-ipvs; ip route show table local proto 73; ipvsadm -Sn 2>/dev/null || true";
    patiently(Duration::from_secs(10), || {
        let left = node.run(cluster, look)?;
        ensure!(left.is_empty(), "{}: {left}", node.name);
        Ok(())
    })
}
