//! Services from a directory reach their endpoints, with real packets through the real kernel.

use std::collections::BTreeSet;

use serde_json::json;
use testkit::daemon::eventually;

use crate::support::cluster::{Cluster, Service, V4, V6};

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn requests_from_pods_the_node_and_outside_reach_both_endpoints_in_turn() {
    let cluster = Cluster::start(3, &[]);
    for vip in [V4, V6] {
        let web = Service::tcp(vip).endpoints([1, 2]);
        cluster.apply(&web);
        let lab = &cluster.lab;
        for host in [&lab.client, &lab.node, &lab.pods[2]] {
            let answers: BTreeSet<_> = (0..4).map(|_| host.ask(web.address()).unwrap().from).collect();
            assert_eq!(answers, cluster.names(&[1, 2]), "{} asked {vip}", host.name);
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn udp_and_sctp_virtual_servers_stand_beside_tcp() {
    let cluster = Cluster::start(1, &[]);
    let port = |name: &str, protocol: &str| json!({ "name": name, "protocol": protocol, "port": 80 });
    let ports = [port("dns", "UDP"), port("dns-tcp", "TCP"), port("x", "SCTP")];
    cluster.apply(&Service::new("dns", &json!({ "clusterIPs": [V4], "ports": ports })).endpoints([1]));
    let table = cluster.ipvsadm("the three protocols", |table| {
        ["TCP  ", "UDP  ", "SCTP "].iter().all(|protocol| table.contains(&format!("{protocol}{V4}:80 rr")))
    });
    assert_eq!(table.matches("-> 10.244.1.2:8080").count(), 3, "{table}");
    assert_eq!(
        cluster.lab.client.ask_udp((V4.parse::<std::net::IpAddr>().unwrap(), 80).into()).unwrap().from,
        "pod-1"
    );
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn clients_outside_are_masqueraded_and_pods_keep_their_address() {
    let cluster = Cluster::start(2, &[]);
    let lab = &cluster.lab;
    for (vip, pod) in [(V4, "10.244.2.2"), (V6, "fd00:10:244:2::2")] {
        let web = Service::tcp(vip).endpoints([1]);
        cluster.apply(&web);
        let seen = |host: &testkit::lab::Host| host.ask(web.address()).unwrap().seen_as;
        assert_eq!(seen(&lab.pods[1]), pod.parse::<std::net::IpAddr>().unwrap(), "a local pod");
        let gateway = if vip == V4 { "10.244.1.1" } else { "fd00:10:244:1::1" };
        let gateway: std::net::IpAddr = gateway.parse().unwrap();
        assert_eq!(seen(&lab.client), gateway, "a client outside");
        assert_eq!(seen(&lab.node), gateway, "the node");
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_pod_reaches_itself_through_its_service() {
    let cluster = Cluster::start(1, &[]);
    for vip in [V4, V6] {
        let web = Service::tcp(vip).endpoints([1]);
        cluster.apply(&web);
        assert_eq!(cluster.lab.pods[0].ask(web.address()).unwrap().from, "pod-1");
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_service_without_endpoints_refuses_connections() {
    let cluster = Cluster::start(1, &[]);
    let empty = Service::tcp(V4);
    cluster.apply(&empty);
    cluster.ipvsadm("the virtual server", |table| table.contains(V4));
    let error = format!("{:#}", cluster.lab.client.ask(empty.address()).unwrap_err());
    assert!(error.contains("refused"), "{error}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn session_affinity_keeps_a_client_s_endpoint_and_can_be_switched_off_in_place() {
    let cluster = Cluster::start(2, &[]);
    let web = Service::tcp(V4).endpoints([1, 2]);
    cluster.apply(&web.clone().affinity(600));
    cluster.ipvsadm("persistence", |table| table.contains(&format!("{V4}:80 rr persistent 600")));
    let answers: BTreeSet<_> = (0..5).map(|_| cluster.lab.client.ask(web.address()).unwrap().from).collect();
    assert_eq!(answers.len(), 1, "{answers:?}");
    cluster.apply(&web);
    cluster.ipvsadm("no persistence", |table| table.contains(V4) && !table.contains("persistent"));
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_connection_survives_the_removal_of_its_endpoint_and_no_new_one_goes_there() {
    let cluster = Cluster::start(2, &[]);
    let web = Service::tcp(V4).endpoints([1, 2]);
    cluster.apply(&web);
    let mut connections: Vec<_> =
        (0..2).map(|_| cluster.lab.client.connect(web.address()).unwrap()).collect();
    cluster.apply(&Service::tcp(V4).endpoints([1]));
    cluster.ipvsadm("weight 0", |table| {
        table.lines().any(|line| {
            let columns: Vec<_> = line.split_whitespace().collect();
            matches!(columns.as_slice(), ["->", "10.244.2.2:8080", "Masq", "0", ..])
        })
    });
    for connection in &mut connections {
        connection.still_works().unwrap();
    }
    for _ in 0..4 {
        assert_eq!(cluster.lab.client.ask(web.address()).unwrap().from, "pod-1");
    }
    cluster.apply(&web);
    cluster.ipvsadm("both at weight 1", |table| {
        table.matches("Masq    1").count() == 2 && !table.contains("Masq    0")
    });
    for connection in &mut connections {
        connection.still_works().unwrap();
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_deleted_service_leaves_nothing_behind() {
    let cluster = Cluster::start(1, &[]);
    let web = Service::tcp(V4).endpoints([1]);
    cluster.apply(&web);
    cluster.ipvsadm("the Service", |table| table.contains(V4));
    cluster.delete(&web);
    cluster.ipvsadm("nothing", |table| !table.contains("->  ") && !table.contains(V4));
    let node = &cluster.lab.node;
    eventually("the address is gone", || {
        let addresses = node.run("ip", &["addr", "show", "dev", "kube-ipvs0"])?;
        anyhow::ensure!(!addresses.contains(V4), "{addresses}");
        Ok(())
    })
    .unwrap();
    let ruleset = node.run("nft", &["list", "ruleset"]).unwrap();
    assert!(!ruleset.contains(V4), "{ruleset}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn route_binding_serves_both_families_and_keeps_the_nodes_source_address() {
    let cluster = Cluster::start(1, &["--vip-binding=route"]);
    for vip in [V4, V6] {
        let web = Service::tcp(vip).endpoints([1]);
        cluster.apply(&web);
        for host in [&cluster.lab.client, &cluster.lab.node, &cluster.lab.pods[0]] {
            assert_eq!(host.ask(web.address()).unwrap().from, "pod-1", "{} asked {vip}", host.name);
        }
    }
    let addresses = cluster.lab.node.run("ip", &["addr", "show", "dev", "kube-ipvs0"]).unwrap();
    assert!(!addresses.contains("inet"), "{addresses}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn every_scheduler_can_be_chosen_and_a_change_edits_in_place() {
    let mut cluster = Cluster::start(2, &[]);
    let web = Service::tcp(V4).endpoints([1, 2]);
    cluster.apply(&web);
    let mut connection = cluster.lab.client.connect(web.address()).unwrap();
    for scheduler in ["wrr", "lc", "sh", "mh"] {
        cluster.restart(&["--ipvs-scheduler", scheduler]);
        cluster.ipvsadm(scheduler, |table| table.contains(&format!("{V4}:80 {scheduler}")));
        connection.still_works().unwrap();
    }
}

/// A Service with so many endpoints, most of which do not exist, a hundred to a slice. The first is a pod.
fn large(cluster: &Cluster, slices: usize, last_of_the_last: &str) {
    for number in 0..slices {
        let mut addresses: Vec<_> = (0..100).map(|pod| format!("10.245.{number}.{pod}")).collect();
        if number == 0 {
            addresses[0] = cluster.lab.pods[0].ipv4.to_string();
        }
        if number == slices - 1 {
            last_of_the_last.clone_into(&mut addresses[99]);
        }
        let endpoints: Vec<_> = addresses
            .iter()
            .map(|address| json!({"addresses": [address], "conditions": {"ready": true}}))
            .collect();
        let name = format!("large-{number}");
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"namespace": "default", "name": name, "labels": {"kubernetes.io/service-name": "large"}},
            "ports": [{"port": 8080}], "endpoints": endpoints,
        });
        cluster.write_manifest(&name, &slice);
    }
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": "large"},
        "spec": {"clusterIP": V4, "clusterIPs": [V4], "ports": [{"port": 80, "targetPort": 8080}]},
    });
    cluster.write_manifest("large", &service);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn one_changed_endpoint_of_five_thousand_is_a_few_operations() {
    let cluster = Cluster::start(1, &["-v=4"]);
    let real_servers =
        |table: &str| table.lines().filter(|line| line.contains("->") && line.contains("Masq")).count();
    large(&cluster, 50, "10.246.0.1");
    cluster
        .ipvsadm("five thousand", |table| real_servers(table) == 5_000 && table.contains("10.246.0.1:8080"));
    large(&cluster, 50, "10.246.0.2");
    let changed = |table: &str| table.contains("10.246.0.2:8080") && !table.contains("10.246.0.1:8080");
    cluster.ipvsadm("another one", |table| changed(table) && real_servers(table) == 5_000);
    let last = cluster.daemon().status(&cluster.lab.node).unwrap()["last_sync"]["report"].clone();
    // Added; weight 0; removed.
    assert_eq!((&last["done"], &last["failed"]), (&json!(3), &json!(0)), "{last}");
}
