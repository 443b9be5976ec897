//! Weights that depend on distance and on time, and the connections that follow them.

use std::collections::BTreeMap;

use serde_json::json;

use super::balancing::{annotated, connect, shares};
use crate::support::cluster::{Cluster, Endpoint, NO_PERIOD, Service, V4, elsewhere, here, tcp};

/// An endpoint of each distance: on this node, on another one of its zone, and in another zone.
fn at_all_distances() -> [Endpoint; 3] {
    [here(1).in_zone("near"), here(2).on("neighbour").in_zone("near"), here(3).on("distant").in_zone("far")]
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn connections_stay_near_until_near_endpoints_are_busy() {
    let cluster = Cluster::start(3, &[NO_PERIOD]);
    let labels = json!({ "topology.kubernetes.io/zone": "near" });
    let metadata = json!({ "name": "node", "labels": labels });
    cluster.write_manifest("node", &json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata }));
    let by_distance = json!({ "kube-ipvs.io/weights-by-distance": "node=100,zone=10,other=1" });
    let web = annotated(Service::tcp(V4), &by_distance);
    let [node, zone, other] = at_all_distances();
    cluster.write(&web.clone().endpoints([node, zone.clone(), other.clone()]));
    for (pod, weight) in [(1, 100), (2, 10), (3, 1)] {
        cluster.weighs(tcp(V4, 80), pod, Some(weight));
    }
    let client = &cluster.lab.client;
    let (quiet, mut open) = connect(client, 9);
    assert_eq!(quiet, shares(&[("pod-1", 9)]), "below a tenth of 100 nothing leaves the node");
    let of = |seen: &BTreeMap<String, usize>, pod| seen.get(pod).copied().unwrap_or_default();
    let (busy, more) = connect(client, 97);
    open.extend(more);
    assert!((8..=10).contains(&of(&busy, "pod-2")), "a tenth leaves the node: {busy:?}");
    assert_eq!(of(&busy, "pod-3"), 0, "below ten times that nothing leaves the zone");
    let (busier, more) = connect(client, 111);
    open.extend(more);
    assert!((9..=11).contains(&of(&busier, "pod-2")), "in proportion: {busier:?}");
    assert!((1..=2).contains(&of(&busier, "pod-3")), "in proportion: {busier:?}");

    // The nearest goes, and then the zone: everything goes farther at once.
    cluster.write(&web.clone().endpoints([zone, other.clone()]));
    cluster.weighs(tcp(V4, 80), 1, Some(0));
    let (left, more) = connect(client, 11);
    open.extend(more);
    assert!(of(&left, "pod-1") == 0 && (9..=11).contains(&of(&left, "pod-2")), "{left:?}");
    cluster.write(&web.endpoints([other]));
    cluster.weighs(tcp(V4, 80), 2, Some(0));
    let (gone, _) = connect(client, 5);
    assert_eq!(gone, shares(&[("pod-3", 5)]));
    for connection in &mut open {
        connection.still_works().unwrap();
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_new_endpoint_beside_others_starts_slowly_and_a_restart_does_not_begin_anew() {
    let mut cluster = Cluster::start(2, &[NO_PERIOD]);
    let slowly = json!({ "kube-ipvs.io/scheduler": "lc", "kube-ipvs.io/slow-start": "10s" });
    let web = annotated(Service::tcp(V4), &slowly);
    cluster.write(&web.clone().endpoints([1]));
    cluster.weighs(tcp(V4, 80), 1, Some(100));
    cluster.write(&web.endpoints([1, 2]));
    cluster.weighs(tcp(V4, 80), 2, Some(10));
    let (seen, _open) = connect(&cluster.lab.client, 10);
    assert!(seen.get("pod-2").is_none_or(|of_new| *of_new <= 2), "lc alone would send all there: {seen:?}");
    cluster.weighs(tcp(V4, 80), 2, Some(100));
    cluster.weighs(tcp(V4, 80), 1, Some(100));
    cluster.restart(&[NO_PERIOD]);
    cluster.resync_writes_nothing();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn weight_0_takes_an_endpoint_out_and_keeps_its_connections() {
    let cluster = Cluster::start(2, &[NO_PERIOD]);
    let web = Service::tcp(V4).endpoints([here(1), elsewhere(2)]);
    cluster.apply(&web);
    let client = &cluster.lab.client;
    let (_, mut open) = connect(client, 4);
    cluster.write(&annotated(web, &json!({ "kube-ipvs.io/weights-by-node": "node=0" })));
    cluster.weighs(tcp(V4, 80), 1, Some(0));
    let (seen, _) = connect(client, 4);
    assert_eq!(seen, shares(&[("pod-2", 4)]));
    for connection in &mut open {
        connection.still_works().unwrap();
    }
    let status = cluster.daemon().ask(&cluster.lab.node, "status").unwrap();
    assert!(status.contains("draining:        0"), "{status}");
}
