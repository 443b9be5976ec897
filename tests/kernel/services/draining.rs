//! Removed endpoints: their connections drain, and new ones lead to others.

use ipvs::{Protocol, ServiceAddress};
use serde_json::{Value, json};
use testkit::{
    daemon::eventually,
    lab::{Connection, Lab},
};

use crate::support::cluster::{Cluster, NO_PERIOD, Service, V4, at, tcp};

/// A connection to each endpoint, in the order of the pods: round robin leads to each in turn.
fn connect_to_each(cluster: &Cluster, pods: usize) -> Vec<Connection> {
    let mut connections: Vec<_> =
        (0..pods).map(|_| cluster.lab.client.connect(at(V4, 80)).unwrap()).collect();
    connections.sort_by_key(|connection| connection.answer.from.clone());
    let names: Vec<_> = connections.iter().map(|connection| connection.answer.from.clone()).collect();
    assert!(names.iter().eq(cluster.lab.pods[..pods].iter().map(|pod| &pod.name)), "{names:?}");
    connections
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_real_server_drains_until_its_last_connection_ended_across_a_restart() {
    let mut cluster = Cluster::start(3, &[NO_PERIOD]);
    // IPVS forgets a connection a second after the server has closed it.
    cluster.lab.node.run("ipvsadm", &["--set", "0", "1", "0"]).unwrap();
    let web = Service::tcp(V4);
    cluster.apply(&web.clone().endpoints([1, 2, 3]));
    let mut connections = connect_to_each(&cluster, 3);

    cluster.write(&web.endpoints([1]));
    cluster.weighs(tcp(V4, 80), 2, Some(0));
    cluster.weighs(tcp(V4, 80), 3, Some(0));
    for _ in 0..4 {
        assert_eq!(cluster.lab.client.ask(at(V4, 80)).unwrap().from, "pod-1");
    }
    for connection in &mut connections {
        connection.still_works().unwrap();
    }
    connections[1].server_closes().unwrap();
    cluster.weighs(tcp(V4, 80), 2, None);
    cluster.weighs(tcp(V4, 80), 3, Some(0));

    cluster.restart(&[NO_PERIOD]);
    connections[2].still_works().unwrap();
    cluster.weighs(tcp(V4, 80), 3, Some(0));
    connections[2].server_closes().unwrap();
    cluster.weighs(tcp(V4, 80), 3, None);
    connections[0].still_works().unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_connection_through_a_node_port_drains_there_alone() {
    let cluster = Cluster::start(2, &[NO_PERIOD]);
    let client = &cluster.lab.client;
    let node_port = json!({ "spec": { "type": "NodePort", "ports": [{ "port": 80, "nodePort": 30_080 }] } });
    let web = Service::tcp(V4).patch(&node_port);
    cluster.apply(&web.clone().endpoints([2]));
    cluster.serves(tcp("192.168.50.1", 30_080), &[2]);
    let mut connection = client.connect(at("192.168.50.1", 30_080)).unwrap();
    cluster.write(&web.endpoints([1]));
    cluster.weighs(tcp(V4, 80), 2, None);
    cluster.serves(tcp("192.168.50.1", 30_080), &[1]);
    connection.still_works().unwrap();
    assert_eq!(client.ask(at("192.168.50.1", 30_080)).unwrap().from, "pod-1");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_real_server_without_connections_is_deleted() {
    let cluster = Cluster::start(2, &[NO_PERIOD]);
    let web = Service::tcp(V4);
    cluster.apply(&web.clone().endpoints([1, 2]));
    cluster.write(&web.endpoints([1]));
    cluster.weighs(tcp(V4, 80), 2, None);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_wanted_real_server_left_at_weight_0_by_an_earlier_daemon_is_restored() {
    let mut cluster = Cluster::start(1, &[NO_PERIOD]);
    cluster.apply(&Service::tcp(V4).endpoints([1]));
    let at_weight_0 = ["-e", "-t", "10.96.0.10:80", "-r", "10.244.1.2:8080", "-m", "-w", "0"];
    cluster.lab.node.run("ipvsadm", &at_weight_0).unwrap();
    cluster.restart(&[NO_PERIOD]);
    cluster.serves(tcp(V4, 80), &[1]);
    assert_eq!(cluster.lab.client.ask(at(V4, 80)).unwrap().from, "pod-1");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_limit_on_draining_removes_a_real_server_with_its_connections() {
    let cluster = Cluster::start(2, &[NO_PERIOD, "--drain-timeout=3s"]);
    let web = Service::tcp(V4);
    cluster.apply(&web.clone().endpoints([1, 2]));
    let mut connections = connect_to_each(&cluster, 2);
    cluster.write(&web.endpoints([1]));
    cluster.weighs(tcp(V4, 80), 2, None);
    connections[1].still_works().unwrap_err();
    connections[0].still_works().unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn udp_and_sctp_real_servers_are_deleted_at_once_and_new_packets_go_elsewhere() {
    let cluster = Cluster::start(2, &[NO_PERIOD]);
    let client = &cluster.lab.client;
    let ports: Value =
        ["UDP", "SCTP"].map(|it| json!({ "name": it, "protocol": it, "port": 80 })).into_iter().collect();
    let web = Service::new("web", &json!({ "clusterIPs": [V4], "ports": ports }));
    cluster.apply(&web.clone().endpoints([1]));
    let flow = client.flow(at(V4, 80)).unwrap();
    assert_eq!(flow.ask().unwrap().from, "pod-1");
    let sctp = Lab::protocols().contains(&Protocol::Sctp);
    let association = sctp.then(|| client.associate(at(V4, 80)).unwrap());

    cluster.write(&web.endpoints([2]));
    for protocol in [Protocol::Udp, Protocol::Sctp] {
        let address = ServiceAddress { protocol, ..tcp(V4, 80) };
        cluster.serves(address, &[2]);
        cluster.weighs(address, 1, None);
    }
    let answer = eventually("the same socket reaches the other pod", || flow.ask()).unwrap();
    assert_eq!(answer.from, "pod-2");
    match association {
        None => println!("ABSENT: this kernel has no SCTP"),
        Some(mut association) => {
            association.still_works().unwrap_err();
            assert_eq!(client.associate(at(V4, 80)).unwrap().answer.from, "pod-2");
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_client_with_session_affinity_leaves_a_real_server_that_drains() {
    let cluster = Cluster::start(2, &[NO_PERIOD]);
    let client = &cluster.lab.client;
    let web = Service::tcp(V4).affinity(600);
    cluster.apply(&web.clone().endpoints([1, 2]));
    let mut connection = client.connect(at(V4, 80)).unwrap();
    let (left, stays) = if connection.answer.from == "pod-1" { (1, 2) } else { (2, 1) };
    cluster.write(&web.clone().endpoints([stays]));
    cluster.weighs(tcp(V4, 80), left, Some(0));
    for _ in 0..3 {
        assert_eq!(client.ask(at(V4, 80)).unwrap().from, cluster.lab.pods[stays - 1].name);
    }
    connection.still_works().unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_client_that_uses_its_port_again_is_not_led_to_a_real_server_that_drains() {
    let cluster = Cluster::start(2, &[NO_PERIOD]);
    let client = &cluster.lab.client;
    let connect_from = |port| client.connect_from(at("0.0.0.0", port), at(V4, 80));
    let web = Service::tcp(V4);
    cluster.apply(&web.clone().endpoints([2]));
    let mut keeps_draining = client.connect(at(V4, 80)).unwrap();
    let mut closed = connect_from(40_000).unwrap();
    let reset = connect_from(40_001).unwrap();
    cluster.write(&web.clone().endpoints([1]));
    cluster.weighs(tcp(V4, 80), 2, Some(0));

    closed.server_closes().unwrap();
    drop(closed);
    reset.reset().unwrap();
    for port in [40_000, 40_001] {
        // The port is free as soon as the server has answered to the last FIN.
        let again = eventually("the port connects again", || connect_from(port)).unwrap();
        assert_eq!(again.answer.from, "pod-1", "from {port}");
    }
    keeps_draining.still_works().unwrap();
    cluster.weighs(tcp(V4, 80), 2, Some(0));
}
