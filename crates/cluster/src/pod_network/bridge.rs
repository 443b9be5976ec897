//! The CNI plugins bridge and host-local, and routes between the nodes.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::{
    kubectl::{self, patiently},
    network,
    node::Node,
    state::Cluster,
};

/// Gives each node its plugins and its routes.
pub(super) fn connect(cluster: &Cluster) -> Result<()> {
    let subnets: Vec<Vec<String>> = cluster.nodes.iter().map(pod_subnets).collect::<Result<_>>()?;
    for (node, own) in cluster.nodes.iter().zip(&subnets) {
        for subnet in own {
            network::route(subnet, node)?;
        }
        let others = cluster.nodes.iter().zip(&subnets).filter(|(other, _)| *other != node);
        let routes: String = others.flat_map(|(other, subnets)| routes(other, subnets)).collect();
        // An addition to what systemd-network-generator(8) has made of the kernel's command line.
        node.write(cluster, "/etc/systemd/network/70-vec0.network.d/pods.conf", &routes)?;
        node.write(cluster, "/etc/cni/net.d/10-bridge.conflist", &plugins(own).to_string())?;
        node.run(cluster, "networkctl reload")?;
    }
    Ok(())
}

/// The subnets that the controller manager has given to a node.
fn pod_subnets(node: &Node) -> Result<Vec<String>> {
    patiently(Duration::from_secs(60), || {
        let object = kubectl::json(&["get", "node", &node.name])?;
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
