//! The host's own firewall on the real kernel: which chains are found to be closed, what is put into them,
//! and the effect on packets.

mod accept;
mod as_kube_proxy;
mod closed;
mod legacy;
mod packets;

use crate::support::cluster;
use host_rules::host_firewall::{FirewallChains as _, HostChain, HostChains};
use netfilter::{HostFirewall, Policy};

/// Of [`accept`].
const MARK: u32 = 0x1000;

/// A policy whose rules accept whatever IPVS forwards.
fn accept() -> Policy {
    Policy { host_firewall: HostFirewall::Accept, ..cluster::policy(cluster::cluster_cidr()) }
}

/// A policy whose rules accept what kube-proxy accepts.
fn as_kube_proxy() -> Policy {
    Policy { host_firewall: HostFirewall::AsKubeProxy, ..accept() }
}

fn open() -> HostChains {
    HostChains::open().unwrap()
}

/// The one closed chain that there is.
#[track_caller]
fn only_closed_chain(chains: &mut HostChains) -> HostChain {
    let closed = chains.closed_chains(&accept()).unwrap();
    assert_eq!(closed.len(), 1, "{closed:?}");
    closed[0].chain.clone()
}

/// Runs a line of a shell, which must succeed.
fn shell(line: &str) {
    let status = std::process::Command::new("sh").args(["-c", line]).status().unwrap();
    assert!(status.success(), "{line}");
}
