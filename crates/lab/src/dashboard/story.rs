//! What goes wrong, and when.

use anyhow::Result;
use serde_json::json;

use super::cluster::{CAMPAIGN, Cluster, Node, OFFERS, RIVAL};
use crate::stage;

/// Something that happens.
pub(super) type Scene = fn(&Cluster) -> Result<()>;

/// All that happens, each at this percentage of the time.
pub(super) const STORY: [(u32, Scene); 27] = [
    (8, |cluster| cluster.a.run("ipvsadm -C")),
    (14, |cluster| cluster.add(&CAMPAIGN)),
    // A program that is at it again and again: there is advice about that.
    (18, attack),
    (20, attack),
    (22, attack),
    (24, attack),
    (26, attack),
    (28, attack),
    (30, attack),
    (32, attack),
    (34, attack),
    (40, |cluster| signal(&cluster.b, "-STOP")),
    (45, |cluster| signal(&cluster.b, "-CONT")),
    // The kernel refuses addresses of IPv6 then: it asks for 1280 bytes.
    (48, |cluster| cluster.a.run("ip link set kube-ipvs0 mtu 1000")),
    (53, |cluster| cluster.a.run("ip link set kube-ipvs0 mtu 1500")),
    (55, |cluster| cluster.add(&RIVAL)),
    (58, |cluster| stage::cut_off(&cluster.b.lab, &cluster.server)),
    (69, |cluster| stage::reconnect(&cluster.b.lab)),
    (70, |cluster| cluster.remove(&RIVAL)),
    (73, |cluster| leave(cluster, &cluster.a, true)),
    (80, |cluster| leave(cluster, &cluster.a, false)),
    (82, |cluster| cluster.a.run("sysctl -qw net.ipv4.vs.expire_quiescent_template=0")),
    (85, |cluster| cluster.b.run("nft delete table ip kube-ipvs")),
    (88, |cluster| cluster.remove(&CAMPAIGN)),
    (91, |cluster| cluster.a.run("ip link delete kube-ipvs0")),
    (93, |cluster| cluster.a.run("sysctl -qw net.ipv4.vs.expire_quiescent_template=1")),
    (95, |cluster| cluster.a.run("ipvsadm -C")),
];

fn attack(cluster: &Cluster) -> Result<()> {
    let deleted = cluster.b.run(&format!("ipvsadm -D -t {}", OFFERS.address()));
    // The last one may not have been repaired yet.
    deleted.or_else(|error| if error.to_string().contains("No such service") { Ok(()) } else { Err(error) })
}

fn signal(node: &Node, name: &str) -> Result<()> {
    node.run(&format!("kill {name} {}", node.daemon.id()))
}

/// Marks a node as the cluster's autoscaler does before it takes the node away.
fn leave(cluster: &Cluster, node: &Node, leaves: bool) -> Result<()> {
    let taint = json!({"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"});
    let taints: Vec<_> = leaves.then_some(taint).into_iter().collect();
    let spec = json!({"taints": taints});
    let metadata = json!({"name": node.name});
    cluster.server.apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec}))
}
