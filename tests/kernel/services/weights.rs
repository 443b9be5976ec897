//! Weights that depend on distance and on time, and the connections that follow them.

use serde_json::json;

use super::balancing::{annotated, connect, shares};
use crate::support::cluster::{Cluster, NO_PERIOD, Service, V4, elsewhere, here, tcp};

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn connections_stay_near_until_near_endpoints_are_busy() {
    let cluster = Cluster::start(2, &[NO_PERIOD]);
    let by_distance = json!({ "kube-ipvs.io/weights-by-distance": "node=10,zone=5,other=1" });
    let web = annotated(Service::tcp(V4), &by_distance);
    cluster.write(&web.clone().endpoints([here(1), elsewhere(2)]));
    cluster.weighs(tcp(V4, 80), 1, Some(10));
    cluster.weighs(tcp(V4, 80), 2, Some(1));
    let client = &cluster.lab.client;
    let (quiet, mut open) = connect(client, 9);
    assert_eq!(quiet, shares(&[("pod-1", 9)]), "nothing leaves the node");
    let (busy, more) = connect(client, 35);
    open.extend(more);
    let far = busy.get("pod-2").copied().unwrap_or_default();
    assert!((3..=5).contains(&far), "a tenth goes elsewhere: {busy:?}");

    // The near one goes: everything goes far at once.
    cluster.write(&web.endpoints([elsewhere(2)]));
    cluster.weighs(tcp(V4, 80), 1, Some(0));
    let (gone, _) = connect(client, 5);
    assert_eq!(gone, shares(&[("pod-2", 5)]));
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
