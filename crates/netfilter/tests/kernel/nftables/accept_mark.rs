//! A host whose own firewall drops unknown traffic, and our mark that makes it accept Services.

use std::net::SocketAddr;

use ipvs::{Family, Protocol, ServiceAddress};
use netfilter::{Element, HealthCheckPort, HostFirewall, Operation, Policy};

use crate::support::{
    cluster::{Addresses, Cluster, PORT, TARGET_PORT, addresses, cluster_cidr, policy},
    host::{BRIEFLY, Outcome},
    programs::{nft, run},
};

const NODE_PORT: u16 = 30080;
const LOCAL_NODE_PORT: u16 = 30081;
const HEALTH_CHECKS: u16 = 30500;

/// What our table lets through the host's firewall.
fn servers(at: &Addresses) -> [SocketAddr; 4] {
    [
        SocketAddr::new(at.vip, PORT),
        SocketAddr::new(at.node_towards_client, NODE_PORT),
        SocketAddr::new(at.node_towards_client, LOCAL_NODE_PORT),
        SocketAddr::new(at.node_towards_client, HEALTH_CHECKS),
    ]
}

/// The rule of a firewall that accepts our mark.
const MARKED: &str = "meta mark & 0x1000 == 0x1000 accept";

/// A cluster behind a firewall that only accepts neighbour discovery and `rule`.
fn cluster(host_firewall: HostFirewall, rule: &str) -> Cluster {
    let cluster = Cluster::new();
    cluster.node.echo_peers(HEALTH_CHECKS);
    let mut changes: Vec<_> = Family::BOTH.map(Operation::InstallTable).into();
    for at in Family::BOTH.map(addresses) {
        let [vip, node_port, local_node_port, _] = servers(&at);
        for server in [vip, node_port, local_node_port] {
            cluster.balance(server, SocketAddr::new(at.pod2, TARGET_PORT));
        }
        let [vip, node_port, local_node_port] = [vip, node_port, local_node_port]
            .map(|server| ServiceAddress { protocol: Protocol::Tcp, ip: server.ip(), port: server.port() });
        let check = HealthCheckPort { family: Family::from(at.vip), port: HEALTH_CHECKS };
        let elements = [
            Element::Vip(at.vip),
            Element::ClusterIp(vip),
            Element::External(node_port),
            Element::ExternalLocal(local_node_port),
            Element::HealthCheckPort(check),
        ];
        changes.extend(elements.map(Operation::AddElement));
    }
    cluster.apply(&Policy { host_firewall, ..policy(cluster_cidr()) }, changes);
    let firewall = format!(
        "table inet firewall {{
            chain input {{
                type filter hook input priority filter; policy drop;
                meta l4proto icmpv6 accept
                {rule}
            }}
            chain forward {{ type filter hook forward priority filter; policy drop; {rule}; }}
        }}"
    );
    cluster.node.inside(move || nft(&firewall));
    cluster
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_firewall_that_accepts_the_mark_lets_through_what_is_served_and_nothing_else() {
    const SSH: u16 = 22;
    let cluster = cluster(HostFirewall::Accept, MARKED);
    cluster.node.echo_peers(SSH);
    for at in Family::BOTH.map(addresses) {
        for (who, host) in [("a client outside", &cluster.client), ("a pod", &cluster.pod1)] {
            for server in servers(&at) {
                let outcome = host.answer_of(server);
                assert!(matches!(outcome, Outcome::Heard(_)), "{who} to {server}: {outcome:?}");
            }
            let ssh = SocketAddr::new(at.node_towards_client, SSH);
            assert_eq!(host.connect(ssh, BRIEFLY), Outcome::Silence, "{who} to {ssh}");
            let pod = SocketAddr::new(at.pod2, TARGET_PORT);
            assert_eq!(host.connect(pod, BRIEFLY), Outcome::Silence, "{who} to {pod}, past the Service");
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn as_kube_proxy_does_the_mark_lets_health_checks_in_and_nothing_else() {
    let cluster = cluster(HostFirewall::AsKubeProxy, MARKED);
    for at in Family::BOTH.map(addresses) {
        let [vip, node_port, local_node_port, health_checks] = servers(&at);
        let outcome = cluster.client.answer_of(health_checks);
        assert!(matches!(outcome, Outcome::Heard(_)), "{health_checks}: {outcome:?}");
        for server in [vip, node_port, local_node_port] {
            assert_eq!(cluster.client.connect(server, BRIEFLY), Outcome::Silence, "{server}");
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_firewall_that_knows_nothing_of_the_mark_drops_it_all() {
    let cluster = cluster(HostFirewall::Accept, "");
    for at in Family::BOTH.map(addresses) {
        for server in servers(&at) {
            assert_eq!(cluster.client.connect(server, BRIEFLY), Outcome::Silence, "{server}");
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_mark_for_the_firewall_is_seen_in_its_hook_only() {
    let cluster = cluster(HostFirewall::Accept, MARKED);
    let chain = |name: &str, hook: &str| {
        format!(
            "chain {name} {{ type filter hook {hook}; meta mark & 0x1000 != 0 counter comment \"{name}\"; }}"
        )
    };
    let chains = [
        chain("seen-in-input", "input priority 89"),
        chain("seen-in-forward", "forward priority 89"),
        chain("prerouting", "prerouting priority 300"),
        chain("input-at-ipvs", "input priority 97"),
        chain("forward-at-ipvs", "forward priority 98"),
        chain("output", "output priority 300"),
        chain("postrouting", "postrouting priority 300"),
    ];
    let witness = format!("table inet witness {{\n{}\n}}", chains.join("\n"));
    cluster.node.inside(move || nft(&witness));
    for server in Family::BOTH.map(addresses).map(|at| servers(&at)).concat() {
        cluster.client.answer_of(server);
        cluster.pod1.answer_of(server);
    }
    let listed = cluster.node.inside(|| run("nft list table inet witness"));
    let seen: Vec<_> = listed
        .lines()
        .filter(|line| line.contains("comment") && !line.contains("packets 0 "))
        .map(|line| line.split('"').nth(1).unwrap())
        .collect();
    assert_eq!(seen, ["seen-in-input", "seen-in-forward"], "{listed}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_same_bit_set_by_others_on_what_is_not_ours_stays() {
    const SSH: u16 = 22;
    let cluster = cluster(HostFirewall::Accept, "accept");
    cluster.node.echo_peers(SSH);
    let theirs = "table inet theirs {
        chain prerouting {
            type filter hook prerouting priority -140; ct state new meta mark set meta mark | 0x1000;
        }
        chain input { type filter hook input priority 300; meta mark & 0x1000 != 0 counter comment \"input\"; }
        chain forward { type filter hook forward priority 300; meta mark & 0x1000 != 0 counter comment \"forward\"; }
    }";
    cluster.node.inside(move || nft(theirs));
    for at in Family::BOTH.map(addresses) {
        cluster.client.answer_of(SocketAddr::new(at.node_towards_client, SSH));
        cluster.pod1.answer_of(SocketAddr::new(at.pod2, TARGET_PORT));
    }
    let listed = cluster.node.inside(|| run("nft list table inet theirs"));
    for hook in ["input", "forward"] {
        let line = listed.lines().find(|line| line.contains(&format!("comment \"{hook}\""))).unwrap();
        // A connection of each family.
        assert!(line.contains("packets 2 "), "{listed}");
    }
}
