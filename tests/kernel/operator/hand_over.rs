//! `kube-ipvs cleanup --hand-over`: new connections go to a kube-proxy in another mode, open ones stay until they end.

mod before;

use std::{
    io::{self, Read as _, Write as _},
    net::TcpStream,
    thread,
    time::Duration,
};

use nix::{
    libc,
    sys::socket::{setsockopt, sockopt},
};
use serde_json::json;
use testkit::lab::Host;

use crate::support::{
    cluster::{Cluster, NO_PERIOD, Service, V4, are_refused, at, tcp},
    hand_over::{HandOver, Successor},
};

/// A Service on pod-1, and one that the other proxy does not know any more.
const GONE: &str = "10.96.0.11";
/// A load balancer's address that only others than the node may reach.
const LOAD_BALANCER: &str = "203.0.113.10";
/// What another program balances.
const FOREIGN: &str = "10.99.0.1:80 -s rr";

/// The rules of another proxy: it sends new connections to pod-2.
const RULES: &str = "
    table ip kube-proxy {
        chain services {
            ip daddr { 10.96.0.10, 203.0.113.10 } tcp dport 80 dnat to 10.244.2.2:8080
        }
        chain nat-prerouting { type nat hook prerouting priority -100; jump services; }
        chain nat-output { type nat hook output priority -100; jump services; }
    }";

fn web() -> Service {
    Service::new(
        "web",
        &json!({
            "type": "LoadBalancer",
            "clusterIPs": [V4],
            "ports": [{ "port": 80 }],
            "loadBalancerSourceRanges": ["192.168.50.2/32"],
        }),
    )
    .patch(&json!({ "status": { "loadBalancer": { "ingress": [{ "ip": LOAD_BALANCER }] } } }))
    .endpoints([1])
}

/// The node after kube-ipvs has stopped, and what a client and the node itself have opened to pod-1 before.
fn stopped() -> (Cluster, [TcpStream; 2]) {
    let mut cluster = Cluster::start(2, &[NO_PERIOD, "--foreign-virtual-servers=keep"]);
    cluster.lab.node.ip("route add default via 192.168.50.2").unwrap();
    cluster.apply(&web());
    let gone = Service::new("gone", &json!({ "clusterIPs": [GONE], "ports": [{ "port": 80 }] }));
    cluster.apply(&gone.endpoints([1]));
    let foreign = format!("ipvsadm -A -t {FOREIGN}; ipvsadm -a -t 10.99.0.1:80 -r 10.244.1.2:80 -g -w 5");
    cluster.lab.node.run("sh", &["-ec", &foreign]).unwrap();
    let to = at(V4, 80);
    let open = [&cluster.lab.client, &cluster.lab.node].map(|from| {
        let open = from.inside(move || TcpStream::connect(to)).unwrap().unwrap();
        open.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        open
    });
    echo(&open);
    cluster.stop();
    (cluster, open)
}

fn echo(open: &[TcpStream]) {
    for open in open {
        exchange(open).unwrap();
    }
}

fn exchange(mut open: &TcpStream) -> io::Result<()> {
    open.write_all(b"\n")?;
    open.read_exact(&mut [0])
}

/// Virtual servers, addresses, our tables and routes.
fn state(node: &Host) -> String {
    let list = "ipvsadm -Sn; ip -brief address show dev kube-ipvs0; nft list tables; \
                ip route show table local proto 73";
    node.run("sh", &["-c", list]).unwrap()
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn new_connections_go_to_the_other_proxy_and_all_when_our_last_open_one_has_ended() {
    let (cluster, open) = stopped();
    let (node, client) = (&cluster.lab.node, &cluster.lab.client);
    let mut hand_over = HandOver::start(node, &[]);
    hand_over.says("waiting: no kube-proxy answers");
    let before = state(node);
    let _successor = Successor::in_mode(node, "nftables");
    hand_over.says("has no rules for IPv4 yet");
    assert_eq!(state(node), before);
    node.run("nft", &[RULES]).unwrap();
    hand_over.says("open: 2 active and 0 inactive connections, which have 23 h 59 min to end");
    for asked in [client.ask(at(V4, 80)), cluster.lab.pods[0].ask(at(V4, 80)), node.ask(at(V4, 80))] {
        assert_eq!(asked.unwrap().from, "pod-2");
    }
    // Of the ranges of before, in which the node was not, nothing is left.
    assert_eq!(node.ask(at(LOAD_BALANCER, 80)).unwrap().from, "pod-2");
    // What the other proxy does not know reaches neither the pod of before nor a program of the node.
    are_refused(&[client, node], &[tcp(V4, 22)]);
    assert!(client.ask_at(tcp(GONE, 80)).is_err());
    // No client is connected there: the node has lost the address.
    let bound = node.run("ip", &["-brief", "route", "show", "table", "local", "proto", "73"]).unwrap();
    assert!(bound.contains(V4) && !bound.contains(GONE) && !bound.contains(LOAD_BALANCER), "{bound}");
    HandOver::start(node, &[]).says("waiting: another kube-ipvs runs on this node");
    echo(&open);

    // They end by a reset, which IPVS forgets after ten seconds; after a FIN it would be two minutes.
    for open in open {
        setsockopt(&open, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 }).unwrap();
    }
    let (said, code) = hand_over.ended();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("removed: 3 virtual servers\n") && !said.contains("cut: "), "{said}");
    let left = state(node);
    let foreign = "-A -t 10.99.0.1:80 -s rr\n-a -t 10.99.0.1:80 -r 10.244.1.2:80 -g -w 5\n";
    assert_eq!(left, format!("{foreign}table ip kube-proxy\n"));
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn what_is_open_when_the_wait_is_over_is_cut_named_and_reset() {
    let (cluster, open) = stopped();
    let node = &cluster.lab.node;
    node.run("nft", &[RULES]).unwrap();
    let _successor = Successor::in_mode(node, "nftables");
    let mut hand_over = HandOver::start(node, &["--wait=2s"]);
    for open in &open {
        let end = loop {
            match exchange(open) {
                Ok(()) => thread::sleep(Duration::from_millis(200)),
                Err(end) => break end,
            }
        };
        assert_eq!(end.kind(), io::ErrorKind::ConnectionReset, "{end}");
    }
    let (said, code) = hand_over.ended();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("\ncut: 2 active and 0 inactive connections to TCP 10.96.0.10:80\n"), "{said}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn nothing_is_removed_as_long_as_the_rules_of_the_other_proxy_are_gone() {
    let (cluster, open) = stopped();
    let node = &cluster.lab.node;
    node.run("nft", &[RULES]).unwrap();
    let successor = Successor::in_mode(node, "nftables");
    let mut hand_over = HandOver::start(node, &["--wait=2s"]);
    hand_over.says("handed over: new connections go to the proxy in nftables mode");
    // Its program may be restarted: the rules count.
    drop(successor);
    node.run("nft", &["delete", "table", "ip", "kube-proxy"]).unwrap();
    hand_over.says("waiting: the rules of kube-proxy in nftables mode for IPv4 are gone");
    let kept = state(node);
    assert!(kept.contains("-A -t 10.96.0.10:80 ") && kept.contains("table ip kube-ipvs\n"), "{kept}");
    echo(&open);
    node.run("nft", &[RULES]).unwrap();
    let (said, code) = hand_over.ended();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("\ncut: 2 active and 0 inactive connections to TCP 10.96.0.10:80\n"), "{said}");
    assert!(!state(node).contains("kube-ipvs"), "{}", state(node));
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn rules_of_iptables_mode_are_there_when_one_of_their_chains_is_filled() {
    let (cluster, open) = stopped();
    let node = &cluster.lab.node;
    let _successor = Successor::in_mode(node, "iptables");
    node.run("iptables-nft", &["-t", "nat", "-N", "KUBE-POSTROUTING"]).unwrap();
    let hand_over = HandOver::start(node, &[]);
    hand_over.says("has no rules for IPv4 yet");
    node.run("iptables-nft", &["-t", "nat", "-A", "KUBE-POSTROUTING", "-j", "RETURN"]).unwrap();
    hand_over.says("handed over: new connections go to the proxy in iptables mode");
    echo(&open);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_kube_proxy_in_ipvs_mode_is_not_handed_to_and_a_signal_ends_the_wait() {
    let (cluster, open) = stopped();
    let node = &cluster.lab.node;
    let before = state(node);
    // None keeps another, which may be the daemon, from starting.
    let (mut waiting, another) = (HandOver::start(node, &[]), HandOver::start(node, &[]));
    waiting.says("waiting: no kube-proxy answers");
    another.says("waiting: no kube-proxy answers");
    drop(another);
    waiting.terminate();
    let (said, code) = waiting.ended();
    assert!(code == Some(1) && said.contains("interrupted: "), "{code:?} {said}");

    let _successor = Successor::in_mode(node, "ipvs");
    let (said, code) = HandOver::start(node, &[]).ended();
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("a proxy in ipvs mode runs on this node") && said.contains(" --keep-ipvs`"),
        "{said}"
    );
    assert_eq!(state(node), before);
    echo(&open);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn without_our_tables_nothing_is_taken_for_ours() {
    let (cluster, open) = stopped();
    let node = &cluster.lab.node;
    node.run("sh", &["-ec", "nft delete table ip kube-ipvs; nft delete table ip6 kube-ipvs"]).unwrap();
    let _successor = Successor::in_mode(node, "nftables");
    let before = state(node);
    let (said, code) = HandOver::start(node, &[]).ended();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("kube-ipvs0 exists without our tables"), "{said}");
    assert_eq!(state(node), before);
    drop(open);
}
