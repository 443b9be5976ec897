//! Which endpoints each address of a Service uses: traffic policies, terminating endpoints, no endpoints, session
//! affinity.

use std::collections::BTreeSet;

use ipvs::{Protocol, ServiceAddress};
use serde_json::{Value, json};
use testkit::daemon::eventually;

use crate::support::cluster::{
    Cluster, Endpoint, NO_PERIOD, Service, V4, V6, are_dropped, are_refused, at, elsewhere, here,
};

/// Where the Service is reached in the cluster.
const INSIDE: [(&str, u16); 2] = [(V4, 80), (V6, 80)];

/// Where it is reached from outside: at its external addresses, the load balancer's, and a port of the node.
const OUTSIDE: [(&str, u16); 6] = [
    ("203.0.113.10", 80),
    ("2001:db8::10", 80),
    ("203.0.113.20", 80),
    ("2001:db8::20", 80),
    ("192.168.50.1", 30_080),
    ("fd00:50::1", 30_080),
];

/// A Service that is reached in all these ways by TCP and UDP, with some more fields in its `spec`.
fn exposed(fields: &Value) -> Service {
    let port = |name: &str, protocol: &str| json!({ "name": name, "protocol": protocol, "port": 80, "nodePort": 30_080 });
    let [external_v4, external_v6, balancer_v4, balancer_v6, ..] = OUTSIDE.map(|(ip, _)| ip);
    let spec = json!({
        "type": "LoadBalancer",
        "clusterIPs": INSIDE.map(|(ip, _)| ip),
        "externalIPs": [external_v4, external_v6],
        "ports": [port("tcp", "TCP"), port("udp", "UDP")],
    });
    let ingress = [balancer_v4, balancer_v6].map(|ip| json!({ "ip": ip }));
    Service::new("web", &spec)
        .patch(&json!({ "status": { "loadBalancer": { "ingress": ingress } }, "spec": fields }))
}

/// These addresses by TCP, and by UDP.
fn by_each_protocol(ways: &[(&str, u16)]) -> Vec<ServiceAddress> {
    let by = |protocol| {
        ways.iter().map(move |&(ip, port)| ServiceAddress { protocol, ip: ip.parse().unwrap(), port })
    };
    by(Protocol::Tcp).chain(by(Protocol::Udp)).collect()
}

/// Gives the Service these endpoints; then these pods, by number, and no others must answer inside and
/// outside the cluster.
fn check(
    cluster: &Cluster,
    service: &Service,
    endpoints: Vec<Endpoint>,
    inside: &[usize],
    outside: &[usize],
) {
    cluster.write(&service.clone().endpoints(endpoints));
    let ways = [(by_each_protocol(&INSIDE), inside), (by_each_protocol(&OUTSIDE), outside)];
    for (addresses, pods) in &ways {
        cluster.serves_all(&addresses.iter().map(|address| (*address, *pods)).collect::<Vec<_>>());
    }
    let lab = &cluster.lab;
    for (addresses, pods) in ways {
        if pods.is_empty() {
            are_refused(&[&lab.pods[2], &lab.node, &lab.client], &addresses);
            continue;
        }
        for address in addresses {
            let answers = pods.iter().map(|_| lab.client.ask_at(address).unwrap().from);
            assert_eq!(answers.collect::<BTreeSet<_>>(), cluster.names(pods), "{address}");
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn external_policy_local_uses_local_endpoints_and_leaves_the_cluster_ip_alone() {
    let cluster = Cluster::start(3, &[NO_PERIOD]);
    let web = exposed(&json!({ "externalTrafficPolicy": "Local" }));
    check(&cluster, &web, vec![here(1), elsewhere(2)], &[1, 2], &[1]);
    check(&cluster, &web, vec![here(1).terminating(), elsewhere(2)], &[2], &[1]);
    for (ip, port) in OUTSIDE {
        let answer = cluster.lab.client.ask(at(ip, port)).unwrap();
        assert_eq!(answer.seen_as, cluster.lab.client.address(ip.parse().unwrap()), "{ip}");
    }
    check(&cluster, &web, vec![], &[], &[]);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn without_a_local_endpoint_external_policy_local_serves_the_node_and_its_pods() {
    let cluster = Cluster::start(3, &[NO_PERIOD]);
    let web = exposed(&json!({ "externalTrafficPolicy": "Local" }));
    check(&cluster, &web, vec![here(1), elsewhere(2)], &[1, 2], &[1]);
    let lab = &cluster.lab;
    let mut open: Vec<_> = OUTSIDE.map(|(ip, port)| lab.client.connect(at(ip, port)).unwrap()).into();
    let flows: Vec<_> = OUTSIDE.map(|(ip, port)| lab.client.flow(at(ip, port)).unwrap()).into();
    for flow in &flows {
        assert_eq!(flow.ask().unwrap().from, "pod-1");
    }
    cluster.write(&web.clone().endpoints([elsewhere(2)]));
    let served = by_each_protocol(&OUTSIDE);
    cluster.serves_all(&served.iter().map(|address| (*address, &[2][..])).collect::<Vec<_>>());
    for address in &served {
        for host in [&lab.pods[2], &lab.node] {
            assert_eq!(host.ask_at(*address).unwrap().from, "pod-2", "{} at {address}", host.name);
        }
    }
    are_dropped(&[&lab.client], &served);
    // The pod that was here drains.
    for connection in &mut open {
        connection.still_works().unwrap();
    }
    // A flow of datagrams does not: it would go on to the pod elsewhere.
    for flow in &flows {
        eventually("the flow gets no answer", || {
            anyhow::ensure!(flow.ask().is_err());
            Ok(())
        })
        .unwrap();
    }
    cluster.write(&web.endpoints([here(1), elsewhere(2)]));
    cluster.serves_all(&served.iter().map(|address| (*address, &[1][..])).collect::<Vec<_>>());
    for address in served {
        eventually("the client is served", || lab.client.ask_at(address)).unwrap();
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_internal_policy_local_never_leaves_the_node_and_means_nothing_outside() {
    let cluster = Cluster::start(3, &[NO_PERIOD]);
    let web = exposed(&json!({ "internalTrafficPolicy": "Local" }));
    check(&cluster, &web, vec![here(1), elsewhere(2)], &[1], &[1, 2]);
    check(&cluster, &web, vec![here(1).terminating(), elsewhere(2)], &[1], &[2]);
    check(&cluster, &web, vec![elsewhere(2)], &[], &[2]);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn session_affinity_holds_at_every_address_and_is_changed_in_place() {
    let cluster = Cluster::start(2, &[NO_PERIOD]);
    let client = &cluster.lab.client;
    let web = exposed(&json!({})).endpoints([1, 2]);
    let ways = by_each_protocol(&[&INSIDE[..], &OUTSIDE[..]].concat());
    let all_are = |how: &str| {
        cluster.shows(how, |table| {
            ways.iter().all(|way| table.get(way).is_some_and(|server| server.how == how))
        });
    };
    let asked_four_times =
        |way: &ServiceAddress| (0..4).map(|_| client.ask_at(*way).unwrap().from).collect::<BTreeSet<_>>();

    cluster.apply(&web.clone().affinity(600));
    all_are("rr persistent 600");
    cluster.serves_all(&ways.iter().map(|way| (*way, &[1, 2][..])).collect::<Vec<_>>());
    for way in &ways {
        assert_eq!(asked_four_times(way).len(), 1, "{way}");
    }
    let mut connections = OUTSIDE.map(|(ip, port)| client.connect(at(ip, port)).unwrap());

    // What ipvsadm does not show is as it should be: no flags, and one address a client.
    let saved = cluster.lab.node.run("ipvsadm", &["-Sn"]).unwrap();
    for line in ["-A -t 10.96.0.10:80 -s rr -p 600", "-A -t [fd00:96::10]:80 -s rr -p 600"] {
        assert!(saved.lines().any(|it| it.trim_end() == line), "{saved}");
    }

    cluster.write(&web.clone().affinity(60));
    all_are("rr persistent 60");
    cluster.write(&web);
    all_are("rr");
    for way in &ways {
        assert_eq!(asked_four_times(way).len(), 2, "{way}");
    }
    for connection in &mut connections {
        connection.still_works().unwrap();
    }
}
