//! A small cluster of one node in network namespaces: the node, pods on it, and a client outside.
//!
//! ```text
//!  client ──────── node ──────── pod-1
//!  192.168.50.2    │   └──────── pod-2 …
//!                  kube-ipvs0, IPVS, nf_tables
//! ```
//!
//! Every pod has a link of its own to the node, so that all its traffic is routed. Addresses exist in
//! both families. Everything stays in namespaces that the lab made, and goes when it is dropped.

mod client;
mod host;
mod server;

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use ipvs::Protocol;

pub use client::{Answer, Connection, Flow};
pub use host::Host;

/// The pods' range: what `--cluster-cidr` is to be set to.
pub const CLUSTER_CIDR: &str = "10.244.0.0/16,fd00:10:244::/48";

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
}

impl Lab {
    /// Makes the namespaces and links, with `pods` pods, each answering on `port` by TCP and UDP, and by
    /// SCTP where the kernel has it.
    pub fn new(pods: u8, port: u16) -> Result<Self> {
        let lab = LABS.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("ki{}-{lab}", std::process::id());
        let node = Host::new(&prefix, "node", [192, 168, 50, 1], "fd00:50::1")?;
        node.run("sysctl", &["-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"])?;
        // Whoever asks in vain several times in a row is told so each time.
        node.run("sysctl", &["-qw", "net.ipv4.icmp_ratelimit=0", "net.ipv6.icmp.ratelimit=0"])?;
        let client = Host::new(&prefix, "client", [192, 168, 50, 2], "fd00:50::2")?;
        node.link("eth0", &client)?;
        let mut lab = Self { node, client, pods: Vec::new() };
        for number in 1..=pods {
            lab.add_pod(&prefix, number, port)?;
        }
        Ok(lab)
    }

    /// The protocols that the kernel has, of those that IPVS balances.
    pub fn protocols() -> Vec<Protocol> {
        let mut protocols = vec![Protocol::Tcp, Protocol::Udp];
        protocols.extend(client::has_sctp().then_some(Protocol::Sctp));
        protocols
    }

    fn add_pod(&mut self, prefix: &str, number: u8, port: u16) -> Result<()> {
        let ipv6 = format!("fd00:10:244:{number}::2");
        let pod = Host::new(prefix, &format!("pod-{number}"), [10, 244, number, 2], &ipv6)?;
        self.node.link(&format!("veth{number}"), &pod)?;
        pod.serve(port)?;
        self.pods.push(pod);
        Ok(())
    }
}
