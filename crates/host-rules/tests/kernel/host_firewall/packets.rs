//! A node that drops unknown traffic: what passes with our rule, and with rules written by hand.

use std::net::SocketAddr;

use host_rules::host_firewall::{Accepts, FirewallChains as _, Hook};
use ipvs::{Family, Protocol, ServiceAddress};
use netfilter::{Element, Operation};

use super::{accept, open, shell};
use crate::support::{
    cluster::{Addresses, Cluster, PORT, TARGET_PORT, addresses},
    host::BRIEFLY,
    programs::{nft, run},
};

const SSH: u16 = 22;
const NODE_PORT: u16 = 30080;

/// A node with our tables, which serves a ClusterIP and a NodePort, and has its own program that must not be
/// reachable.
fn cluster() -> Cluster {
    let cluster = Cluster::new();
    cluster.node.echo_peers(SSH);
    let mut changes = Vec::new();
    for at in Family::BOTH.map(addresses) {
        changes.extend([
            Operation::InstallTable(Family::from(at.vip)),
            Operation::AddElement(Element::Vip(at.vip)),
        ]);
        for (server, element) in
            [(cluster_ip(&at), Element::ClusterIp as fn(_) -> _), (node_port(&at), Element::External)]
        {
            cluster.balance(server, SocketAddr::new(at.pod2, TARGET_PORT));
            let address = ServiceAddress { protocol: Protocol::Tcp, ip: server.ip(), port: server.port() };
            changes.push(Operation::AddElement(element(address)));
        }
    }
    cluster.apply(&accept(), changes);
    cluster
}

fn cluster_ip(at: &Addresses) -> SocketAddr {
    SocketAddr::new(at.vip, PORT)
}

fn node_port(at: &Addresses) -> SocketAddr {
    SocketAddr::new(at.node_towards_client, NODE_PORT)
}

/// A pod reaches the ClusterIP, and a client outside the NodePort.
#[track_caller]
fn assert_served(cluster: &Cluster, families: &[Family]) {
    for at in families.iter().copied().map(addresses) {
        cluster.pod1.source_at(cluster_ip(&at));
        cluster.client.source_at(node_port(&at));
    }
}

/// Neither of them does.
#[track_caller]
fn assert_cut_off(cluster: &Cluster, families: &[Family], why: &str) {
    for at in families.iter().copied().map(addresses) {
        for (host, server) in [(&cluster.pod1, cluster_ip(&at)), (&cluster.client, node_port(&at))] {
            assert_eq!(host.source_seen_by(server, BRIEFLY), None, "{server}, {why}");
        }
    }
}

/// The node's own program is not reached, directly or through a VIP.
#[track_caller]
fn assert_protected(cluster: &Cluster, families: &[Family]) {
    for at in families.iter().copied().map(addresses) {
        for ip in [at.node_towards_client, at.vip] {
            assert_eq!(cluster.client.source_seen_by(SocketAddr::new(ip, SSH), BRIEFLY), None, "{ip}");
        }
    }
}

/// Puts our rule into the closed chains at a hook.
fn accept_at(cluster: &Cluster, hook: Hook) {
    cluster.node.inside(move || {
        let mut chains = open();
        for closed in chains.closed_chains(&accept()).unwrap() {
            if closed.chain.hook == hook {
                assert!(chains.settle(&closed.chain, &accept()).unwrap(), "{closed}");
            }
        }
    });
}

/// Takes our rule out of all chains.
fn withdraw(cluster: &Cluster) {
    cluster.node.inside(|| {
        let mut chains = open();
        for chain in chains.chains_with_our_rules().unwrap() {
            assert!(chains.withdraw(&chain).unwrap(), "{chain}");
        }
    });
}

const NATIVE: &[&str] = &["nft table inet host {
    chain input {
        type filter hook input priority filter; policy drop;
        meta l4proto ipv6-icmp accept
        ct state established,related accept
    }
    chain forward {
        type filter hook forward priority filter; policy accept;
        reject with icmpx type admin-prohibited
    }
}"];

const IPTABLES: &[&str] = &[
    "iptables-nft -P INPUT DROP",
    "iptables-nft -P FORWARD DROP",
    "iptables-nft -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
    "ip6tables-nft -A INPUT -p ipv6-icmp -j ACCEPT",
    "ip6tables-nft -A INPUT -j REJECT --reject-with icmp6-adm-prohibited",
    "ip6tables-nft -P FORWARD DROP",
];

fn set_up(cluster: &Cluster, firewall: &'static [&'static str]) {
    cluster.node.inside(move || {
        for command in firewall {
            match command.strip_prefix("nft ") {
                Some(script) => nft(script),
                None => drop(run(command)),
            }
        }
    });
}

/// Statement 117 of the parity table, and more.
#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn services_behind_a_closed_firewall_need_our_rule_in_input_and_in_forward() {
    let families = &Family::BOTH;
    std::thread::scope(|scope| {
        for firewall in [NATIVE, IPTABLES] {
            scope.spawn(move || {
                let cluster = cluster();
                assert_served(&cluster, families);
                set_up(&cluster, firewall);
                assert_cut_off(&cluster, families, firewall[0]);
                accept_at(&cluster, Hook::Input);
                assert_cut_off(&cluster, families, "answers are dropped");
                accept_at(&cluster, Hook::Forward);
                assert_served(&cluster, families);
                assert_protected(&cluster, families);
                withdraw(&cluster);
                assert_cut_off(&cluster, families, "withdrawn");
            });
        }
    });
}

/// The commands in the documentation of `host_rules::host_firewall`.
fn documented(program: &str) -> Vec<&'static str> {
    let lines = include_str!("../../../src/host_firewall.rs").lines();
    lines.filter_map(|line| line.strip_prefix("//! ")).filter(|line| line.starts_with(program)).collect()
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_documented_rules_by_hand_do_the_same_and_are_recognised() {
    const FIREWALL: &[&str] = &[
        "nft table inet filter {
            chain input { type filter hook input priority filter; policy drop; }
            chain forward { type filter hook forward priority filter; policy drop; }
        }",
        "iptables-nft -P INPUT DROP",
        "iptables-nft -P FORWARD DROP",
    ];
    // The documented commands are those of IPv4.
    let families = &[Family::V4];
    let cluster = cluster();
    set_up(&cluster, FIREWALL);
    for (program, count) in [("nft insert rule", 4), ("iptables -I", 5)] {
        assert_cut_off(&cluster, families, program);
        let commands = documented(program);
        assert_eq!(commands.len(), count, "{commands:?}");
        cluster.node.inside(move || {
            for command in commands {
                shell(&command.replace("iptables ", "iptables-nft "));
            }
        });
    }
    assert_served(&cluster, families);
    assert_protected(&cluster, families);
    cluster.node.inside(|| {
        let closed = open().closed_chains(&accept()).unwrap();
        let accepts: Vec<_> = closed.iter().map(|closed| closed.accepts).collect();
        assert_eq!(accepts, [Accepts::ByHand; 4], "{closed:?}");
    });
}
