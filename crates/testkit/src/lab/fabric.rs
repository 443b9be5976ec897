//! A cluster of several nodes behind a router.

use std::{net::IpAddr, sync::atomic::Ordering};

use anyhow::{Context as _, Result};

use super::{FORWARD_V4, FORWARD_V6, Host, LABS, pod};

/// Ports count too where a route has several ways.
const BY_PORTS_V4: &str = "net.ipv4.fib_multipath_hash_policy=1";
const BY_PORTS_V6: &str = "net.ipv6.fib_multipath_hash_policy=1";

/// Nodes with pods on them, and a client outside, each on a network of its own:
///
/// ```text
///  client ──── router ─┬─ node-1 ──── pod-1
///  192.168.50.2        ├─ node-2 ──── pod-2
///                      └─ node-3 …
/// ```
#[derive(Debug)]
pub struct Fabric {
    /// The client.
    pub client: Host,
    /// The router between all of them.
    pub router: Host,
    /// The nodes.
    pub nodes: Vec<Host>,
    /// The pods, each with the index of its node.
    pub pods: Vec<(usize, Host)>,
}

impl Fabric {
    /// Makes a node for each number, with that many pods, each answering on `port`.
    pub fn new(pods: &[u8], port: u16) -> Result<Self> {
        let lab = LABS.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("ki{}-{lab}", std::process::id());
        let router = Host::new(&prefix, "router", [192, 168, 60, 254], "fd00:60::fe")?;
        let client = Host::new(&prefix, "client", [192, 168, 50, 2], "fd00:50::2")?;
        router.run("sysctl", &["-qw", FORWARD_V4, FORWARD_V6, BY_PORTS_V4, BY_PORTS_V6])?;
        router.link("client", &client)?;
        let mut fabric = Self { client, router, nodes: Vec::new(), pods: Vec::new() };
        for (index, count) in pods.iter().enumerate() {
            let number = u8::try_from(index)? + 1;
            let node = format!("node-{number}");
            let node =
                Host::new(&prefix, &node, [192, 168, 60 + number, 2], &format!("fd00:60:0:{number}::2"))?;
            fabric.router.link(&format!("node-{number}"), &node)?;
            node.run("sysctl", &["-qw", FORWARD_V4, FORWARD_V6])?;
            for _ in 0..*count {
                let number = u8::try_from(fabric.pods.len())? + 1;
                let pod = pod(&prefix, &node, number, number, port)?;
                fabric.router.ip(&format!(
                    "route add {}/32 via {}
                     route add {}/128 via {}",
                    pod.ipv4, node.ipv4, pod.ipv6, node.ipv6
                ))?;
                fabric.pods.push((index, pod));
            }
            fabric.nodes.push(node);
        }
        Ok(fabric)
    }

    /// Sets the MTU of the client's link, and of all links of nodes and pods.
    pub fn set_mtu(&self, of_client: u32, of_cluster: u32) -> Result<()> {
        self.router.ip(&format!("link set client mtu {of_client}"))?;
        self.client.ip(&format!("link set eth0 mtu {of_client}"))?;
        for node in &self.nodes {
            self.router.ip(&format!("link set {} mtu {of_cluster}", node.name))?;
            node.ip(&format!("link set eth0 mtu {of_cluster}"))?;
        }
        for (number, (node, pod)) in (1..).zip(&self.pods) {
            if let Some(node) = self.nodes.get(*node) {
                node.ip(&format!("link set veth{number} mtu {of_cluster}"))?;
            }
            pod.ip(&format!("link set eth0 mtu {of_cluster}"))?;
        }
        Ok(())
    }

    /// Leads packets to an address by the node with this index, and no other.
    pub fn enter_by(&self, address: IpAddr, node: usize) -> Result<()> {
        self.enter_by_any(address, &[node])
    }

    /// Leads packets to an address by these nodes: each of a connection by one of them, as addresses and ports have it
    /// (ECMP).
    pub fn enter_by_any(&self, address: IpAddr, nodes: &[usize]) -> Result<()> {
        let hop = |node: &usize| {
            let node = self.nodes.get(*node).with_context(|| format!("no node {node}"))?;
            Ok(format!("nexthop via {}", node.address(address)))
        };
        let hops = nodes.iter().map(hop).collect::<Result<Vec<_>>>()?;
        self.router.ip(&format!("route replace {address} {}", hops.join(" ")))
    }

    /// Cuts a node off from all others.
    pub fn cut_off(&self, node: usize) -> Result<()> {
        self.router.ip(&format!("link set node-{} down", node + 1))
    }
}
