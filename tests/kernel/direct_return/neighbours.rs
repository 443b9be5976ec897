//! What is on the nodes beside it: an overlay of the network plugin, and the host's own firewall.

use std::{
    net::{TcpListener, TcpStream},
    time::Duration,
};

use anyhow::ensure;
use serde_json::json;
use testkit::daemon::eventually;

use super::cluster::{Cluster, all_still_work, by_pod, families, parsed, tunnelled};
use crate::support::cluster::at;

/// As a host has it whose administrator lets in what he knows, ufw for example.
const FIREWALL: &str = "*filter
:INPUT DROP
:FORWARD DROP
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A INPUT -m conntrack --ctstate INVALID -j DROP
-A INPUT -i lo -j ACCEPT
-A INPUT -p icmp -j ACCEPT
-A INPUT -p tcp -m multiport --dports 80,10256 -j ACCEPT
-A FORWARD -m conntrack --ctstate INVALID -j DROP
COMMIT
";

const PATIENCE: Duration = Duration::from_secs(5);

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn an_endpoint_on_its_nodes_network_is_reached_beside_an_overlay_at_its_address() {
    let cluster = Cluster::start(&[1, 1, 0], &tunnelled());
    let nodes = &cluster.fabric.nodes;
    let mut items = cluster.service(&tunnelled());
    for slice in &mut items[1..] {
        let family = slice["addressType"].clone();
        let address = if family == "IPv4" { nodes[0].ipv4.to_string() } else { nodes[0].ipv6.to_string() };
        let on_the_network_of_its_node =
            json!({ "addresses": [address], "nodeName": "node-1", "conditions": { "ready": true } });
        slice["endpoints"].as_array_mut().unwrap().push(on_the_network_of_its_node);
    }
    cluster.write("shop", &items);
    let _server = nodes[0].inside(|| TcpListener::bind("[::]:8080").unwrap()).unwrap();
    for (address, inside) in families().zip([["172.31.0.1", "172.31.0.2"], ["fd31::1", "fd31::2"]]) {
        let kind = if address.contains(':') { "ip6tnl" } else { "ipip" };
        let prefix = if address.contains(':') { 64 } else { 24 };
        for (from, to) in [(0, 1), (1, 0)] {
            let [local, remote] = [from, to].map(|node: usize| nodes[node].address(parsed(address)));
            nodes[from]
                .ip(&format!(
                    "link add overlay-{kind} type {kind} local {local} remote {remote}
                     addr add {}/{prefix} dev overlay-{kind} nodad
                     link set overlay-{kind} up",
                    inside[from]
                ))
                .unwrap();
        }
        eventually("the new endpoint is masqueraded", || {
            let mut methods = cluster.methods(2, address)?;
            methods.sort();
            ensure!(methods == ["Masq", "Tunnel", "Tunnel"], "{methods:?}");
            Ok(())
        })
        .unwrap();
        let listens = nodes[0].inside(move || TcpListener::bind(at(inside[0], 9000)).unwrap()).unwrap();
        nodes[1].inside(move || TcpStream::connect_timeout(&at(inside[0], 9000), PATIENCE)).unwrap().unwrap();
        drop(listens);
        cluster.fabric.enter_by(parsed(address), 2).unwrap();
        let connect = move || TcpStream::connect_timeout(&at(address, 80), PATIENCE).map(drop);
        for _ in 0..30 {
            cluster.fabric.client.inside(connect).unwrap().unwrap();
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn connections_pass_firewalls_that_drop_what_conntrack_calls_invalid() {
    let cluster = Cluster::start(&[1, 1, 0], &tunnelled());
    for node in &cluster.fabric.nodes {
        for (program, icmp) in [("iptables-restore", "icmp"), ("ip6tables-restore", "ipv6-icmp")] {
            let rules = FIREWALL.replace("icmp", icmp);
            node.run("sh", &["-c", &format!("printf '%s' '{rules}' | {program}")]).unwrap();
        }
    }
    for address in families() {
        (0..3).for_each(|node| cluster.tunnels(node, address));
        for entrance in [2, 0] {
            cluster.fabric.enter_by(parsed(address), entrance).unwrap();
            eventually("the firewalls are opened for it", || {
                cluster.fabric.client.ask(at(address, 80)).map(drop)
            })
            .unwrap();
            let mut connections = cluster.connections(address, 20);
            assert_eq!(by_pod(&connections).len(), 2, "{address} by node {entrance}");
            connections.iter_mut().take(6).for_each(|connection| connection.echoes(100_000).unwrap());
            all_still_work(&mut connections);
        }
    }
}
