//! The way of a connection's packets through the node, hook by hook, as docs/evidence/packets.md draws it.
//!
//! The drawing is what people read there, and what the test asserts: in Rust it would be written twice.

mod drawing;
mod sighting;
mod tracer;

use std::{
    io::ErrorKind,
    net::{IpAddr, TcpListener, TcpStream},
    time::Duration,
};

use serde_json::{Value, json};
use testkit::lab::Host;

use self::{drawing::draw, tracer::Tracer};
use crate::support::cluster::{Cluster, Service, V4, V6, at};

/// The page with the drawings.
const DOCUMENT: &str = include_str!("../../../docs/evidence/packets.md");

/// How long a client waits that may get no answer. It asks again after one second.
const PATIENCE: Duration = Duration::from_secs(3);

/// An address in each family.
type Addresses = [&'static str; 2];

const CLUSTER_IP: Addresses = [V4, V6];
/// The ClusterIP of a Service whose endpoint is the node.
const TO_THE_NODE: Addresses = ["10.96.0.11", "fd00:96::11"];
/// A load balancer's, with the external policy Local.
const LOCAL: Addresses = ["198.51.100.1", "2001:db8:1::1"];
/// A load balancer's that clients may reach who are not in the lab.
const RESTRICTED: Addresses = ["198.51.100.2", "2001:db8:1::2"];
const NODE: Addresses = ["192.168.50.1", "fd00:50::1"];

/// A node with a Service for each way that packets may take.
struct Node {
    cluster: Cluster,
    tracer: Tracer,
    /// What answers on the node itself.
    _server: TcpListener,
}

impl Node {
    fn new() -> Self {
        let cluster = Cluster::start(2, &[]);
        let server = cluster.lab.node.inside(|| TcpListener::bind("[::]:8080")).unwrap().unwrap();
        let ports = json!([{ "port": 80 }]);
        let balanced = |name, vips: Addresses, fields: &Value, at: Addresses| {
            let ingress = at.map(|ip| json!({ "ip": ip }));
            Service::new(name, &json!({ "type": "LoadBalancer", "clusterIPs": vips, "ports": ports }))
                .patch(&json!({ "spec": fields, "status": { "loadBalancer": { "ingress": ingress } } }))
                .endpoints([2])
        };
        cluster
            .write(&Service::new("web", &json!({ "clusterIPs": CLUSTER_IP, "ports": ports })).endpoints([2]));
        let policy = json!({ "externalTrafficPolicy": "Local" });
        cluster.write(&balanced("local", ["10.96.0.12", "fd00:96::12"], &policy, LOCAL));
        // Unlike every source here in its first octets: some kernels overlook the sixth (docs/evidence/kernel.md).
        let ranges = json!({ "loadBalancerSourceRanges": ["203.0.113.0/24", "fd00:203::/32"] });
        cluster.write(&balanced("restricted", ["10.96.0.13", "fd00:96::13"], &ranges, RESTRICTED));
        cluster.write_manifest("node", &to_the_node());
        // The last thing of each Service.
        for vip in [CLUSTER_IP, TO_THE_NODE, LOCAL, RESTRICTED].concat() {
            cluster.is_bound(vip.parse().unwrap(), true);
        }
        let tracer = Tracer::on(&cluster.lab.node);
        Self { cluster, tracer, _server: server }
    }

    /// Connects `from` to a port in each family and draws what was seen, which must be the same.
    fn walk(&self, from: &Host, to: Addresses, port: u16) -> String {
        let [ipv4, ipv6] = to.map(|ip| {
            self.tracer.sightings();
            let address = at(ip, port);
            let attempt = from.inside(move || TcpStream::connect_timeout(&address, PATIENCE)).unwrap();
            let way = draw(&self.tracer.sightings(), &|ip| self.name(from, ip));
            let end = match attempt.map(drop).map_err(|error| error.kind()) {
                Ok(()) => "connected",
                Err(ErrorKind::ConnectionRefused) => "refused",
                Err(ErrorKind::TimedOut) => "no answer",
                Err(error) => panic!("{error}: {way}"),
            };
            way + end
        });
        assert_eq!(ipv4, ipv6);
        ipv4
    }

    /// The pod is the one that the Services lead to, and a host that connects from elsewhere is the client.
    fn name(&self, client: &Host, ip: IpAddr) -> String {
        let lab = &self.cluster.lab;
        let name = match () {
            () if lab.pods[1].address(ip) == ip => "pod",
            () if lab.node.address(ip) == ip || lab.pods.iter().any(|pod| pod.gateway(ip) == ip) => "node",
            () if client.address(ip) == ip => "client",
            () if lab.pods[0].address(ip) == ip => "another",
            () => "VIP",
        };
        name.to_owned()
    }
}

/// The manifests of a Service whose endpoint is the node, as if a pod used its network.
fn to_the_node() -> Value {
    let slice = |family: &str, ip: &str| {
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": format!("node-{}", family.to_lowercase()),
                "namespace": "default",
                "labels": { "kubernetes.io/service-name": "node" },
            },
            "addressType": family,
            "ports": [{ "port": 8080 }],
            "endpoints": [{ "addresses": [ip], "nodeName": "node", "conditions": { "ready": true } }],
        })
    };
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": "node", "namespace": "default" },
        "spec": {
            "clusterIP": TO_THE_NODE[0],
            "clusterIPs": TO_THE_NODE,
            "ipFamilies": ["IPv4", "IPv6"],
            "ports": [{ "port": 80 }],
        },
    });
    let items = [service, slice("IPv4", NODE[0]), slice("IPv6", NODE[1])];
    json!({ "apiVersion": "v1", "kind": "List", "items": items })
}

/// Another program's table that sends port 80 of all the node's own addresses to another pod, as the portmap
/// plugin of CNI does it for a hostPort.
const HOST_PORT: &str = "table inet hostport {
    chain to-the-pod {
        fib daddr type local tcp dport 80 meta nfproto ipv4 dnat ip to 10.244.1.2:8080
        fib daddr type local tcp dport 80 meta nfproto ipv6 dnat ip6 to [fd00:10:244:1::2]:8080
    }
    chain prerouting { type nat hook prerouting priority -100; jump to-the-pod; }
    chain output { type nat hook output priority -100; jump to-the-pod; }
}";

/// The drawings of the page.
fn drawings() -> Vec<&'static str> {
    let blocks = DOCUMENT.split("```text\n").skip(1);
    let blocks = blocks.map(|rest| rest.split("\n```").next().unwrap());
    blocks.filter(|block| block.contains("\nrequest\n")).collect()
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn packets_take_the_ways_that_are_drawn_in_both_families() {
    let node = Node::new();
    let lab = &node.cluster.lab;
    let [another, pod] = [&lab.pods[0], &lab.pods[1]];
    let masqueraded = node.walk(&lab.client, CLUSTER_IP, 80);
    let unmasqueraded = node.walk(another, CLUSTER_IP, 80);
    assert_eq!(node.walk(&lab.client, LOCAL, 80), unmasqueraded, "the external policy is Local");
    let from_the_node = node.walk(&lab.node, CLUSTER_IP, 80);
    let mut seen = vec![
        format!("A, B: a client outside → ClusterIP → a pod\n{masqueraded}"),
        format!("A, B, not masqueraded: a pod → ClusterIP → another pod\n{unmasqueraded}"),
        format!("C: the node → ClusterIP → a pod\n{from_the_node}"),
    ];
    for (title, client, to, port) in [
        ("D: a client outside → ClusterIP → the node", &lab.client, TO_THE_NODE, 80),
        ("D: the node → ClusterIP → the node", &lab.node, TO_THE_NODE, 80),
        ("E: a pod → ClusterIP → the same pod", pod, CLUSTER_IP, 80),
        ("F: a client outside → a port of a VIP that no Service has", &lab.client, CLUSTER_IP, 81),
        ("F: the node → a port of a VIP that no Service has", &lab.node, CLUSTER_IP, 81),
        ("G: a client outside the source ranges → load balancer", &lab.client, RESTRICTED, 80),
        ("G: the node, outside the source ranges → load balancer", &lab.node, RESTRICTED, 80),
    ] {
        seen.push(format!("{title}\n{}", node.walk(client, to, port)));
    }

    lab.node.run("nft", &[HOST_PORT]).unwrap();
    let taken = node.walk(&lab.client, NODE, 80);
    seen.push(format!("H: a client outside → a hostPort of the node, beside us\n{taken}"));
    assert_eq!(node.walk(&lab.client, CLUSTER_IP, 80), masqueraded, "the hostPort takes the VIP");
    assert_eq!(node.walk(another, CLUSTER_IP, 80), unmasqueraded, "the hostPort takes the VIP");
    assert_eq!(node.walk(&lab.node, CLUSTER_IP, 80), from_the_node, "the hostPort takes the VIP");

    assert!(seen == drawings(), "not as the page draws it:\n\n{}", seen.join("\n\n"));
}
