//! Clients are spread as by any Service.

use std::collections::BTreeMap;

use anyhow::ensure;
use serde_json::json;
use testkit::daemon::eventually;

use super::cluster::{Cluster, all_still_work, by_pod, families, parsed, tunnelled};

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn weights_and_schedulers_count_as_for_any_service() {
    let weighted = json!({
        "kube-ipvs.io/forwarding-method": "tunnel",
        "kube-ipvs.io/weights-by-node": "node-1=9,node-2=1",
    });
    let cluster = Cluster::start(&[1, 1, 0], &weighted);
    for address in families() {
        (0..3).for_each(|node| cluster.tunnels(node, address));
        cluster.fabric.enter_by(parsed(address), 2).unwrap();
        let connections = cluster.connections(address, 60);
        assert!(by_pod(&connections)["pod-1"] > 40, "{:?}", by_pod(&connections));
    }
    let in_turn = json!({ "kube-ipvs.io/forwarding-method": "tunnel", "kube-ipvs.io/scheduler": "rr" });
    cluster.write("shop", &cluster.service(&in_turn));
    for address in families() {
        cluster.fabric.enter_by(parsed(address), 2).unwrap();
        let client = cluster.fabric.client.address(parsed(address));
        eventually("each pod gets every second connection", || {
            let scheduler = cluster.fabric.nodes[2].run("ipvsadm", &["-Ln"])?;
            ensure!(!scheduler.contains(" mh"), "{scheduler}");
            let connections = cluster.connections(address, 10);
            ensure!(by_pod(&connections) == BTreeMap::from([("pod-1", 5), ("pod-2", 5)]), "{connections:?}");
            ensure!(
                connections.iter().all(|connection| connection.answer.seen_as == client),
                "{connections:?}"
            );
            Ok(())
        })
        .unwrap();
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_pod_that_ends_keeps_its_connections_and_gets_no_new_ones() {
    let cluster = Cluster::start(&[1, 1, 0], &tunnelled());
    let mut open: Vec<_> = Vec::new();
    for address in families() {
        (0..3).for_each(|node| cluster.tunnels(node, address));
        cluster.fabric.enter_by(parsed(address), 2).unwrap();
        open.extend(cluster.connections(address, 20));
    }
    let mut items = cluster.service(&tunnelled());
    for slice in &mut items[1..] {
        slice["endpoints"][0]["conditions"] = json!({ "ready": false, "serving": true, "terminating": true });
    }
    cluster.write("shop", &items);
    for address in families() {
        eventually("new connections go to the other pod", || {
            let connections = cluster.connections(address, 20);
            ensure!(by_pod(&connections) == BTreeMap::from([("pod-2", 20)]), "{connections:?}");
            Ok(())
        })
        .unwrap();
    }
    assert_eq!(by_pod(&open).len(), 2);
    all_still_work(&mut open);
}
