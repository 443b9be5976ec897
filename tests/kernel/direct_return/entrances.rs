//! What outlives a change of the node by which packets come in.

use std::net::SocketAddr;

use anyhow::ensure;
use ipvs::ServiceAddress;
use serde_json::json;
use testkit::{
    daemon::eventually,
    lab::{Lab, Manner},
};

use super::cluster::{Cluster, EXTERNAL, all_still_work, by_pod, families, parsed, tunnelled};
use crate::support::cluster::at;

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn open_connections_outlive_every_change_of_their_entrance_and_pods_see_the_client() {
    let cluster = Cluster::start(&[1, 1, 1, 0], &tunnelled());
    for address in families() {
        (0..4).for_each(|node| cluster.tunnels(node, address));
        cluster.fabric.enter_by(parsed(address), 3).unwrap();
        let mut connections = cluster.connections(address, 60);
        let counts = by_pod(&connections);
        assert_eq!(counts.len(), 3, "{counts:?}");
        let client = cluster.fabric.client.address(parsed(address));
        assert!(connections.iter().all(|connection| connection.answer.seen_as == client), "{connections:?}");
        cluster.counts(3, address, "sent", 60);
        cluster.counts(0, address, "received", 20);
        for entrance in [0, 1, 2, 3] {
            cluster.fabric.enter_by(parsed(address), entrance).unwrap();
            let broken: Vec<_> =
                connections.iter_mut().filter_map(|connection| connection.still_works().err()).collect();
            assert!(broken.is_empty(), "by node {entrance} {} broke: {:?}", broken.len(), broken[0]);
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_client_is_led_to_the_same_pod_by_every_node_and_protocol() {
    let cluster = Cluster::start(&[1, 1, 1, 0], &tunnelled());
    for address in families() {
        (0..4).for_each(|node| cluster.tunnels(node, address));
        for protocol in Lab::protocols() {
            let service = ServiceAddress { protocol, ip: parsed(address), port: 80 };
            // A port of its own for each connection: a closed one of the other family may still keep it.
            let first = if service.ip.is_ipv4() { 40_000 } else { 41_000 };
            for port in first..first + 8 {
                let source = SocketAddr::new(cluster.fabric.client.address(service.ip), port);
                let by_node = (0..4).map(|entrance| {
                    cluster.fabric.enter_by(service.ip, entrance).unwrap();
                    let manner = Manner { source: Some(source), ..Manner::default() };
                    cluster.fabric.client.ask_in(manner, service).unwrap()
                });
                let by_node: Vec<_> = by_node.collect();
                assert!(by_node.iter().all(|answer| *answer == by_node[0]), "{service}, {port}: {by_node:?}");
                assert_eq!(by_node[0].seen_as, source.ip());
            }
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn datagrams_of_one_flow_reach_one_pod_by_every_node() {
    let cluster = Cluster::start(&[1, 1, 1, 0], &tunnelled());
    for address in families() {
        (0..4).for_each(|node| cluster.tunnels(node, address));
        for _ in 0..8 {
            let flow = cluster.fabric.client.flow(at(address, 80)).unwrap();
            let by_node = (0..4).map(|entrance| {
                cluster.fabric.enter_by(parsed(address), entrance).unwrap();
                flow.ask().unwrap()
            });
            let by_node: Vec<_> = by_node.collect();
            assert!(by_node.iter().all(|answer| *answer == by_node[0]), "{by_node:?}");
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_client_with_session_affinity_stays_at_its_pod_by_every_node() {
    let cluster = Cluster::start(&[1, 1, 1, 0], &tunnelled());
    let mut items = cluster.service(&tunnelled());
    items[0]["spec"]["sessionAffinity"] = json!("ClientIP");
    cluster.write("shop", &items);
    for address in families() {
        (0..4).for_each(|node| cluster.tunnels(node, address));
        eventually("all nodes choose one pod", || {
            let mut connections = Vec::new();
            for entrance in 0..4 {
                cluster.fabric.enter_by(parsed(address), entrance)?;
                connections.extend(cluster.connections(address, 8));
            }
            let counts = by_pod(&connections);
            ensure!(counts.len() == 1, "{counts:?}");
            Ok(())
        })
        .unwrap();
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn connections_outlive_the_daemons_and_a_restart_writes_nothing() {
    let mut cluster = Cluster::start(&[1, 1, 0], &tunnelled());
    let [address, _] = EXTERNAL;
    (0..3).for_each(|node| cluster.tunnels(node, address));
    cluster.fabric.enter_by(parsed(address), 2).unwrap();
    let mut connections = cluster.connections(address, 20);
    (0..3).for_each(|node| cluster.kill(node));
    all_still_work(&mut connections);
    cluster.fabric.enter_by(parsed(address), 0).unwrap();
    all_still_work(&mut connections);
    for node in 0..3 {
        cluster.run(node);
        let report = eventually("the daemon has synced", || {
            let status = cluster.daemon(node).status(&cluster.fabric.nodes[node])?;
            ensure!(status["last_full_sync"].is_object(), "{status:#}");
            Ok(status["last_full_sync"]["report"].clone())
        })
        .unwrap();
        assert_eq!((&report["trigger"], &report["done"]), (&json!("start"), &json!(0)), "{report:#}");
    }
    (0..3).for_each(|node| cluster.tunnels(node, address));
    all_still_work(&mut connections);
}
