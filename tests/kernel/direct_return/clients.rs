//! Who may ask, from where, and with what.

use std::{collections::BTreeSet, time::Duration};

use anyhow::ensure;
use ipvs::Family;
use netfilter::{PacketCounter, tunnel};
use serde_json::{Value, json};
use testkit::{
    daemon::eventually,
    lab::{Fabric, Manner},
};

use super::cluster::{Cluster, EXTERNAL, families, parsed, tunnelled};
use crate::support::cluster::at;

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn nodes_and_pods_reach_the_same_address_by_the_cluster_ip() {
    let cluster = Cluster::start(&[1, 2, 0], &tunnelled());
    for address in families() {
        (0..3).for_each(|node| cluster.tunnels(node, address));
        let pods: Vec<_> = cluster.fabric.pods.iter().map(|(_, pod)| pod).collect();
        for host in cluster.fabric.nodes.iter().chain(pods) {
            let answers = (0..6).map(|_| host.ask(at(address, 80)).unwrap().from);
            assert_eq!(answers.collect::<BTreeSet<_>>().len(), 3, "{} asks {address}", host.name);
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn source_ranges_hold_for_clients_outside_and_for_pods() {
    let cluster = Cluster::start(&[1, 1, 0], &tunnelled());
    let ranges = json!(["192.168.50.2/32", "fd00:50::2/128"]);
    let restricted = |ranges: Value| {
        let mut items = cluster.service(&tunnelled());
        items[0]["spec"]["loadBalancerSourceRanges"] = ranges;
        cluster.write("shop", &items);
    };
    let hosts = [&cluster.fabric.client, &cluster.fabric.pods[0].1, &cluster.fabric.pods[1].1];
    let reach = |address: &str| {
        let manner = Manner { patience: Duration::from_secs(1), ..Manner::default() };
        hosts.map(|host| host.connect_in(manner, at(address, 80)).is_ok())
    };
    restricted(ranges);
    for address in families() {
        (0..3).for_each(|node| cluster.tunnels(node, address));
        cluster.fabric.enter_by(parsed(address), 2).unwrap();
        eventually("only the client is let in", || {
            let reached = reach(address);
            ensure!(reached == [true, false, false], "{reached:?}");
            Ok(())
        })
        .unwrap();
    }
    restricted(json!(["10.244.0.0/16", "fd00:10:244::/48"]));
    for address in families() {
        eventually("only pods are let in", || {
            let reached = reach(address);
            ensure!(reached == [false, true, true], "{reached:?}");
            Ok(())
        })
        .unwrap();
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn nothing_leaves_the_tunnel_that_no_node_has_sent() {
    let cluster = Cluster::start(&[1, 1], &tunnelled());
    for address in families() {
        (0..2).for_each(|node| cluster.tunnels(node, address));
        let (client, pod) = (&cluster.fabric.client, &cluster.fabric.pods[0].1);
        let family = Family::from(parsed(address));
        let (kind, local, remote) = match family {
            Family::V4 => ("ipip", client.address(parsed(address)), pod.address(parsed(address))),
            Family::V6 => ("ip6tnl", client.address(parsed(address)), pod.address(parsed(address))),
        };
        // A client that puts its packets into others for the pod itself, or for the end of the tunnel.
        cluster.fabric.enter_by(tunnel::end(family), 0).unwrap();
        for (name, remote) in [("to-pod", remote), ("to-end", tunnel::end(family))] {
            client
                .ip(&format!(
                    "link add {name} type {kind} local {local} remote {remote}
                     link set {name} up
                     route add {address} dev {name}"
                ))
                .unwrap();
            let node = &cluster.fabric.nodes[0];
            let counts = node.inside(netfilter::packet_counts).unwrap().unwrap();
            let before = counts[&(family, PacketCounter::Tunnel)];
            let manner = Manner { patience: Duration::from_secs(1), ..Manner::default() };
            let answer = client.connect_in(manner, at(address, 80));
            assert!(answer.is_err(), "{name} {address}: {answer:?}");
            cluster.counts(0, address, "refused", u32::try_from(before).unwrap() + 1);
            client.ip(&format!("link delete {name}")).unwrap();
        }
        cluster.fabric.enter_by(parsed(address), 0).unwrap();
        client.ask(at(address, 80)).unwrap();
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn large_requests_and_answers_arrive_where_icmp_is_filtered() {
    let cluster = Cluster::start(&[1, 1, 0], &tunnelled());
    let Fabric { client, router, .. } = &cluster.fabric;
    let filter = "add table inet filter
        add chain inet filter forward { type filter hook forward priority 0; }
        add chain inet filter output { type filter hook output priority 0; }
        add rule inet filter forward icmp type destination-unreachable drop
        add rule inet filter output icmp type destination-unreachable drop
        add rule inet filter forward icmpv6 type { destination-unreachable, packet-too-big } drop
        add rule inet filter output icmpv6 type { destination-unreachable, packet-too-big } drop";
    router.run("nft", &[filter]).unwrap();
    for (of_client, of_cluster, segment) in [(1500, 1500, 1440), (9000, 1500, 1440), (9000, 9000, 8940)] {
        cluster.fabric.set_mtu(of_client, of_cluster).unwrap();
        for address in families() {
            (0..3).for_each(|node| cluster.tunnels(node, address));
            let segment = if address.contains(':') { segment - 40 } else { segment };
            eventually("segments are as large as fits", || {
                let sizes = cluster.fabric.nodes[0].run("nft", &["list", "ruleset"])?;
                ensure!(sizes.contains(&format!(" : {segment}")), "{sizes}");
                Ok(())
            })
            .unwrap();
            cluster.fabric.enter_by(parsed(address), 2).unwrap();
            for mut connection in cluster.connections(address, 6) {
                connection.echoes(400_000).unwrap();
            }
        }
        // By IPv6 only the sender may split datagrams.
        let largest = usize::try_from(of_client.min(of_cluster)).unwrap() - 28;
        for _ in 0..6 {
            client.flow(at(EXTERNAL[0], 80)).unwrap().ask_with(largest).unwrap();
        }
    }
}
