//! The network of the nodes, and the world outside of the cluster: a namespace each.
//!
//! The first has a bridge with an interface for each node, and is the nodes' router. What an operator does, and what a
//! cloud does, runs there. Clients are in the other, behind the router.
//!
//! The router balances as a cloud's load balancer: what goes to an address of one is forwarded to a node, all packets
//! of a connection to the same, whatever becomes of the others. So this machine's own kernel needs nf_tables.
//!
//! The machine itself has no address in either, and no way into them.

pub(crate) mod pods;

use std::{
    ffi::OsStr,
    net::Ipv4Addr,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result};
use guest::programs::{feed, printed, run};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::node::Node;

/// The namespaces, as `ip netns` has them.
const ROUTER: &str = "kube-ipvs-cluster";
const OUTSIDE: &str = "kube-ipvs-cluster-outside";

/// The router's addresses among the nodes, and those of its link to the outside.
const AMONG_NODES: [&str; 2] = ["10.200.0.1/24", "fd00:200::1/64"];
const TO_OUTSIDE: [&str; 2] = ["192.0.2.254/24", "2001:db8::fe/64"];

/// The addresses of clients, that which they ask load balancers from, and the one that they ask nodes from: IPVS
/// confuses connections from one port to two virtual servers with the same pod behind them (docs/evidence/kernel.md).
const CLIENT: [&str; 2] = ["192.0.2.1/24", "2001:db8::1/64"];
pub(crate) const CLIENT_OF_BALANCED: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const CLIENT_OF_NODES: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

/// Where the nodes have their addresses.
const NODES: &str = "10.200.0.0/24";

/// Where load balancers have their addresses.
const BALANCED: &str = "10.201.0.0/24";

/// A program that runs on the router.
pub(crate) fn on_router(program: impl AsRef<OsStr>) -> Command {
    in_network_namespace(ROUTER, program)
}

/// One that runs outside of the cluster.
pub(crate) fn outside(program: impl AsRef<OsStr>) -> Command {
    in_network_namespace(OUTSIDE, program)
}

fn in_network_namespace(namespace: &str, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]).arg(program);
    command
}

/// How long a command may take. Those that wait for something have less patience of their own; kubeadm is the slowest.
const LIMIT: Duration = Duration::from_secs(900);

/// One that is ended by timeout(1) if it takes too long.
pub(crate) fn on_router_within_limit(program: impl AsRef<OsStr>) -> Command {
    let mut command = on_router("timeout");
    // In the foreground, an interrupt from the keyboard reaches the program too.
    command.args(["--foreground", "--kill-after=5"]).arg(LIMIT.as_secs().to_string()).arg(program);
    command
}

/// The router forwards, also what comes back another way than it would send it, and does not look into what one node
/// sends to another. Kernels without the module br_netfilter do not have the last two.
const SETTINGS: [&str; 6] = [
    "net.ipv4.ip_forward=1",
    "net.ipv6.conf.all.forwarding=1",
    "net.ipv4.conf.all.rp_filter=0",
    "net.ipv4.conf.nodes.rp_filter=0",
    "net.bridge.bridge-nf-call-iptables=0",
    "net.bridge.bridge-nf-call-ip6tables=0",
];

/// Makes the namespaces, their link, and the bridge.
pub(crate) fn create() -> Result<()> {
    ip(&["netns", "add", ROUTER])?;
    ip(&["netns", "add", OUTSIDE])?;
    on(ROUTER, "link set lo up")?;
    on(ROUTER, "link add nodes type bridge")?;
    on(ROUTER, &format!("link add outside type veth peer name router netns {OUTSIDE}"))?;
    for (interface, addresses) in [("nodes", AMONG_NODES), ("outside", TO_OUTSIDE)] {
        bring_up(ROUTER, interface, addresses)?;
    }
    // What is sent to an address that no load balancer has is never answered, as on the Internet: a bridge with no
    // ports that asks for no neighbour.
    on(ROUTER, "link add nowhere type bridge")?;
    on(ROUTER, "link set nowhere arp off up")?;
    on(ROUTER, &format!("route add {BALANCED} dev nowhere"))?;
    let mut sysctl = on_router("sysctl");
    run(sysctl.args(["--quiet", "--ignore", "--write"]).args(SETTINGS)).context("the router's parameters")?;
    nft(&balancer())?;
    on(OUTSIDE, "link set lo up")?;
    bring_up(OUTSIDE, "router", CLIENT)?;
    let [router, router_of_ipv6] = TO_OUTSIDE.map(without_length);
    for router in [router, router_of_ipv6] {
        on(OUTSIDE, &format!("route add default via {router}"))?;
    }
    on(OUTSIDE, &format!("address add {CLIENT_OF_NODES}/24 dev router"))?;
    on(OUTSIDE, &format!("route add {NODES} via {router} src {CLIENT_OF_NODES}"))
}

/// An address without the length of its prefix.
fn without_length(address: &str) -> &str {
    address.split_once('/').map_or(address, |(address, _)| address)
}

/// Gives an interface its addresses.
fn bring_up(namespace: &str, interface: &str, addresses: [&str; 2]) -> Result<()> {
    on(namespace, &format!("link set {interface} up"))?;
    for address in addresses {
        // The address is unique: no detection of duplicates.
        on(namespace, &format!("address add {address} dev {interface} nodad"))?;
    }
    Ok(())
}

/// Makes the interface that a node is connected by.
pub(crate) fn connect(node: &Node) -> Result<()> {
    let name = node.interface();
    on(ROUTER, &format!("tuntap add {name} mode tap"))?;
    on(ROUTER, &format!("link set {name} master nodes up"))?;
    // Connections that are balanced to it have this mark.
    let (mark, address) = (fwmark(node), node.ipv4());
    on(ROUTER, &format!("rule add fwmark {mark} lookup {mark}"))?;
    on(ROUTER, &format!("route add {BALANCED} via {address} table {mark}"))
}

/// Removes it.
pub(crate) fn disconnect(node: &Node) -> Result<()> {
    on(ROUTER, &format!("rule delete fwmark {}", fwmark(node)))?;
    on(ROUTER, &format!("route flush table {}", fwmark(node)))?;
    on(ROUTER, &format!("link delete {}", node.interface()))
}

/// The mark of connections, and the number of the routing table, that lead to a node.
fn fwmark(node: &Node) -> u32 {
    100 + u32::from(node.number)
}

/// What the router has for load balancers: a connection keeps the mark that its first packet got in the chain of its
/// destination.
fn balancer() -> String {
    format!(
        "table ip balancer {{
            map addresses {{ type ipv4_addr : verdict; }}
            chain prerouting {{
                type filter hook prerouting priority mangle;
                iifname outside ip daddr {BALANCED} ct mark 0 ip daddr vmap @addresses
                iifname outside ip daddr {BALANCED} meta mark set ct mark
            }}
        }}"
    )
}

/// Adds a route to what is behind a node.
pub(crate) fn route(subnet: &str, node: &Node) -> Result<()> {
    let via = node.address_for(subnet);
    on(ROUTER, &format!("route replace {subnet} via {via}"))
}

/// Leads new connections from outside to an address to these nodes by turns; to none if there are none.
pub(crate) fn announce(address: Ipv4Addr, nodes: &[Node]) -> Result<()> {
    let rule = if nodes.is_empty() {
        // Not as a port of a pod that has ended answers.
        "reject with icmp host-unreachable".to_owned()
    } else {
        let marks = marks(nodes);
        format!("ct mark set numgen inc mod {} map {{ {marks} }} meta mark set ct mark", nodes.len())
    };
    let chain = chain(address);
    nft(&format!(
        "add chain ip balancer {chain}
        flush chain ip balancer {chain}
        add rule ip balancer {chain} {rule}
        add element ip balancer addresses {{ {address} : jump {chain} }}"
    ))
}

/// Takes it back.
pub(crate) fn withdraw(address: Ipv4Addr) -> Result<()> {
    let chain = chain(address);
    nft(&format!(
        "delete element ip balancer addresses {{ {address} : jump {chain} }}
        flush chain ip balancer {chain}
        delete chain ip balancer {chain}"
    ))
}

/// Leads what comes from outside to an address to these nodes by a hash of the client's address and port, as a router
/// with several ways does that keeps nothing of connections: when the nodes change, open connections go on by others.
pub(crate) fn spread(address: Ipv4Addr, nodes: &[&Node]) -> Result<()> {
    let marks = marks(nodes.iter().copied());
    nft(&format!(
        "add chain ip balancer spread {{ type filter hook prerouting priority mangle + 1; }}
        flush chain ip balancer spread
        add rule ip balancer spread iifname outside ip daddr {address} \
            meta mark set jhash ip saddr . tcp sport mod {} map {{ {marks} }}",
        nodes.len()
    ))
}

/// Leads to the load balancer's nodes again.
pub(crate) fn spread_no_longer() -> Result<()> {
    nft("add chain ip balancer spread { type filter hook prerouting priority mangle + 1; }
        flush chain ip balancer spread
        delete chain ip balancer spread")
}

/// The marks of nodes by their place, from 0, as a map of nft.
fn marks<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> String {
    let marks = nodes.into_iter().map(fwmark).enumerate().map(|(place, mark)| format!("{place} : {mark}"));
    marks.collect::<Vec<_>>().join(", ")
}

/// The name of the chain of an address.
fn chain(address: Ipv4Addr) -> String {
    format!("to-{}", address.to_string().replace('.', "-"))
}

/// Changes the router's rules, all or none.
fn nft(rules: &str) -> Result<()> {
    let mut nft = on_router("nft");
    feed(nft.args(["-f", "-"]).stderr(Stdio::piped()), rules.as_bytes()).map(drop).context("nft")
}

/// Removes the namespaces with all that is in them, if they are there.
pub(crate) fn delete() -> Result<()> {
    for namespace in [ROUTER, OUTSIDE].into_iter().filter(|namespace| is_there(namespace)) {
        end_all_in(namespace)?;
        ip(&["netns", "delete", namespace])?;
    }
    Ok(())
}

/// Ends what still runs there, such as the tests of a command that was interrupted.
fn end_all_in(namespace: &str) -> Result<()> {
    for process in printed(Command::new("ip").args(["netns", "pids", namespace]))?.split_whitespace() {
        // It may have ended by itself.
        let _ = kill(Pid::from_raw(process.parse()?), Signal::SIGKILL);
    }
    Ok(())
}

/// Whether there is a cluster's network on this machine, of whichever checkout.
pub(crate) fn exists() -> bool {
    is_there(ROUTER)
}

/// Whether there is this namespace, where `ip netns` keeps them.
fn is_there(namespace: &str) -> bool {
    Path::new("/run/netns").join(namespace).exists()
}

/// One command of ip(8) in a namespace.
fn on(namespace: &str, command: &str) -> Result<()> {
    let words: Vec<&str> = ["-n", namespace].into_iter().chain(command.split(' ')).collect();
    ip(&words)
}

fn ip(arguments: &[&str]) -> Result<()> {
    let printed = printed(Command::new("ip").args(arguments).stderr(Stdio::piped()));
    printed.map(drop).with_context(|| format!("ip {}", arguments.join(" ")))
}
