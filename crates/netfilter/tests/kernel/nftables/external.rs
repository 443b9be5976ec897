//! Connections to the addresses in `external`, and to those in no set: NodePorts, external IPs and load
//! balancers, with an external traffic policy of Cluster and of Local.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ipvs::{Family, Protocol, ServiceAddress};
use netfilter::{Element, LocalTraffic, Operation, Policy};

use crate::support::{
    cluster::{Addresses, Cluster, PORT, TARGET_PORT, addresses, cluster_cidr, policy},
    host::{BRIEFLY, Host, Outcome},
    programs::{nft, packets, run},
};

const NODE_PORT: u16 = 30080;

/// An address that is bound as VIP, and a NodePort at an address of the node.
fn servers(at: &Addresses) -> [SocketAddr; 2] {
    [SocketAddr::new(at.external, PORT), SocketAddr::new(at.node_towards_client, NODE_PORT)]
}

/// A cluster in which all of these have `pod` as their only real server, with their elements.
fn balancing_to(
    pod: impl Fn(&Addresses) -> IpAddr,
    elements: impl Fn(SocketAddr) -> Vec<Element>,
) -> (Cluster, Vec<Operation>) {
    let cluster = Cluster::new();
    let mut changes = Vec::new();
    for at in Family::BOTH.map(addresses) {
        for server in servers(&at) {
            cluster.balance(server, SocketAddr::new(pod(&at), TARGET_PORT));
            changes.extend(elements(server).into_iter().map(Operation::AddElement));
        }
    }
    (cluster, changes)
}

fn external(protocol: Protocol, ip: IpAddr, port: u16) -> Element {
    Element::External(ServiceAddress { protocol, ip, port })
}

fn in_the_set(server: SocketAddr) -> Vec<Element> {
    vec![external(Protocol::Tcp, server.ip(), server.port())]
}

/// Asserts what the real server sees of connections from `host` to all of them.
#[track_caller]
fn assert_seen(host: &Host, what: &str, source: impl Fn(&Addresses, SocketAddr) -> IpAddr) {
    for at in Family::BOTH.map(addresses) {
        for server in servers(&at) {
            assert_eq!(host.source_at(server), source(&at, server), "{what} at {server}");
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn connections_to_an_external_address_are_masqueraded() {
    let (cluster, elements) = balancing_to(|at| at.pod2, in_the_set);
    for policy in [
        policy(cluster_cidr()),
        Policy { masquerade_all: true, ..policy(cluster_cidr()) },
        policy(LocalTraffic::Source { ipv4: None, ipv6: None }),
        policy(LocalTraffic::InterfacePrefix("pod".into())),
    ] {
        cluster.install(&policy, |_| vec![]);
        cluster.apply(&policy, elements.clone());
        assert_seen(&cluster.client, "a client outside", |at, _| at.node_towards_pod2);
        assert_seen(&cluster.pod1, "a pod", |at, _| at.node_towards_pod2);
        // At the NodePort its source and destination are the same address.
        assert_seen(&cluster.node, "the node itself", |at, _| at.node_towards_pod2);
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn connections_to_an_address_in_no_set_keep_their_source() {
    let other_port_and_protocol = |server: SocketAddr| {
        let (ip, port) = (server.ip(), server.port());
        vec![external(Protocol::Tcp, ip, port + 1), external(Protocol::Udp, ip, port)]
    };
    let (cluster, elements) = balancing_to(|at| at.pod2, other_port_and_protocol);
    for policy in [policy(cluster_cidr()), Policy { masquerade_all: true, ..policy(cluster_cidr()) }] {
        cluster.install(&policy, |_| vec![]);
        cluster.apply(&policy, elements.clone());
        assert_seen(&cluster.client, "a client outside", |at, _| at.client);
        assert_seen(&cluster.pod1, "a pod", |at, _| at.pod1);
        assert_seen(&cluster.node, "the node itself", |_, server| server.ip());
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn with_the_policy_local_only_the_node_itself_is_masqueraded() {
    let (cluster, elements) = balancing_to(
        |at| at.pod2,
        |server| {
            let (ip, port) = (server.ip(), server.port());
            vec![Element::ExternalLocal(ServiceAddress { protocol: Protocol::Tcp, ip, port })]
        },
    );
    for policy in [policy(cluster_cidr()), Policy { masquerade_all: true, ..policy(cluster_cidr()) }] {
        cluster.install(&policy, |_| vec![]);
        cluster.apply(&policy, elements.clone());
        assert_seen(&cluster.client, "a client outside", |at, _| at.client);
        assert_seen(&cluster.pod1, "a pod", |at, _| at.pod1);
        assert_seen(&cluster.node, "the node itself", |at, _| at.node_towards_pod2);
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn without_a_local_endpoint_the_policy_local_is_there_for_this_node_and_its_pods() {
    let (cluster, elements) = balancing_to(
        |at| at.pod2,
        |server| {
            let to = ServiceAddress { protocol: Protocol::Tcp, ip: server.ip(), port: server.port() };
            vec![Element::ExternalLocal(to), Element::LocalClientsOnly(to)]
        },
    );
    for (local_traffic, pods_are_known) in [
        (cluster_cidr(), true),
        (LocalTraffic::InterfacePrefix("pod".into()), true),
        (LocalTraffic::Source { ipv4: None, ipv6: None }, false),
    ] {
        let policy = policy(local_traffic);
        cluster.install(&policy, |_| vec![]);
        cluster.apply(&policy, elements.clone());
        assert_seen(&cluster.pod1, "a pod", |at, _| at.pod1);
        assert_seen(&cluster.node, "the node itself", |at, _| at.node_towards_pod2);
        for server in Family::BOTH.map(addresses).iter().flat_map(servers) {
            let outcome = cluster.client.answer_of(server);
            let expected = if pods_are_known {
                outcome == Outcome::Silence
            } else {
                matches!(outcome, Outcome::Heard(_))
            };
            assert!(expected, "a client outside at {server}: {outcome:?}, {policy:?}");
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn what_the_node_sends_from_its_loopback_address_is_never_marked() {
    for element in [Element::ClusterIp, Element::External, Element::ExternalLocal] {
        let (cluster, elements) = balancing_to(
            |at| at.pod2,
            |server| {
                let (ip, port) = (server.ip(), server.port());
                vec![element(ServiceAddress { protocol: Protocol::Tcp, ip, port })]
            },
        );
        let policy = Policy { masquerade_all: true, ..policy(cluster_cidr()) };
        cluster.install(&policy, |_| vec![]);
        cluster.apply(&policy, elements);
        // Behind the nat chains, which all run at -100, and before IPVS takes the packet, at -98.
        cluster.node.inside(|| {
            nft("table inet witness {
                chain output {
                    type filter hook output priority -99
                    tcp flags & (syn|ack) == syn meta mark & 0x4000 == 0 counter comment \"unmarked\"
                    tcp flags & (syn|ack) == syn meta mark & 0x4000 != 0 counter comment \"marked\"
                }
            }");
        });
        let mut sent = 0;
        for at in Family::BOTH.map(addresses) {
            for server in servers(&at) {
                let loopback =
                    if server.is_ipv4() { [127, 0, 0, 1].into() } else { Ipv6Addr::LOCALHOST.into() };
                cluster.node.connect_from(loopback, server, BRIEFLY);
                sent += 1;
            }
        }
        let listed = cluster.node.inside(|| run("nft list table inet witness"));
        assert!(packets(&listed, "unmarked") >= sent, "{listed}");
        assert_eq!(packets(&listed, "marked"), 0, "{listed}");
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_pod_reaches_itself_through_an_external_address() {
    for elements in [in_the_set, |_| vec![]] {
        let (cluster, elements) = balancing_to(|at| at.pod1, elements);
        cluster.install(&policy(cluster_cidr()), |at| vec![at.pod1]);
        cluster.apply(&policy(cluster_cidr()), elements);
        assert_seen(&cluster.pod1, "the pod itself", |at, _| at.node_towards_pod1);
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_real_server_on_the_node_itself_sees_who_connects() {
    let (cluster, elements) = balancing_to(|at| at.node_towards_pod2, in_the_set);
    cluster.node.echo_peers(TARGET_PORT);
    cluster.install(&policy(cluster_cidr()), |_| vec![]);
    cluster.apply(&policy(cluster_cidr()), elements);
    // Marked, but delivered from the input hook: postrouting never sees it.
    assert_seen(&cluster.client, "a client outside", |at, _| at.client);
    assert_seen(&cluster.pod1, "a pod", |at, _| at.pod1);
    for at in Family::BOTH.map(addresses) {
        for server in servers(&at) {
            // Masqueraded on its way out through lo, with some address of the node.
            let source = cluster.node.source_at(server);
            let own = [at.node_towards_client, at.node_towards_pod1, at.node_towards_pod2];
            assert!(own.contains(&source), "{source} at {server}");
        }
    }
}
