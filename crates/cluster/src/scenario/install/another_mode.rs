//! On to kube-proxy in nftables or iptables mode, by the commands of docs/migration-on.md.
//!
//! The kube-proxy of the cluster has code for ipvs mode, and in nftables mode deletes all virtual servers when it
//! starts. So nodes are drained then, and what is proved is that clients of other nodes lose nothing;
//! tests/peer/way_out.rs has the rest.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::{TAG, UnderLoad, check_all, edit_configuration, kube_proxy_rules, prepare};
use crate::{
    documents,
    kubectl::patiently,
    node::Node,
    proxy::{self, Proxy},
    scenario::{clients::Clients, nodes},
    state::Cluster,
};

/// The page with the commands.
const PAGE: &str = "migration-on.md";

/// From kube-ipvs in kubeadm's DaemonSet, whose image was this before.
pub(super) fn go_on(cluster: &Cluster, under_load: &UnderLoad, to: Proxy, old_image: &str) -> Result<()> {
    let steps = Steps::read(to, old_image)?;
    documents::run_all(&steps.before)?;
    let moved = Cluster { proxy: to, ..cluster.clone() };
    if to == Proxy::KubeProxyIptables {
        under_load.during(cluster, || {
            cluster.nodes.iter().try_for_each(|node| steps.hand_over(node, Drained::No))
        })?;
    } else {
        // The clients meet the other nodes.
        let last = cluster.workers().last().context("a cluster without workers")?;
        let clients = Clients::start(cluster, &under_load.web, 0)?;
        nodes::leave_out(last)?;
        steps.hand_over(last, Drained::Yes)?;
        nodes::answers(&moved, &under_load.web, last)?;
        nodes::lead_to(last)?;
        clients.end()?.expect_all_answered()?;
        for node in cluster.nodes.iter().filter(|node| node.name != last.name) {
            steps.hand_over(node, Drained::Yes)?;
        }
    }
    documents::run_all(&steps.after)?;
    moved.save()?;
    cluster.nodes.iter().try_for_each(cut_what_is_left)
}

/// The commands of the section.
struct Steps {
    before: Vec<String>,
    /// For worker-1.
    of_a_node: Vec<String>,
    after: Vec<String>,
}

/// Whether a node is drained before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Drained {
    No,
    Yes,
}

impl Steps {
    fn read(to: Proxy, old_image: &str) -> Result<Self> {
        let words = [
            (" MODE/", &*format!(" {}/", to.mode())),
            ("THE-IMAGE-OF-KUBE-PROXY", old_image),
            // Pods of the test have no controller.
            ("--delete-emptydir-data", "--delete-emptydir-data --force"),
        ];
        let mut before = documents::commands(PAGE, "The steps", &words)?;
        let is_of_a_node = |command: &String| command.contains("worker-1");
        let first = before.iter().position(is_of_a_node).context("no commands for a node")?;
        let (of_a_node, after) = before.split_off(first).into_iter().partition(is_of_a_node);
        Ok(Self { before, of_a_node, after })
    }

    fn hand_over(&self, node: &Node, drained: Drained) -> Result<()> {
        let is_for_drained = |command: &&String| {
            command.starts_with("kubectl drain") || command.starts_with("kubectl uncordon")
        };
        let commands =
            self.of_a_node.iter().filter(|command| drained == Drained::Yes || !is_for_drained(command));
        let commands: Vec<_> = commands.map(|command| command.replace("worker-1", &node.name)).collect();
        documents::run_all(&commands)?;
        let left = node.run("ip -brief link show kube-ipvs0 2>/dev/null || true")?;
        ensure!(left.is_empty(), "{}: {left}", node.name);
        Ok(())
    }
}

/// Ends the wait for connections that never end, such as those to the API server; nothing of ours is left then.
fn cut_what_is_left(node: &Node) -> Result<()> {
    let commands = documents::commands(PAGE, "While the Job waits", &[("worker-1", &node.name)])?;
    let cut = commands.first().context("no command")?;
    documents::run(cut)?;
    let job = format!("job/ipvs-cleanup-{}", node.name);
    let complete = format!("kubectl -n kube-system wait --for=condition=Complete {job} --timeout=120s");
    documents::run(&complete)?;
    let look = "nft list tables | grep kube-ipvs; ip route show table local proto 73; ipvsadm -Sn 2>/dev/null || true";
    patiently(Duration::from_secs(10), || {
        let left = node.run(look)?;
        ensure!(left.is_empty(), "{}: {left}", node.name);
        Ok(())
    })?;
    documents::run(&format!("kubectl -n kube-system delete {job}")).map(drop)
}

/// From kube-proxy in another mode, and on to it again, in the order of docs/migration.md and docs/migration-on.md.
///
/// From nftables or iptables mode, without a restart of kube-proxy in between, and then node by node to the same mode.
pub(crate) fn there_and_back(cluster: &Cluster) -> Result<()> {
    for node in &cluster.nodes {
        ensure!(!kube_proxy_rules(node)?.is_empty(), "{} has no rules of kube-proxy", node.name);
    }
    let old_image = proxy::image()?;
    let under_load = prepare(cluster)?;
    under_load.during(cluster, || {
        edit_configuration(&format!("mode: {}", cluster.proxy.mode()), "mode: ipvs")?;
        proxy::change_image()?;
        check_all(cluster, "kube-proxy", TAG)
    })?;
    let changed = Cluster { proxy: Proxy::KubeIpvs, ..cluster.clone() };
    changed.save()?;
    go_on(&changed, &under_load, cluster.proxy, old_image.trim())
}
