//! Every address of a Service: which pods answer, and which client address they see.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use Policy::{Cluster as ToCluster, Local as ToLocal};
use Seen::{Client, Node};
use ipvs::{Family, Protocol, ServiceAddress};
use serde_json::{Value, json};
use testkit::lab::{Host, Lab, Manner};

use crate::support::cluster::{Cluster, Service, elsewhere, here};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// How a Service is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    ClusterIp,
    NodePort,
    ExternalIp,
    LoadBalancer,
}

/// The traffic policy that counts there: at the ClusterIP the internal one, elsewhere the external one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Cluster,
    Local,
}

/// Whose address the pod sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// The client's own.
    Client,
    /// The node's, towards the pod: the flow was masqueraded. What the node itself sends always is.
    Node,
}

/// The pods on every node, and on this one.
const ALL: &[usize] = &[1, 2];
const LOCAL: &[usize] = &[1];

/// Which pods answer, and whose address they see when asked by another pod, by the node, and by a client
/// outside.
const EXPECTED: [(Way, Policy, &[usize], [Seen; 3]); 8] = [
    (Way::ClusterIp, ToCluster, ALL, [Client, Node, Node]),
    (Way::ClusterIp, ToLocal, LOCAL, [Client, Node, Node]),
    (Way::NodePort, ToCluster, ALL, [Node, Node, Node]),
    (Way::NodePort, ToLocal, LOCAL, [Client, Node, Client]),
    (Way::ExternalIp, ToCluster, ALL, [Node, Node, Node]),
    (Way::ExternalIp, ToLocal, LOCAL, [Client, Node, Client]),
    (Way::LoadBalancer, ToCluster, ALL, [Node, Node, Node]),
    (Way::LoadBalancer, ToLocal, LOCAL, [Client, Node, Client]),
];

/// One way to one Service, by one protocol.
#[derive(Debug)]
struct Case {
    address: ServiceAddress,
    pods: &'static [usize],
    seen: [Seen; 3],
}

/// The Services with each combination of the internal and the external policy.
const SERVICES: [(u8, Policy, Policy); 4] =
    [(10, ToCluster, ToCluster), (11, ToCluster, ToLocal), (12, ToLocal, ToCluster), (13, ToLocal, ToLocal)];

/// The address at which the Service of this number is reached.
fn ip(number: u8, way: Way, family: Family) -> IpAddr {
    let text = match (way, family) {
        (Way::ClusterIp, Family::V4) => format!("10.96.0.{number}"),
        (Way::ClusterIp, Family::V6) => format!("fd00:96::{number}"),
        (Way::NodePort, Family::V4) => "192.168.50.1".to_owned(),
        (Way::NodePort, Family::V6) => "fd00:50::1".to_owned(),
        (Way::ExternalIp, Family::V4) => format!("203.0.113.{number}"),
        (Way::ExternalIp, Family::V6) => format!("2001:db8::{number}"),
        (Way::LoadBalancer, Family::V4) => format!("198.51.100.{number}"),
        (Way::LoadBalancer, Family::V6) => format!("2001:db8:1::{number}"),
    };
    text.parse().unwrap()
}

fn node_port(number: u8) -> u16 {
    30_000 + u16::from(number)
}

/// A Service that can be reached in every way.
fn exposed(number: u8, internal: Policy, external: Policy, protocols: &[Protocol]) -> Service {
    let both = |way| [Family::V4, Family::V6].map(|family| ip(number, way, family));
    let port = |protocol: &Protocol| {
        let (name, node_port) = (protocol.to_string().to_lowercase(), node_port(number));
        json!({ "name": name, "protocol": protocol, "port": 80, "nodePort": node_port })
    };
    let spec = json!({
        "type": "LoadBalancer",
        "clusterIPs": both(Way::ClusterIp),
        "externalIPs": both(Way::ExternalIp),
        "ports": protocols.iter().map(port).collect::<Value>(),
        "internalTrafficPolicy": format!("{internal:?}"),
        "externalTrafficPolicy": format!("{external:?}"),
    });
    let ingress = both(Way::LoadBalancer).map(|ip| json!({ "ip": ip }));
    Service::new(&format!("web-{number}"), &spec)
        .patch(&json!({ "status": { "loadBalancer": { "ingress": ingress } } }))
}

fn cases(protocols: &[Protocol]) -> Vec<Case> {
    let mut cases = Vec::new();
    for (number, internal, external) in SERVICES {
        for (way, policy, pods, seen) in EXPECTED {
            if policy != if way == Way::ClusterIp { internal } else { external } {
                continue;
            }
            for (&protocol, family) in protocols.iter().flat_map(|it| [(it, Family::V4), (it, Family::V6)]) {
                let port = if way == Way::NodePort { node_port(number) } else { 80 };
                let address = ServiceAddress { protocol, ip: ip(number, way, family), port };
                cases.push(Case { address, pods, seen });
            }
        }
    }
    cases
}

impl Case {
    /// Whose address `pod` is to see when `client` asks.
    fn source(&self, seen: Seen, client: &Host, pod: &Host) -> IpAddr {
        match seen {
            Node => pod.gateway(self.address.ip),
            Client => client.address(self.address.ip),
        }
    }

    /// Asks from a pod, from the node and from outside.
    fn check(&self, cluster: &Cluster) {
        let (lab, names) = (&cluster.lab, cluster.names(self.pods));
        for (client, seen) in [&lab.pods[2], &lab.node, &lab.client].into_iter().zip(self.seen) {
            // Round robin: one request for each pod.
            let answers: Vec<_> = names.iter().map(|_| client.ask_at(self.address).unwrap()).collect();
            let from: BTreeSet<_> = answers.iter().map(|answer| answer.from.clone()).collect();
            assert_eq!(from, names, "{} asked {self:?}", client.name);
            for answer in answers {
                let pod = lab.pods.iter().find(|pod| pod.name == answer.from).unwrap();
                let source = self.source(seen, client, pod);
                assert_eq!(answer.seen_as, source, "{} asked {self:?}, {} answered", client.name, pod.name);
            }
        }
    }
}

/// Gives the daemon the Services and sends packets along every way.
fn check_every_way_in(cluster: &Cluster, protocols: &[Protocol]) {
    for (number, internal, external) in SERVICES {
        let service = exposed(number, internal, external, protocols);
        cluster.write(&service.endpoints([here(1), elsewhere(2)]));
    }
    let cases = cases(protocols);
    cluster.serves_all(&cases.iter().map(|case| (case.address, case.pods)).collect::<Vec<_>>());
    for case in &cases {
        case.check(cluster);
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn each_address_leads_to_its_policy_s_pods_and_only_local_keeps_client_addresses() {
    let protocols = Lab::protocols();
    if !protocols.contains(&Protocol::Sctp) {
        println!("ABSENT: this kernel has no SCTP");
    }
    check_every_way_in(&Cluster::start(3, &[]), &protocols);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn with_route_binding_the_same_holds() {
    let mut cluster = Cluster::start(3, &[]);
    // By the way out the daemon knows the node's own address.
    cluster.lab.node.ip("route add default via 192.168.50.2\nroute add ::/0 via fd00:50::2").unwrap();
    cluster.restart(&["--vip-binding=route"]);
    check_every_way_in(&cluster, &[Protocol::Tcp]);
    assert_eq!(cluster.bound().unwrap(), BTreeSet::new());
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_pod_reaches_itself_in_every_way() {
    let protocols = Lab::protocols();
    let cluster = Cluster::start(1, &[]);
    for (number, internal, external) in SERVICES {
        cluster.write(&exposed(number, internal, external, &protocols).endpoints([here(1)]));
    }
    let cases = cases(&protocols);
    cluster.serves_all(&cases.iter().map(|case| (case.address, &[1][..])).collect::<Vec<_>>());
    let pod = &cluster.lab.pods[0];
    for case in cases {
        let answer = pod.ask_at(case.address).unwrap();
        assert_eq!(answer.from, "pod-1", "{case:?}");
        assert_eq!(answer.seen_as, pod.gateway(case.address.ip), "{case:?}");
    }
}

/// Sends what this neighbour of the node has for 127.0.0.1 to the node, and lets it receive answers from there
/// (CVE-2020-8558): on its own side nothing keeps it from that.
fn sends_loopback_over_the_wire(neighbour: &Host) {
    neighbour.run("sysctl", &["-qw", "net.ipv4.conf.all.route_localnet=1"]).unwrap();
    let gateway = neighbour.gateway(neighbour.ipv4.into());
    neighbour.ip(&format!("addr del 127.0.0.1/8 dev lo\nroute add 127.0.0.0/8 via {gateway}")).unwrap();
}

/// A Service with a NodePort that asks for the loopback address as well, wherever it can.
fn at_loopback() -> Service {
    let external_ips = [LOOPBACK, ip(10, Way::ExternalIp, Family::V4)];
    let ingress = [LOOPBACK, ip(10, Way::LoadBalancer, Family::V4)].map(|ip| json!({ "ip": ip }));
    exposed(10, ToCluster, ToCluster, &[Protocol::Tcp])
        .patch(&json!({ "spec": { "externalIPs": external_ips } }))
        .patch(&json!({ "status": { "loadBalancer": { "ingress": ingress } } }))
        .endpoints([here(1)])
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_neighbour_cannot_reach_the_node_s_loopback_since_route_localnet_stays_off() {
    const OF_THE_NODE: u16 = 22;
    let tcp = |ip, port| ServiceAddress { protocol: Protocol::Tcp, ip, port };
    let ask = |neighbour: &Host, port| {
        let manner = Manner { patience: Duration::from_millis(1500), ..Manner::default() };
        neighbour.ask_in(manner, tcp(LOOPBACK, port))
    };
    let mut cluster = Cluster::start(1, &[]);
    cluster.lab.node.serve(OF_THE_NODE).unwrap();
    // By the way out the daemon knows the node's own address.
    cluster.lab.node.ip("route add default via 192.168.50.2\nroute add ::/0 via fd00:50::2").unwrap();
    for neighbour in [&cluster.lab.client, &cluster.lab.pods[0]] {
        sends_loopback_over_the_wire(neighbour);
    }
    cluster.write(&at_loopback());
    for binding in ["--vip-binding=address", "--vip-binding=route"] {
        cluster.restart(&[binding, "--external-ip-policy=0.0.0.0/0,::/0"]);
        cluster.serves(tcp(ip(10, Way::NodePort, Family::V4), node_port(10)), &[1]);
        let Lab { node, client, pods, .. } = &cluster.lab;
        let all = node.run("sysctl", &["-ar", r"^net\.ipv4\.conf\..*\.route_localnet$"]).unwrap();
        assert!(all.contains("conf.kube-ipvs0.") && all.lines().all(|line| line.ends_with(" = 0")), "{all}");
        for neighbour in [client, &pods[0]] {
            for port in [OF_THE_NODE, 80, node_port(10)] {
                let answer = ask(neighbour, port);
                assert!(answer.is_err(), "{} asked 127.0.0.1:{port}: {answer:?}", neighbour.name);
            }
        }
    }
    // With route_localnet they would arrive.
    cluster.lab.node.run("sysctl", &["-qw", "net.ipv4.conf.eth0.route_localnet=1"]).unwrap();
    assert_eq!(ask(&cluster.lab.client, OF_THE_NODE).unwrap().from, "node");
}
