//! Five nodes behind a router that spreads packets over them, as one that learns the addresses by BGP does.

use std::{thread, time::Duration};

use serde_json::json;
use testkit::lab::Target;

use super::cluster::{Cluster, all_still_work, families, parsed, tunnelled};
use crate::support::{
    cluster::at,
    traffic::{is_whole, start},
};

/// What happens between two changes is more than one short connection and one datagram.
const MOMENT: Duration = Duration::from_secs(2);

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn nothing_is_lost_while_entrances_die_routes_change_a_pod_ends_and_daemons_die() {
    let mut cluster = Cluster::start(&[1, 1, 1, 0, 0], &tunnelled());
    for address in families() {
        (0..5).for_each(|node| cluster.tunnels(node, address));
    }
    let enter_by = |cluster: &Cluster, nodes: &[usize]| {
        for address in families() {
            cluster.fabric.enter_by_any(parsed(address), nodes).unwrap();
        }
        thread::sleep(MOMENT);
    };
    enter_by(&cluster, &[0, 1, 2, 3, 4]);
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
    let mut still_work = || all_still_work(&mut open);

    // One entrance after the other dies, those with pods aside.
    cluster.fabric.cut_off(4).unwrap();
    enter_by(&cluster, &[0, 1, 2, 3]);
    still_work();
    cluster.fabric.cut_off(3).unwrap();
    enter_by(&cluster, &[0, 1, 2]);
    still_work();
    // The router chooses anew.
    enter_by(&cluster, &[2, 0]);
    still_work();
    enter_by(&cluster, &[1]);
    still_work();
    // A pod ends.
    let mut items = cluster.service(&tunnelled());
    for slice in &mut items[1..] {
        slice["endpoints"][2]["conditions"] = json!({ "ready": false, "serving": true, "terminating": true });
    }
    cluster.write("shop", &items);
    thread::sleep(MOMENT);
    still_work();
    // All daemons are killed, and come back.
    (0..5).for_each(|node| cluster.kill(node));
    thread::sleep(MOMENT);
    still_work();
    (0..5).for_each(|node| cluster.run(node));
    thread::sleep(MOMENT);
    still_work();
    is_whole(load);
}
