//! The network of the pods.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use guest::{
    files,
    go::{FLANNEL, FLANNEL_NAME},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    kubectl::{self, patiently},
    network,
    node::Node,
    state::{self, Cluster},
};

/// What connects the pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PodNetwork {
    /// The CNI plugins bridge and host-local, and routes between the nodes
    Bridge,
    /// Flannel, with VXLAN
    Flannel,
}

/// Connects the pods of all nodes. Afterwards a node gets ready.
pub(crate) fn connect(cluster: &Cluster) -> Result<()> {
    match cluster.pod_network {
        PodNetwork::Bridge => connect_by_bridge(cluster),
        PodNetwork::Flannel => start_flannel(),
    }
}

/// The CNI plugins bridge and host-local, and routes between the nodes.
///
/// Gives each node its plugins and its routes.
fn connect_by_bridge(cluster: &Cluster) -> Result<()> {
    let subnets: Vec<Vec<String>> = cluster.nodes.iter().map(pod_subnets).collect::<Result<_>>()?;
    for (node, own) in cluster.nodes.iter().zip(&subnets) {
        for subnet in own {
            network::route(subnet, node)?;
        }
        let others = cluster.nodes.iter().zip(&subnets).filter(|(other, _)| *other != node);
        let routes: String = others.flat_map(|(other, subnets)| routes(other, subnets)).collect();
        // An addition to what systemd-network-generator(8) has made of the kernel's command line.
        node.write("/etc/systemd/network/70-vec0.network.d/pods.conf", &routes)?;
        node.write("/etc/cni/net.d/10-bridge.conflist", &plugins(own).to_string())?;
        node.run("networkctl reload")?;
    }
    Ok(())
}

/// The subnets that the controller manager has given to a node.
fn pod_subnets(node: &Node) -> Result<Vec<String>> {
    patiently(Duration::from_secs(60), || {
        let object = kubectl::json(&format!("get node {}", node.name))?;
        let subnets =
            object.pointer("/spec/podCIDRs").and_then(Value::as_array).context("no podCIDRs yet")?;
        let subnets: Vec<String> = subnets.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        ensure!(subnets.len() == 2, "{} has the pod subnets {subnets:?}", node.name);
        Ok(subnets)
    })
}

/// What leads to a node's pods, as networkd has it.
fn routes<'a>(node: &'a Node, subnets: &'a [String]) -> impl Iterator<Item = String> {
    subnets
        .iter()
        .map(|subnet| format!("[Route]\nDestination={subnet}\nGateway={}\n", node.address_for(subnet)))
}

fn plugins(subnets: &[String]) -> Value {
    let ranges: Vec<Value> = subnets.iter().map(|subnet| json!([{"subnet": subnet}])).collect();
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": true,
                "isDefaultGateway": true,
                "hairpinMode": true,
                "ipam": {"type": "host-local", "ranges": ranges},
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

/// What is different from the manifest: both families, and the newest version of CNI that its plugin of before 1.0
/// knows.
const CHANGES: [(&str, &str); 2] = [
    (
        r#""Network": "10.244.0.0/16","#,
        r#""Network": "10.244.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:10:244::/56","#,
    ),
    (r#""cniVersion": "1.0.0""#, r#""cniVersion": "0.4.0""#),
];

/// Flannel, with VXLAN, by its own manifest.
///
/// Starts it on every node. A node that joins later gets it too.
fn start_flannel() -> Result<()> {
    let mut text = flannel_manifest()?;
    for (from, to) in CHANGES {
        ensure!(text.contains(from), "Flannel's manifest has no {from}");
        text = text.replace(from, to);
    }
    let path = state::directory().join("kube-flannel.yml");
    files::write(&path, text)?;
    kubectl::output_of(&["apply", "--filename", &path.to_string_lossy()])?;
    kubectl::wait_for_rollout("kube-flannel", "daemonset/kube-flannel-ds")
}

/// As its users get it.
pub(crate) fn flannel_manifest() -> Result<String> {
    files::read(&FLANNEL.sources_of(FLANNEL_NAME)?.join("Documentation/kube-flannel.yml"))
}
