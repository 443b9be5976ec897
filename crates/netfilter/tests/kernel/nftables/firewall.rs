//! Who may reach what at a VIP: ports without a Service, pings, health checks, source ranges.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use ipvs::{Family, Protocol, ServiceAddress};
use netfilter::{AllowedSource, Element, HealthCheckPort, Operation};

use crate::support::{
    cluster::{Addresses, Cluster, PORT, TARGET_PORT, addresses, cluster_cidr, policy},
    host::{BRIEFLY, Host, Outcome, PATIENTLY},
    programs::run,
};

/// Where programs of the node listen.
const SSH: u16 = 22;
const HEALTH_CHECKS: u16 = 30500;

/// A cluster with a Service at each family's `vip` and `external`, and programs of the node that listen on
/// all of its addresses.
fn cluster() -> Cluster {
    let cluster = Cluster::balancing_to(|at| at.pod2);
    for at in Family::BOTH.map(addresses) {
        let (external, pod) = (SocketAddr::new(at.external, PORT), SocketAddr::new(at.pod2, TARGET_PORT));
        cluster.balance(external, pod);
    }
    cluster.node.echo_peers(SSH);
    cluster.node.echo_peers(HEALTH_CHECKS);
    cluster.install(&policy(cluster_cidr()), |_| vec![]);
    cluster
}

fn change(cluster: &Cluster, changes: impl Fn(&Addresses) -> Vec<Operation>) {
    let changes = Family::BOTH.map(|family| changes(&addresses(family))).concat();
    cluster.apply(&policy(cluster_cidr()), changes);
}

fn add(cluster: &Cluster, elements: impl Fn(&Addresses) -> Vec<Element>) {
    change(cluster, |at| elements(at).into_iter().map(Operation::AddElement).collect());
}

fn everybody(cluster: &Cluster) -> [(&'static str, &Host); 3] {
    [("a client outside", &cluster.client), ("a pod", &cluster.pod1), ("the node itself", &cluster.node)]
}

#[track_caller]
fn assert_reaches(host: &Host, server: SocketAddr, who: &str) {
    let outcome = host.answer_of(server);
    assert!(matches!(outcome, Outcome::Heard(_)), "{who} to {server}: {outcome:?}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn vip_port_without_a_service_is_rejected_despite_a_listening_program() {
    let cluster = cluster();
    for at in Family::BOTH.map(addresses) {
        assert_reaches(&cluster.client, SocketAddr::new(at.vip, SSH), "before, anybody");
    }
    add(&cluster, |at| vec![Element::Vip(at.vip)]);
    for at in Family::BOTH.map(addresses) {
        for (who, host) in everybody(&cluster) {
            assert_eq!(host.answer_of(SocketAddr::new(at.vip, SSH)), Outcome::Refused, "{who}, {}", at.vip);
            assert_eq!(host.send(SocketAddr::new(at.vip, PORT)), Outcome::Refused, "UDP, {who}, {}", at.vip);
            assert_reaches(host, SocketAddr::new(at.vip, PORT), who);
            assert_reaches(host, SocketAddr::new(at.node_towards_client, SSH), who);
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn what_is_served_at_a_vip_is_not_rejected_whichever_set_it_is_in() {
    let cluster = cluster();
    let served = |at: &Addresses| ServiceAddress { protocol: Protocol::Tcp, ip: at.external, port: PORT };
    add(&cluster, |at| vec![Element::Vip(at.external)]);
    for at in Family::BOTH.map(addresses) {
        let server = SocketAddr::new(at.external, PORT);
        assert_eq!(cluster.client.answer_of(server), Outcome::Refused, "in none, {server}");
    }
    for element in [Element::ClusterIp, Element::External, Element::ExternalLocal] {
        add(&cluster, |at| vec![element(served(at))]);
        for at in Family::BOTH.map(addresses) {
            for (who, host) in everybody(&cluster) {
                assert_reaches(host, SocketAddr::new(at.external, PORT), who);
            }
        }
        change(&cluster, |at| vec![Operation::DeleteElement(element(served(at)))]);
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_vip_can_be_pinged() {
    let cluster = cluster();
    add(&cluster, |at| vec![Element::Vip(at.vip)]);
    for at in Family::BOTH.map(addresses) {
        let reply = if at.vip.is_ipv4() { r"\x00" } else { r"\x81" };
        for (who, host) in everybody(&cluster) {
            let outcome = host.ping(at.vip);
            assert!(
                matches!(&outcome, Outcome::Heard(answer) if answer.starts_with(reply)),
                "{who}, {}: {outcome:?}",
                at.vip
            );
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn load_balancers_reach_the_health_check_port_at_a_vip_by_tcp() {
    let cluster = cluster();
    add(&cluster, |at| vec![Element::Vip(at.external)]);
    for at in Family::BOTH.map(addresses) {
        let server = SocketAddr::new(at.external, HEALTH_CHECKS);
        assert_eq!(cluster.client.answer_of(server), Outcome::Refused, "before, {server}");
    }
    add(&cluster, |at| {
        let check = HealthCheckPort { family: Family::from(at.vip), port: HEALTH_CHECKS };
        vec![Element::HealthCheckPort(check)]
    });
    for at in Family::BOTH.map(addresses) {
        let server = SocketAddr::new(at.external, HEALTH_CHECKS);
        for (who, host) in everybody(&cluster) {
            assert_reaches(host, server, who);
            assert_eq!(host.send(server), Outcome::Refused, "UDP, {who}");
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn answers_to_what_the_node_sends_from_a_vip_come_in() {
    const SERVER: u16 = 9000;
    let cluster = cluster();
    add(&cluster, |at| vec![Element::Vip(at.vip)]);
    cluster.client.echo_peers(SERVER);
    for at in Family::BOTH.map(addresses) {
        let outcome = cluster.node.connect_from(at.vip, SocketAddr::new(at.client, SERVER), PATIENTLY);
        assert_eq!(outcome, Outcome::Heard(at.vip.to_string()));
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn neighbours_are_found_at_an_address_that_is_a_vip() {
    let cluster = cluster();
    let at = addresses(Family::V6);
    // A VIP can be an address of an interface too; that one is asked for.
    add(&cluster, |at| vec![Element::Vip(at.node_towards_client)]);
    let vip = at.node_towards_client;
    let link = cluster.node.inside(|| run("ip -brief link show uplink"));
    let link = link.split_whitespace().nth(2).unwrap();
    // The next thing that the client does is to ask, by unicast, whether the neighbour is still there.
    cluster.client.ip(&[&format!("neigh replace {vip} lladdr {link} dev eth0 nud probe")]);
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let neighbour = cluster.client.inside(move || run(&format!("ip neigh show {vip}")));
        if neighbour.contains("REACHABLE") {
            break;
        }
        assert!(Instant::now() < deadline && !neighbour.contains("FAILED"), "{neighbour}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The restricted address, and the clients that may reach it.
fn restricted(at: &Addresses) -> ServiceAddress {
    ServiceAddress { protocol: Protocol::Tcp, ip: at.external, port: PORT }
}

fn allowed(at: &Addresses, first: IpAddr, last: IpAddr) -> Element {
    Element::AllowedSource(AllowedSource { to: restricted(at), first, last })
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn only_clients_in_the_source_ranges_reach_a_restricted_address() {
    let cluster = cluster();
    add(&cluster, |at| {
        vec![
            Element::Vip(at.external),
            Element::External(restricted(at)),
            Element::Restricted(restricted(at)),
        ]
    });
    // Whether the client, the pod and the node reach it.
    let assert_open_to = |expected: [bool; 3], ranges: &str| {
        for at in Family::BOTH.map(addresses) {
            let server = SocketAddr::new(at.external, PORT);
            for ((who, host), open) in everybody(&cluster).into_iter().zip(expected) {
                match open {
                    true => assert_reaches(host, server, who),
                    false => assert_eq!(host.connect(server, BRIEFLY), Outcome::Silence, "{who}, {ranges}"),
                }
            }
        }
    };
    assert_open_to([false, false, false], "no range");
    // From the address below the client's to its own.
    add(&cluster, |at| vec![allowed(at, at.node_towards_client, at.client)]);
    assert_open_to([true, false, false], "the client's range");
    // The node's connections come from the VIP.
    add(&cluster, |at| vec![allowed(at, at.external, at.external), allowed(at, at.pod1, at.pod1)]);
    assert_open_to([true, true, true], "everybody's ranges");
    for at in Family::BOTH.map(addresses) {
        assert_reaches(&cluster.client, SocketAddr::new(at.vip, PORT), "another address is not restricted");
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_client_that_is_no_longer_in_the_source_ranges_is_cut_off() {
    const SERVER: u16 = 9090;
    let cluster = cluster();
    let at = addresses(Family::V4);
    let server = ServiceAddress { protocol: Protocol::Tcp, ip: at.external, port: SERVER };
    cluster.balance(SocketAddr::new(at.external, SERVER), SocketAddr::new(at.pod2, SERVER));
    let allowed = Element::AllowedSource(AllowedSource { to: server, first: at.client, last: at.client });
    let elements =
        [Element::Vip(at.external), Element::ExternalLocal(server), Element::Restricted(server), allowed];
    cluster.apply(&policy(cluster_cidr()), elements.map(Operation::AddElement).into());

    let listener = cluster.pod2.inside(|| TcpListener::bind(("0.0.0.0", SERVER)).unwrap());
    let mut client = cluster.client.inside(move || TcpStream::connect((at.external, SERVER)).unwrap());
    let (mut real_server, _) = listener.accept().unwrap();
    let mut receives = |patience| {
        client.write_all(b"?").unwrap();
        real_server.set_read_timeout(Some(patience)).unwrap();
        real_server.read(&mut [0; 8]).is_ok()
    };
    assert!(receives(PATIENTLY));
    cluster.apply(&policy(cluster_cidr()), vec![Operation::DeleteElement(allowed)]);
    assert!(!receives(BRIEFLY));
}
