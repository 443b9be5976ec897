//! The rules of ours that a packet is compared with, as docs/evidence/packets.md lists them: a rule that a packet
//! meets costs time, so one more is a change of that page.
//!
//! The kernel's trace names only rules that match. But a packet is compared with the rules of a chain one after the
//! other, so whatever stands before one that matched was evaluated too (`nft_do_chain` in
//! net/netfilter/nf_tables_core.c).

mod rules;
mod trace;

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    net::{IpAddr, SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use testkit::{daemon::eventually, lab::Host};

use self::{
    rules::{Evaluated, Rules},
    trace::Trace,
};
use crate::support::cluster::Cluster;

const DOCUMENT: &str = include_str!("../../../docs/evidence/packets.md");

/// Where the servers of this test listen: those of the lab answer at once, so that it would be open which packet was
/// which.
const PORT: u16 = 9090;
/// Where no Service is.
const NO_PORT: u16 = 9;
/// NodePorts with the external policies Cluster and Local, and Local without an endpoint on this node.
const NODE_PORT: u16 = 30_080;
const NODE_PORT_LOCAL: u16 = 30_081;
const NODE_PORT_ELSEWHERE: u16 = 30_082;
/// Much longer than a packet takes.
const PATIENCE: Duration = Duration::from_secs(5);

/// An address in each family.
type Addresses = [&'static str; 2];

const NODE: Addresses = ["192.168.50.1", "fd00:50::1"];
const CLIENT: Addresses = ["192.168.50.2", "fd00:50::2"];
const POD: Addresses = ["10.244.2.2", "fd00:10:244:2::2"];
const CLUSTER_IP: Addresses = ["10.96.0.10", "fd00:96::10"];
/// A load balancer's, for everybody.
const BALANCER: Addresses = ["198.51.100.1", "2001:db8:1::1"];
/// A load balancer's, for clients from the network of the lab's client alone.
const RESTRICTED: Addresses = ["198.51.100.2", "2001:db8:1::2"];
/// A load balancer's, for clients from another network.
const FORBIDDEN: Addresses = ["198.51.100.3", "2001:db8:1::3"];

/// What comes at the end of a way.
enum End<'a> {
    /// A server, where the packet comes out.
    Answered(&'a Host),
    /// A rule that drops it.
    Dropped,
}

/// A way that packets may take.
struct Way<'a> {
    title: &'static str,
    from: &'a Host,
    to: Addresses,
    port: u16,
    end: End<'a>,
}

/// What the packets of a flow were compared with, in their order.
#[derive(PartialEq, Eq, Debug, Default)]
struct Flow {
    request: Vec<Evaluated>,
    reply: Vec<Evaluated>,
    later_request: Vec<Evaluated>,
    later_reply: Vec<Evaluated>,
}

fn cluster(arguments: &[&str]) -> Cluster {
    let mut cluster = Cluster::without_daemon(2);
    // As in life; and --vip-binding=route finds the node's own address by it.
    cluster.lab.node.ip("route add default via 192.168.50.2\nroute add ::/0 via fd00:50::2").unwrap();
    let balanced =
        |number: usize, vips: Addresses, node_port: Option<u16>, fields: Value, balancer: Addresses| {
            let ports = json!([{ "port": 80, "protocol": "UDP", "nodePort": node_port }]);
            let ingress = balancer.map(|ip| json!({ "ip": ip }));
            let mut service = json!({
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": { "name": format!("way-{number}"), "namespace": "default" },
                "spec": {
                    "type": "LoadBalancer",
                    "clusterIP": vips[0],
                    "clusterIPs": vips,
                    "ipFamilies": ["IPv4", "IPv6"],
                    "ports": ports,
                },
                "status": { "loadBalancer": { "ingress": ingress } },
            });
            service["spec"].as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            let here = node_port != Some(NODE_PORT_ELSEWHERE);
            let slices =
                ["IPv4", "IPv6"].into_iter().zip(POD).map(|(family, pod)| slice(number, family, pod, here));
            let items: Vec<_> = [service].into_iter().chain(slices).collect();
            cluster.write_manifest(
                &format!("way-{number}"),
                &json!({ "apiVersion": "v1", "kind": "List", "items": items }),
            );
        };
    let local = || json!({ "externalTrafficPolicy": "Local" });
    // Unlike every other source here in its first octets: some kernels overlook the sixth (docs/evidence/kernel.md).
    let other = json!({ "loadBalancerSourceRanges": ["203.0.113.0/24", "fd00:203::/32"] });
    let ranges = json!({ "loadBalancerSourceRanges": ["192.168.50.0/24", "fd00:50::/64"] });
    balanced(0, CLUSTER_IP, Some(NODE_PORT), json!({}), BALANCER);
    balanced(
        1,
        ["10.96.0.11", "fd00:96::11"],
        Some(NODE_PORT_LOCAL),
        local(),
        ["198.51.100.9", "2001:db8:1::9"],
    );
    balanced(2, ["10.96.0.12", "fd00:96::12"], None, ranges, RESTRICTED);
    balanced(3, ["10.96.0.13", "fd00:96::13"], None, other, FORBIDDEN);
    let elsewhere = ["198.51.100.8", "2001:db8:1::8"];
    balanced(4, ["10.96.0.14", "fd00:96::14"], Some(NODE_PORT_ELSEWHERE), local(), elsewhere);
    cluster.restart(arguments);
    // The rules that keep destinations come last.
    eventually("all is in the kernel", || {
        let answer = cluster.daemon().ask(&cluster.lab.node, "resync")?;
        anyhow::ensure!(answer.starts_with("resynced: 0 operations"), "{answer}");
        Ok(())
    })
    .unwrap();
    cluster
}

fn slice(number: usize, family: &str, pod: &str, here: bool) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": format!("way-{number}-{}", family.to_lowercase()),
            "namespace": "default",
            "labels": { "kubernetes.io/service-name": format!("way-{number}") },
        },
        "addressType": family,
        "ports": [{ "port": PORT, "protocol": "UDP" }],
        "endpoints": [{
            "addresses": [pod],
            "nodeName": if here { "node" } else { "another-node" },
            "conditions": { "ready": true },
        }],
    })
}

fn ways(cluster: &Cluster) -> Vec<Way<'_>> {
    let lab = &cluster.lab;
    let [node, client, pod, server] = [&lab.node, &lab.client, &lab.pods[0], &lab.pods[1]];
    let answered = |title, from, to, port| Way { title, from, to, port, end: End::Answered(server) };
    let dropped = |title, to, port| Way { title, from: client, to, port, end: End::Dropped };
    let other = |title, from, to, at| Way { title, from, to, port: PORT, end: End::Answered(at) };
    vec![
        answered("a pod → ClusterIP", pod, CLUSTER_IP, 80),
        answered("a pod → ClusterIP → the same pod", server, CLUSTER_IP, 80),
        answered("the node → ClusterIP", node, CLUSTER_IP, 80),
        answered("outside → ClusterIP", client, CLUSTER_IP, 80),
        answered("outside → NodePort, policy Cluster", client, NODE, NODE_PORT),
        answered("outside → NodePort, policy Local", client, NODE, NODE_PORT_LOCAL),
        answered("outside → load balancer", client, BALANCER, 80),
        answered("a pod → load balancer", pod, BALANCER, 80),
        answered("outside → load balancer with source ranges", client, RESTRICTED, 80),
        dropped("outside, in no source range → load balancer", FORBIDDEN, 80),
        dropped("outside → NodePort, policy Local, no endpoint here", NODE, NODE_PORT_ELSEWHERE),
        dropped("outside → a port of a VIP that no Service has", CLUSTER_IP, NO_PORT),
        other("not ours: outside → a pod", client, POD, server),
        other("not ours: outside → a program of the node", client, NODE, node),
        other("not ours: the node → outside", node, CLIENT, client),
    ]
}

impl Way<'_> {
    /// Sends its packets in one family.
    fn follow(&self, to: &str, rules: &Rules, trace: &Trace) -> Flow {
        let to = SocketAddr::new(to.parse().unwrap(), self.port);
        let client = socket(self.from, any(to), 0);
        client.connect(to).unwrap();
        let server = match self.end {
            End::Answered(host) => socket(host, any(to), PORT),
            End::Dropped => {
                drop(client.send(b"request"));
                let deadline = Instant::now() + PATIENCE;
                let mut request = rules.evaluated(trace);
                while request.is_empty() && Instant::now() < deadline {
                    request = rules.evaluated(trace);
                }
                return Flow { request, ..Flow::default() };
            }
        };
        let mut flow = Flow::default();
        for (request, reply) in
            [(&mut flow.request, &mut flow.reply), (&mut flow.later_request, &mut flow.later_reply)]
        {
            let mut buffer = [0; 16];
            client.send(b"request").unwrap();
            let (_, from) = server.recv_from(&mut buffer).unwrap();
            *request = rules.evaluated(trace);
            server.send_to(b"reply", from).unwrap();
            client.recv(&mut buffer).unwrap();
            *reply = rules.evaluated(trace);
        }
        flow
    }

    fn is_answered(&self) -> bool {
        matches!(self.end, End::Answered(_))
    }
}

fn any(like: SocketAddr) -> IpAddr {
    if like.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) }
}

fn socket(host: &Host, ip: IpAddr, port: u16) -> UdpSocket {
    let socket = host.inside(move || UdpSocket::bind((ip, port))).unwrap().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// All ways as text: the numbers, then each rule.
fn text(cluster: &Cluster) -> String {
    let trace = Trace::on(&cluster.lab.node);
    let rules = ["ip", "ip6"].map(|family| Rules::read(&cluster.lab.node, family));
    let mut numbers = format!("{:<54}{:>7}{:>7}{:>7}\n", "rules evaluated for", "first", "later", "reply");
    let mut blocks = String::new();
    for (number, way) in ways(cluster).iter().enumerate() {
        rules[0].evaluated(&trace);
        let [flow, other] = [0, 1].map(|family| way.follow(way.to[family], &rules[family], &trace));
        assert_eq!(flow, other, "{}: IPv6 is otherwise", way.title);
        assert_eq!(flow.reply, flow.later_reply, "{}: a later reply is otherwise", way.title);
        let title = format!("{}: {}", number + 1, way.title);
        let later =
            |rules: &[Evaluated]| if way.is_answered() { rules.len().to_string() } else { String::new() };
        let [first, request, reply] =
            [flow.request.len().to_string(), later(&flow.later_request), later(&flow.reply)];
        writeln!(numbers, "{}", format!("{title:<54}{first:>7}{request:>7}{reply:>7}").trim_end()).unwrap();
        let parts =
            [("request", &flow.request), ("later request", &flow.later_request), ("reply", &flow.reply)];
        write!(blocks, "\n\n{title}").unwrap();
        for (name, rules) in parts.iter().filter(|(_, rules)| !rules.is_empty()) {
            write!(blocks, "\n{name}, {}:", count(rules.len())).unwrap();
            for rule in *rules {
                write!(blocks, "\n  {rule}").unwrap();
            }
        }
    }
    numbers.trim_end().to_owned() + &blocks
}

fn count(rules: usize) -> String {
    if rules == 1 { "1 rule".to_owned() } else { format!("{rules} rules") }
}

fn section() -> &'static str {
    let section = DOCUMENT.split("\n## Every rule\n").nth(1).unwrap();
    section.split("\n## ").next().unwrap()
}

/// What the document has of this: a block for the numbers, one for the ways.
fn documented() -> String {
    let blocks = section().split("```text\n").skip(1).map(|rest| rest.split("\n```").next().unwrap());
    blocks.collect::<Vec<_>>().join("\n\n")
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_packet_is_compared_with_the_rules_that_are_listed_in_both_families() {
    let seen = text(&cluster(&[]));
    assert!(seen == documented(), "not as the page lists it:\n\n{seen}\n\n");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn with_vips_as_routes_a_packet_is_compared_with_as_many_rules() {
    // The node's own address is the source of what it sends, and not the VIP: other rules match.
    let numbers = |text: &str| text.split("\n\n").next().unwrap().to_owned();
    let (seen, documented) = (text(&cluster(&["--vip-binding=route"])), documented());
    assert!(numbers(&seen) == numbers(&documented), "not as the page lists it:\n\n{seen}\n\n");
}

/// The rows of the document's table: chain and purpose.
fn explained() -> BTreeSet<(String, String)> {
    let rows = section().lines().filter_map(|line| line.strip_prefix("| `"));
    rows.flat_map(|row| {
        let mut cells = row.split(" | ");
        let (chains, purpose) = (cells.next().unwrap(), cells.next().unwrap());
        chains.split(", ").map(|chain| (chain.replace('`', ""), purpose.to_owned())).collect::<Vec<_>>()
    })
    .collect()
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_reason_of_each_rule_is_given() {
    let cluster = cluster(&["--untracked-services=annotated"]);
    for family in ["ip", "ip6"] {
        let rules = Rules::read(&cluster.lab.node, family);
        let installed: BTreeSet<_> =
            rules.all().map(|(chain, purpose)| (chain.to_owned(), purpose.to_owned())).collect();
        assert_eq!(installed, explained());
    }
}
