//! Where Services are served: NodePorts follow the node's addresses, VIPs those of its Services.

use std::{collections::BTreeSet, net::IpAddr};

use anyhow::ensure;
use serde_json::{Value, json};
use testkit::daemon::eventually;

use crate::support::cluster::{Cluster, NO_PERIOD, Service, V4, V6, at, is_refused, tcp};

const NODE_PORT: u16 = 30_080;

/// The addresses of a lab's node with one pod.
const NODE_V4: [&str; 2] = ["10.244.1.1", "192.168.50.1"];
const NODE_V6: [&str; 2] = ["fd00:10:244:1::1", "fd00:50::1"];

/// A Service in both families that is also reached at a port of the node.
fn with_node_port() -> Service {
    Service::new(
        "web",
        &json!({
            "type": "NodePort",
            "clusterIPs": [V4, V6],
            "ports": [{ "port": 80, "nodePort": NODE_PORT }],
        }),
    )
    .endpoints([1])
}

/// A Service with an external address.
fn with_external_ip(external: &str) -> Service {
    let vip = if external.contains(':') { V6 } else { V4 };
    Service::tcp(vip).patch(&json!({ "spec": { "externalIPs": [external] } })).endpoints([1])
}

/// A Service at port 80, or another, of a load balancer's address.
fn balanced(name: &str, vip: &str, port: u16, balancer: &str) -> Service {
    Service::new(name, &json!({ "type": "LoadBalancer", "clusterIPs": [vip], "ports": [{ "port": port }] }))
        .patch(&json!({ "status": { "loadBalancer": { "ingress": [{ "ip": balancer }] } } }))
}

fn ips<'a>(texts: impl IntoIterator<Item = &'a str>) -> BTreeSet<IpAddr> {
    texts.into_iter().map(|text| text.parse().unwrap()).collect()
}

/// Waits until a port is served at exactly these addresses.
fn served_at<'a>(cluster: &Cluster, port: u16, wanted: impl IntoIterator<Item = &'a str>) {
    let wanted = ips(wanted);
    cluster.shows(&format!("port {port} at {wanted:?}"), |table| {
        let there = || table.iter().filter(|(address, _)| address.port == port);
        there().map(|(address, _)| address.ip).eq(wanted.iter().copied())
            && there().all(|(_, server)| !server.weights().is_empty())
    });
}

/// Writes the node's own Node.
fn write_node(cluster: &Cluster, addresses: &[&str]) {
    let address = |ip: &&str| json!({ "type": "InternalIP", "address": ip });
    cluster.write_manifest(
        "node",
        &json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": { "name": "node" },
            "status": { "addresses": addresses.iter().map(address).collect::<Value>() },
        }),
    );
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_node_port_follows_the_node_s_addresses_except_loopback_and_vips() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    cluster.apply(&with_node_port());
    let always = || NODE_V4.into_iter().chain(NODE_V6);
    served_at(&cluster, NODE_PORT, always());
    let (node, client, pod) = (&cluster.lab.node, &cluster.lab.client, &cluster.lab.pods[0]);
    for address in always() {
        for host in [node, client, pod] {
            assert_eq!(
                host.ask(at(address, NODE_PORT)).unwrap().from,
                "pod-1",
                "{} asked {address}",
                host.name
            );
        }
    }
    for (host, address) in [(node, "127.0.0.1"), (node, "::1"), (client, V4), (client, V6), (pod, V4)] {
        is_refused(host, tcp(address, NODE_PORT));
    }

    node.ip("addr add 192.168.50.77/24 dev eth0\naddr add fd00:50::77/64 dev eth0 nodad").unwrap();
    let new = ["192.168.50.77", "fd00:50::77"];
    served_at(&cluster, NODE_PORT, always().chain(new));
    for address in new {
        assert_eq!(client.ask(at(address, NODE_PORT)).unwrap().from, "pod-1", "{address}");
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn connections_to_a_node_port_outlive_a_short_absence_of_the_nodes_address() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    let (node, client) = (&cluster.lab.node, &cluster.lab.client);
    cluster.apply(&with_node_port());
    for (address, prefix, another) in
        [("192.168.50.1", 24, "192.168.51.77"), ("fd00:50::1", 64, "fd00:51::77")]
    {
        cluster.serves(tcp(address, NODE_PORT), &[1]);
        let mut connection = client.connect(at(address, NODE_PORT)).unwrap();
        let dad = if address.contains(':') { "nodad" } else { "" };
        node.ip(&format!(
            "addr del {address}/{prefix} dev eth0
             addr add {another}/{prefix} dev eth0 {dad}"
        ))
        .unwrap();
        // The kernel's notifications come in order: the daemon knows that the first address has gone.
        cluster.serves(tcp(another, NODE_PORT), &[1]);
        node.ip(&format!("addr add {address}/{prefix} dev eth0 {dad}")).unwrap();
        // An IPv6 address has its prefix's route at once, and its own a little later (`addrconf_dad_work`). What
        // comes in between is forwarded, by another interface than before, and conntrack forgets the masqueraded
        // connection (`nf_nat_oif_changed`).
        eventually("the address is the node's again", || {
            let route = node.run("ip", &["route", "get", address])?;
            ensure!(route.starts_with("local "), "{route}");
            Ok(())
        })
        .unwrap();
        connection.still_works().unwrap();
    }
}

/// The kernel forgets them soon (`masq_inet_event` in net/netfilter/nf_nat_masquerade.c), whichever program masquerades.
#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn connections_masqueraded_with_an_address_are_reset_when_it_goes_for_a_moment() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    let (node, client) = (&cluster.lab.node, &cluster.lab.client);
    cluster.apply(&with_node_port());
    for (address, masquerades) in
        [("192.168.50.1", "10.244.1.1/24 dev veth1"), ("fd00:50::1", "fd00:10:244:1::1/64 dev veth1")]
    {
        cluster.serves(tcp(address, NODE_PORT), &[1]);
        let mut connection = client.connect(at(address, NODE_PORT)).unwrap();
        let dad = if address.contains(':') { "nodad" } else { "" };
        node.ip(&format!("addr del {masquerades}\naddr add {masquerades} {dad}")).unwrap();
        eventually("the connection is broken", || {
            ensure!(connection.still_works().is_err());
            Ok(())
        })
        .unwrap();
        eventually("new ones are served", || client.ask(at(address, NODE_PORT))).unwrap();
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn node_ports_keep_to_their_ranges_and_a_family_without_one_has_no_limit() {
    let mut cluster = Cluster::start(1, &[NO_PERIOD, "--nodeport-addresses=192.168.50.0/24"]);
    cluster.apply(&with_node_port());
    served_at(&cluster, NODE_PORT, NODE_V6.into_iter().chain(["192.168.50.1"]));
    is_refused(&cluster.lab.client, tcp("10.244.1.1", NODE_PORT));

    cluster.restart(&[NO_PERIOD, "--nodeport-addresses=192.168.50.0/24,fd00:50::/64"]);
    served_at(&cluster, NODE_PORT, ["192.168.50.1", "fd00:50::1"]);
    let node = &cluster.lab.node;
    node.ip("addr add 192.168.51.77/24 dev eth0\naddr add 192.168.50.77/24 dev eth0").unwrap();
    served_at(&cluster, NODE_PORT, ["192.168.50.1", "192.168.50.77", "fd00:50::1"]);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn node_ports_at_the_primary_addresses_follow_the_node_object() {
    let cluster = Cluster::start(1, &[NO_PERIOD, "--nodeport-addresses=primary"]);
    write_node(&cluster, &["192.168.50.1"]);
    cluster.apply(&with_node_port());
    served_at(&cluster, NODE_PORT, ["192.168.50.1"]);
    write_node(&cluster, &["fd00:50::1", "10.244.1.1", "192.168.50.1"]);
    served_at(&cluster, NODE_PORT, ["10.244.1.1", "fd00:50::1"]);
    assert_eq!(cluster.lab.client.ask(at("fd00:50::1", NODE_PORT)).unwrap().from, "pod-1");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn an_external_address_is_bound_only_while_no_interface_of_the_node_has_it() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    let (node, client) = (&cluster.lab.node, &cluster.lab.client);
    // Off the client's own network: it sends through the node wherever the node has the address.
    for (external, on_eth0, at_once) in [
        ("203.0.113.10", "203.0.113.10/32 dev eth0", ""),
        ("2001:db8::10", "2001:db8::10/128 dev eth0", "nodad"),
    ] {
        let vip = external.parse().unwrap();
        let answered = || assert_eq!(client.ask(at(external, 80)).unwrap().from, "pod-1", "{external}");
        node.ip(&format!("addr add {on_eth0} {at_once}")).unwrap();
        cluster.apply(&with_external_ip(external));
        cluster.serves(tcp(external, 80), &[1]);
        let mut connection = client.connect(at(external, 80)).unwrap();
        assert!(!cluster.bound().unwrap().contains(&vip), "{vip} is on eth0 and on kube-ipvs0");

        node.ip(&format!("addr del {on_eth0}")).unwrap();
        cluster.is_bound(vip, true);
        connection.still_works().unwrap();
        answered();

        node.ip(&format!("addr add {on_eth0} {at_once}")).unwrap();
        cluster.is_bound(vip, false);
        connection.still_works().unwrap();
        answered();
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn service_at_an_allowed_node_address_leaves_the_address_to_the_node() {
    let cluster = Cluster::start(1, &[NO_PERIOD, "--external-ip-policy=192.168.50.1/32,fd00:50::1/128"]);
    write_node(&cluster, &["192.168.50.1", "fd00:50::1"]);
    for address in ["192.168.50.1", "fd00:50::1"] {
        let web = with_external_ip(address);
        cluster.apply(&web);
        cluster.serves(tcp(address, 80), &[1]);
        for host in [&cluster.lab.client, &cluster.lab.node, &cluster.lab.pods[0]] {
            assert_eq!(host.ask(at(address, 80)).unwrap().from, "pod-1", "{} asked {address}", host.name);
        }
        let own = address.parse().unwrap();
        assert!(!cluster.bound().unwrap().contains(&own), "{address} is on kube-ipvs0");
        cluster.delete(&web);
        served_at(&cluster, 80, []);
        let kept = cluster.lab.node.run("ip", &["addr", "show", "dev", "eth0"]).unwrap();
        assert!(kept.contains(&format!(" {address}/")), "{kept}");
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn an_external_ip_of_the_node_is_refused_by_default_and_reported_in_the_status() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    write_node(&cluster, &["192.168.50.1"]);
    cluster.apply(&with_external_ip("192.168.50.1"));
    served_at(&cluster, 80, [V4]);
    let tells = |expected: bool| {
        eventually("the status says what is refused", || {
            let status = cluster.daemon().ask(&cluster.lab.node, "status")?;
            anyhow::ensure!(status.contains("192.168.50.1 is not served") == expected, "{status}");
            Ok(())
        })
        .unwrap();
    };
    tells(true);
    write_node(&cluster, &["192.168.50.77"]);
    served_at(&cluster, 80, [V4, "192.168.50.1"]);
    tells(false);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_change_of_type_adds_and_removes_addresses_and_connections_stay() {
    const BALANCER: [&str; 2] = ["203.0.113.20", "2001:db8::20"];
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    let node_port = with_node_port();
    let cluster_ip = node_port.clone().patch(&json!({ "spec": {
        "type": "ClusterIP",
        "ports": [{ "port": 80 }],
    }}));
    let load_balancer = node_port.clone().patch(&json!({
        "spec": { "type": "LoadBalancer" },
        "status": { "loadBalancer": { "ingress": BALANCER.map(|ip| json!({ "ip": ip })) } },
    }));
    let (own, node) = ([V4, V6], NODE_V4.into_iter().chain(NODE_V6).collect::<Vec<_>>());
    let (without, with) = (own.to_vec(), [own, BALANCER].concat());

    cluster.apply(&cluster_ip);
    let mut connection = cluster.lab.client.connect(at(V4, 80)).unwrap();
    for (service, vips, node_ports) in [
        (&cluster_ip, &without, &[][..]),
        (&node_port, &without, &node),
        (&load_balancer, &with, &node),
        (&node_port, &without, &node),
        (&cluster_ip, &without, &[]),
    ] {
        cluster.write(service);
        served_at(&cluster, 80, vips.iter().copied());
        served_at(&cluster, NODE_PORT, node_ports.iter().copied());
        eventually("the VIPs alone are bound", || {
            let bound = cluster.bound()?;
            anyhow::ensure!(bound == ips(vips.iter().copied()), "{bound:?}");
            Ok(())
        })
        .unwrap();
        let ways = vips.iter().map(|vip| at(vip, 80)).chain(node_ports.iter().map(|ip| at(ip, NODE_PORT)));
        for way in ways {
            assert_eq!(cluster.lab.client.ask(way).unwrap().from, "pod-1", "{way}");
        }
        connection.still_works().unwrap();
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn an_address_that_two_services_share_stays_until_the_last_of_them_is_gone() {
    const SHARED: &str = "203.0.113.20";
    let cluster = Cluster::start(2, &[NO_PERIOD]);
    let client = &cluster.lab.client;
    let web = balanced("web", "10.96.0.10", 80, SHARED).endpoints([1]);
    let mail = balanced("mail", "10.96.0.11", 25, SHARED).endpoints([2]);
    for service in [&web, &mail] {
        cluster.apply(service);
    }
    cluster.serves_all(&[(tcp(SHARED, 80), &[1]), (tcp(SHARED, 25), &[2])]);
    assert_eq!(client.ask(at(SHARED, 80)).unwrap().from, "pod-1");
    assert_eq!(client.ask(at(SHARED, 25)).unwrap().from, "pod-2");

    cluster.delete(&web);
    served_at(&cluster, 80, []);
    cluster.is_bound("10.96.0.10".parse().unwrap(), false);
    assert_eq!(client.ask(at(SHARED, 25)).unwrap().from, "pod-2");
    cluster.delete(&mail);
    cluster.is_bound(SHARED.parse().unwrap(), false);
    served_at(&cluster, 25, []);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_service_that_is_created_again_has_its_external_ip_back() {
    const WANTED: &str = "203.0.113.21";
    let cluster = Cluster::start(2, &[NO_PERIOD]);
    let asking = |namespace: &str, vip: &str, year: u32, pod: usize| {
        let metadata =
            json!({ "namespace": namespace, "creationTimestamp": format!("{year}-01-01T00:00:00Z") });
        let spec = json!({ "clusterIPs": [vip], "externalIPs": [WANTED], "ports": [{ "port": 80 }] });
        Service::new(namespace, &spec).patch(&json!({ "metadata": metadata })).endpoints([pod])
    };
    let (shop, waiting) = (|year| asking("shop", V4, year, 1), asking("other", "10.96.0.66", 2025, 2));
    cluster.apply(&shop(2024));
    cluster.serves(tcp(WANTED, 80), &[1]);
    cluster.apply(&waiting);
    cluster.delete(&shop(2024));
    cluster.serves(tcp(WANTED, 80), &[2]);
    cluster.apply(&shop(2026));
    cluster.serves(tcp(WANTED, 80), &[1]);
    assert_eq!(cluster.lab.client.ask(at(WANTED, 80)).unwrap().from, "pod-1");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_older_of_two_services_has_a_claimed_address_and_then_the_other() {
    const CLAIMED: &str = "203.0.113.20";
    let cluster = Cluster::start(2, &[NO_PERIOD]);
    let client = &cluster.lab.client;
    let created =
        |year: u32| json!({ "metadata": { "creationTimestamp": format!("{year}-01-01T00:00:00Z") } });
    let younger = balanced("a-younger", "10.96.0.10", 80, CLAIMED).patch(&created(2026)).endpoints([1]);
    let older = balanced("b-older", "10.96.0.11", 80, CLAIMED).patch(&created(2025)).endpoints([2]);
    cluster.apply(&younger);
    cluster.serves(tcp(CLAIMED, 80), &[1]);
    cluster.apply(&older);
    cluster.serves(tcp(CLAIMED, 80), &[2]);
    assert_eq!(client.ask(at(CLAIMED, 80)).unwrap().from, "pod-2");
    let problem = || {
        let status = cluster.daemon().ask(&cluster.lab.node, "status")?;
        let is_problem = |line: &&str| line.starts_with("problem:") && line.contains(CLAIMED);
        anyhow::Ok(status.lines().find(is_problem).map(str::to_owned))
    };
    eventually("the status names both", || {
        let problem = problem()?.unwrap_or_default();
        anyhow::ensure!(
            problem.contains("default/b-older") && problem.contains("default/a-younger"),
            "{problem}"
        );
        Ok(())
    })
    .unwrap();

    cluster.delete(&older);
    cluster.serves(tcp(CLAIMED, 80), &[1]);
    assert_eq!(client.ask(at(CLAIMED, 80)).unwrap().from, "pod-1");
    eventually("no conflict is left", || {
        let problem = problem()?;
        anyhow::ensure!(problem.is_none(), "{problem:?}");
        Ok(())
    })
    .unwrap();
}
