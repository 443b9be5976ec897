//! A small cluster of one node in network namespaces: the node, pods on it, and a client outside.
//!
//! ```text
//!  client ──────── node ──────── pod-1
//!  192.168.50.2    │   └──────── pod-2 …
//!                  kube-ipvs0, IPVS, nf_tables
//! ```
//!
//! Every pod has its own link to the node, so all its traffic is routed. Addresses exist in both families.
//! Everything is in namespaces that the lab has made, and disappears when it is dropped.

mod client;
mod fabric;
mod host;
mod load;
mod page;
mod server;

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
pub use client::{Answer, Connection, Flow, Manner};
pub use fabric::Fabric;
pub use host::Host;
use ipvs::Protocol;
pub use load::{Count, Load, Tally, Target};
pub use page::Page;

/// The pods' range, for `--cluster-cidr`.
pub const CLUSTER_CIDR: &str = "10.244.0.0/16,fd00:10:244::/48";

/// The networks of pods on another node are numbered from here: `10.244.0.0/17` and `fd00:10:244::/56` hold
/// the pods of this one.
const OTHER_NODES_PODS: u8 = 128;

const FORWARD_V4: &str = "net.ipv4.ip_forward=1";
const FORWARD_V6: &str = "net.ipv6.conf.all.forwarding=1";

static LABS: AtomicUsize = AtomicUsize::new(0);

/// A node, its pods, and a client that is not part of the cluster.
#[derive(Debug)]
pub struct Lab {
    /// The node.
    pub node: Host,
    /// The client.
    pub client: Host,
    /// The pods.
    pub pods: Vec<Host>,
    /// The prefix of the names of its namespaces.
    prefix: String,
}

impl Lab {
    /// Makes the namespaces and links, with `pods` pods, each answering on `port` by TCP and UDP, and by
    /// SCTP where the kernel has it.
    pub fn new(pods: u8, port: u16) -> Result<Self> {
        let lab = LABS.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("ki{}-{lab}", std::process::id());
        let node = Host::new(&prefix, "node", [192, 168, 50, 1], "fd00:50::1")?;
        node.run("sysctl", &["-qw", FORWARD_V4, FORWARD_V6])?;
        // Each of several failed attempts in a row gets an ICMP answer.
        node.run("sysctl", &["-qw", "net.ipv4.icmp_ratelimit=0", "net.ipv6.icmp.ratelimit=0"])?;
        let client = Host::new(&prefix, "client", [192, 168, 50, 2], "fd00:50::2")?;
        node.link("eth0", &client)?;
        let mut lab = Self { node, client, pods: Vec::new(), prefix };
        for number in 1..=pods {
            let pod = pod(&lab.prefix, &lab.node, number, number, port)?;
            lab.pods.push(pod);
        }
        Ok(lab)
    }

    /// Adds a host outside the cluster, on its own network behind the node's `device`.
    pub fn neighbour(&self, device: &str, name: &str, ipv4: [u8; 4], ipv6: &str) -> Result<Host> {
        let host = Host::new(&self.prefix, name, ipv4, ipv6)?;
        self.node.link(device, &host)?;
        Ok(host)
    }

    /// Adds another node, a neighbour of this one, with one more pod, the last of the pods. What pods of that
    /// node send goes through this one.
    pub fn add_pod_on_another_node(&mut self, device: &str, name: &str, port: u16) -> Result<Host> {
        let other = self.neighbour(device, name, [192, 168, 70, 2], "fd00:70::2")?;
        other.run("sysctl", &["-qw", FORWARD_V4, FORWARD_V6])?;
        let number = u8::try_from(self.pods.len())? + 1;
        let pod = pod(&self.prefix, &other, number, number + OTHER_NODES_PODS, port)?;
        self.node.ip(&format!(
            "route add {}/32 via {}
             route add {}/128 via {}",
            pod.ipv4, other.ipv4, pod.ipv6, other.ipv6
        ))?;
        self.pods.push(pod);
        Ok(other)
    }

    /// The protocols that the kernel has, of those that IPVS balances.
    pub fn protocols() -> Vec<Protocol> {
        let mut protocols = vec![Protocol::Tcp, Protocol::Udp];
        protocols.extend(client::has_sctp().then_some(Protocol::Sctp));
        protocols
    }
}

/// Makes a pod on a node, with the network of this number.
fn pod(prefix: &str, node: &Host, number: u8, network: u8, port: u16) -> Result<Host> {
    let ipv6 = format!("fd00:10:244:{network}::2");
    let pod = Host::new(prefix, &format!("pod-{number}"), [10, 244, network, 2], &ipv6)?;
    node.link(&format!("veth{number}"), &pod)?;
    pod.serve(port)?;
    Ok(pod)
}
