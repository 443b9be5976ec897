//! Tunnels by UDP, for networks that let only TCP and UDP pass.

use serde_json::json;

use super::cluster::{Cluster, all_still_work, by_pod, families, parsed, tunnelled};

const GUE: &str = "--tunnel=gue";
const PERIOD: &str = "--ipvs-sync-period=2s";

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn direct_return_works_where_only_tcp_and_udp_pass_with_large_packets_too() {
    let mut cluster = Cluster::without_daemons(&[1, 1, 1, 0], &tunnelled());
    (0..4).for_each(|node| cluster.run_with(node, &[GUE, PERIOD]));
    let filter = "add table inet filter
        add chain inet filter forward { type filter hook forward priority 0; }
        add rule inet filter forward meta l4proto { 4, 41 } drop";
    cluster.fabric.router.run("nft", &[filter]).unwrap();
    let mut open = Vec::new();
    for address in families() {
        (0..4).for_each(|node| cluster.tunnels(node, address));
        cluster.fabric.enter_by(parsed(address), 3).unwrap();
        let mut connections = cluster.connections(address, 30);
        assert_eq!(by_pod(&connections).len(), 3, "{address}");
        let client = cluster.fabric.client.address(parsed(address));
        assert!(connections.iter().all(|connection| connection.answer.seen_as == client), "{connections:?}");
        for entrance in [0, 1, 3] {
            cluster.fabric.enter_by(parsed(address), entrance).unwrap();
            all_still_work(&mut connections);
        }
        connections.iter_mut().take(6).for_each(|connection| connection.echoes(400_000).unwrap());
        open.extend(connections);
    }
    // What is open goes on by UDP where the Service is masqueraded again.
    cluster.write("shop", &cluster.service(&json!({})));
    (0..4).for_each(|node| families().for_each(|address| cluster.masquerades(node, address)));
    all_still_work(&mut open);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn nodes_with_and_without_it_reach_each_other_and_it_goes_with_the_last_service() {
    let mut cluster = Cluster::without_daemons(&[1, 1, 0], &tunnelled());
    cluster.run_with(0, &[PERIOD]);
    cluster.run_with(1, &[GUE, PERIOD]);
    cluster.run_with(2, &[GUE, PERIOD]);
    for address in families() {
        (0..3).for_each(|node| cluster.tunnels(node, address));
        let client = cluster.fabric.client.address(parsed(address));
        for entrance in 0..3 {
            cluster.fabric.enter_by(parsed(address), entrance).unwrap();
            let connections = cluster.connections(address, 10);
            assert_eq!(by_pod(&connections).len(), 2, "{address} by node {entrance}");
            assert!(connections.iter().all(|connection| connection.answer.seen_as == client));
        }
    }
    let ports =
        |node: usize| cluster.fabric.nodes[node].run("ss", &["-Hlun", "sport", "=", ":6080"]).unwrap();
    assert_eq!([0, 1, 2].map(|node| ports(node).lines().count()), [0, 2, 2]);
    cluster.write("shop", &cluster.service(&json!({})));
    (0..3).for_each(|node| families().for_each(|address| cluster.masquerades(node, address)));
    // Node 3 has no pods, so nothing has come out of its tunnels.
    testkit::daemon::eventually("its ports are closed", || {
        anyhow::ensure!(ports(2).is_empty(), "{}", ports(2));
        Ok(())
    })
    .unwrap();
}
