//! Five nodes behind a router that spreads packets over them, as one that learns the addresses by BGP does.

use std::{thread, time::Duration};

use serde_json::json;
use testkit::lab::Target;

use super::cluster::{Cluster, all_still_work, families, parsed, tunnelled};
use crate::support::{
    cluster::at,
    traffic::{is_whole, start},
};

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn nothing_is_lost_while_entrances_die_routes_change_a_pod_ends_and_daemons_die() {
    let mut cluster = Cluster::start(&[1, 1, 1, 0, 0], &tunnelled());
    for address in families() {
        (0..5).for_each(|node| cluster.tunnels(node, address));
    }
    let route = |cluster: &Cluster, nodes: &[usize]| {
        for address in families() {
            cluster.fabric.enter_by_any(parsed(address), nodes).unwrap();
        }
    };
    route(&cluster, &[0, 1, 2, 3, 4]);
    let client = &cluster.fabric.client;
    let targets: Vec<_> = families()
        .map(|address| Target {
            name: address.to_owned(),
            from: client,
            to: at(address, 80),
            seen_as: [client.address(parsed(address))].into(),
        })
        .collect();
    let load = start(&targets);
    let mut open: Vec<_> = families().flat_map(|address| cluster.connections(address, 40)).collect();
    // Two short connections to each target, and several datagrams.
    let moment = Duration::from_millis(250) + Duration::from_secs(2 * 2) / load.rate;
    let mut still_work = || {
        thread::sleep(moment);
        all_still_work(&mut open);
    };
    let mut enter_by = |cluster: &Cluster, nodes: &[usize]| {
        route(cluster, nodes);
        still_work();
    };

    // One entrance after the other dies, those with pods aside.
    cluster.fabric.cut_off(4).unwrap();
    enter_by(&cluster, &[0, 1, 2, 3]);
    cluster.fabric.cut_off(3).unwrap();
    enter_by(&cluster, &[0, 1, 2]);
    // The router chooses anew.
    enter_by(&cluster, &[2, 0]);
    enter_by(&cluster, &[1]);
    // A pod ends.
    let mut items = cluster.service(&tunnelled());
    for slice in &mut items[1..] {
        slice["endpoints"][2]["conditions"] = json!({ "ready": false, "serving": true, "terminating": true });
    }
    cluster.write("shop", &items);
    for (node, address) in (0..5).flat_map(|node| families().map(move |address| (node, address))) {
        cluster.leaves_out_one(node, address);
    }
    still_work();
    // All daemons are killed, and come back.
    (0..5).for_each(|node| cluster.kill(node));
    still_work();
    (0..5).for_each(|node| cluster.run(node));
    cluster.sync_in_full(0..5);
    still_work();
    is_whole(load);
}
