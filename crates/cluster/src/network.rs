//! The network of the nodes: a namespace with a bridge, and an interface for each node.
//!
//! The machine itself has no address in it and no way into it. What talks to the cluster runs inside the namespace.

use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::node::Node;

/// The namespace, as `ip netns` has it.
const NAMESPACE: &str = "kube-ipvs-cluster";

/// What stands in the namespace for the world outside the cluster, and is the nodes' gateway.
pub(crate) const OUTSIDE: [&str; 2] = ["10.200.0.1/24", "fd00:200::1/64"];

/// Where requests to a load balancer come from: not from the nodes' own subnet, and so a test can tell.
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// Where load balancers have their addresses.
const BALANCED: &str = "10.201.0.0/24";

/// A program that runs inside the namespace.
pub(crate) fn inside(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", NAMESPACE]).arg(program);
    command
}

/// How long a command may take. Those that wait for something have less patience of their own; kubeadm is the slowest.
const LIMIT: Duration = Duration::from_secs(900);

/// One that is ended by timeout(1) if it takes too long.
pub(crate) fn inside_within_limit(program: impl AsRef<OsStr>) -> Command {
    let mut command = inside("timeout");
    command.arg("--kill-after=5").arg(LIMIT.as_secs().to_string()).arg(program);
    command
}

/// Makes the namespace and its bridge.
pub(crate) fn create() -> Result<()> {
    ip(&["netns", "add", NAMESPACE])?;
    in_namespace("link set lo up")?;
    in_namespace("link add nodes type bridge")?;
    for address in OUTSIDE {
        in_namespace(&format!("address add {address} dev nodes nodad"))?;
    }
    in_namespace(&format!("address add {CLIENT}/32 dev lo"))?;
    in_namespace("link set nodes up")?;
    // What is sent to an address that no load balancer has is never answered, as on the Internet: a bridge with no ports
    // that asks for no neighbour.
    in_namespace("link add nowhere type bridge")?;
    in_namespace("link set nowhere arp off up")?;
    in_namespace(&format!("route add {BALANCED} dev nowhere src {CLIENT}"))?;
    for setting in [
        "net.ipv4.ip_forward=1",
        "net.ipv6.conf.all.forwarding=1",
        // By ports too: each connection goes its own way.
        "net.ipv4.fib_multipath_hash_policy=1",
    ] {
        let status = inside("sysctl").args(["--quiet", "--write", setting]).status();
        ensure!(status.context("starting sysctl")?.success(), "sysctl {setting} failed");
    }
    Ok(())
}

/// Makes the interface that a node is connected by.
pub(crate) fn connect(node: &Node) -> Result<()> {
    let name = node.interface();
    in_namespace(&format!("tuntap add {name} mode tap"))?;
    in_namespace(&format!("link set {name} master nodes up"))
}

/// Removes it.
pub(crate) fn disconnect(node: &Node) -> Result<()> {
    in_namespace(&format!("link delete {}", node.interface()))
}

/// Adds a route to what is behind a node.
pub(crate) fn route(subnet: &str, node: &Node) -> Result<()> {
    let via = node.address_for(subnet);
    in_namespace(&format!("route replace {subnet} via {via}"))
}

/// Leads an address from outside to these nodes, a connection to one of them; to none if there are none.
pub(crate) fn announce(address: Ipv4Addr, nodes: &[Ipv4Addr]) -> Result<()> {
    if nodes.is_empty() {
        return in_namespace(&format!("route replace unreachable {address}"));
    }
    let hops: Vec<String> = nodes.iter().map(|node| format!("nexthop via {node}")).collect();
    in_namespace(&format!("route replace {address} src {CLIENT} {}", hops.join(" ")))
}

/// Takes it back.
pub(crate) fn withdraw(address: Ipv4Addr) -> Result<()> {
    in_namespace(&format!("route delete {address}"))
}

/// Removes the namespace with all that is in it, if it is there.
pub(crate) fn delete() -> Result<()> {
    let namespaces = Command::new("ip").args(["netns", "list"]).output().context("starting ip")?;
    let there = String::from_utf8_lossy(&namespaces.stdout)
        .lines()
        .any(|line| line.split_whitespace().next() == Some(NAMESPACE));
    if there { ip(&["netns", "delete", NAMESPACE]) } else { Ok(()) }
}

fn in_namespace(command: &str) -> Result<()> {
    let words: Vec<&str> = ["-n", NAMESPACE].into_iter().chain(command.split(' ')).collect();
    ip(&words)
}

fn ip(arguments: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(arguments).stdin(Stdio::null()).output().context("starting ip")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {}: {}", arguments.join(" "), complaint.trim_end());
    Ok(())
}
