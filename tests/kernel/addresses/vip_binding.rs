//! What the two ways to bind a VIP do to the node's neighbours and to its own programs: docs/evidence/vip-binding.md.

use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr, TcpListener, UdpSocket},
    process::Stdio,
};

use serde_json::json;
use testkit::{daemon::eventually, lab::Host};

use crate::support::cluster::{Cluster, NO_PERIOD, Service, V4, V6, at};

const ADDRESS: &str = "--vip-binding=address";
const ROUTE: &str = "--vip-binding=route";
const BINDINGS: [&str; 2] = [ADDRESS, ROUTE];
const VIPS: [&str; 2] = [V4, V6];

/// A node whose default route leads to the client, as in life: by it the node's own address is found. Two
/// Services, one of each family.
fn cluster(arguments: &[&str]) -> Cluster {
    let mut cluster = Cluster::without_daemon(1);
    cluster.lab.node.ip("route add default via 192.168.50.2\nroute add ::/0 via fd00:50::2").unwrap();
    cluster.restart(&[&[NO_PERIOD], arguments].concat());
    for vip in VIPS {
        cluster.apply(&Service::tcp(vip).endpoints([1]));
    }
    cluster
}

/// What a host knows of who has an address on its link `eth0`: `… lladdr …` or `… FAILED`; empty if it never asked.
fn neighbour(host: &Host, ip: &str) -> String {
    host.run("ip", &["neigh", "show", ip, "dev", "eth0"]).unwrap()
}

/// The client takes a VIP for a neighbour of its own and asks who has it.
fn asks_who_has(client: &Host, vip: &str) -> bool {
    client.ip(&format!("route replace {vip} dev eth0")).unwrap();
    let answered = client.ping(vip.parse().unwrap()).is_ok();
    let seen = neighbour(client, vip);
    assert_eq!(seen.contains("lladdr"), answered, "{seen}");
    answered
}

/// The client need not ask who the node is: by its question the node would know who the client is.
fn knows_its_gateway(client: &Host, node: &Host) {
    let link = node.run("ip", &["-brief", "link", "show", "dev", "eth0"]).unwrap();
    let hardware_address = link.split_whitespace().nth(2).unwrap();
    for gateway in [client.gateway(client.ipv4.into()), client.gateway(client.ipv6.into())] {
        client
            .ip(&format!("neigh replace {gateway} lladdr {hardware_address} dev eth0 nud permanent"))
            .unwrap();
    }
}

/// The source that the node chooses for a datagram to an address, without sending one.
fn source_towards(node: &Host, ip: &str) -> IpAddr {
    let target = at(ip, 9);
    let chosen = node.inside(move || {
        let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).unwrap();
        socket.connect(target).unwrap();
        socket.local_addr().unwrap().ip()
    });
    chosen.unwrap()
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_vip_is_answered_to_neighbours_by_non_strict_arp_and_never_in_ipv6() {
    for binding in BINDINGS {
        let mut cluster = cluster(&[binding]);
        assert!(asks_who_has(&cluster.lab.client, V4), "{binding}");
        assert_eq!(cluster.lab.client.ask(at(V4, 80)).unwrap().from, "pod-1", "{binding}");
        assert!(!asks_who_has(&cluster.lab.client, V6), "{binding}");

        cluster.restart(&[NO_PERIOD, binding, "--ipvs-strict-arp"]);
        cluster.lab.client.ip("neigh flush dev eth0").unwrap();
        for vip in VIPS {
            assert!(!asks_who_has(&cluster.lab.client, vip), "{binding}, strict: {vip}");
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn only_non_strict_arp_asks_for_neighbours_from_a_vip() {
    for binding in BINDINGS {
        for (strict, named) in [("--ipvs-strict-arp=false", true), ("--ipvs-strict-arp=true", false)] {
            let cluster = cluster(&[binding, strict]);
            let (node, client) = (&cluster.lab.node, &cluster.lab.client);
            knows_its_gateway(client, node);
            for (vip, named) in [(V4, named), (V6, false)] {
                node.ip("neigh flush dev eth0").unwrap();
                client.ping(vip.parse().unwrap()).unwrap();
                let learnt = neighbour(client, vip);
                assert_eq!(learnt.contains("lladdr"), named, "{binding} {strict} {vip}: {learnt:?}");
            }
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_node_goes_elsewhere_from_its_own_address() {
    for binding in BINDINGS {
        let cluster = cluster(&[binding]);
        let (node, pod) = (&cluster.lab.node, &cluster.lab.pods[0]);
        for vip in VIPS.map(|vip| vip.parse().unwrap()) {
            let to_the_pod = node.ask(cluster.pod_address(1, vip)).unwrap();
            assert_eq!(to_the_pod.seen_as, pod.gateway(vip), "{binding}");
        }
        for (elsewhere, own) in [("198.18.0.1", "192.168.50.1"), ("2001:db8:9::1", "fd00:50::1")] {
            assert_eq!(source_towards(node, elsewhere), own.parse::<IpAddr>().unwrap(), "{binding}");
        }
    }
}

/// VIPs that resemble the addresses of pods more than the node's own do.
const LIKE_A_POD: [&str; 2] = ["10.245.0.77", "fd00:10:245::77"];

/// The node's own addresses.
const OWN: [&str; 2] = ["192.168.50.1", "fd00:50::1"];

/// A node whose links have no address, by which the kernel would know its source: those to the pod are like Calico's,
/// and `later`, which has the node's addresses, is younger than kube-ipvs0. The kernel asks the devices in order.
fn unnumbered(arguments: &[&str]) -> Cluster {
    let mut cluster = Cluster::without_daemon(1);
    let (node, pod, client) = (&cluster.lab.node, &cluster.lab.pods[0], &cluster.lab.client);
    for (host, device) in [(pod, "veth1"), (client, "eth0")] {
        let link = node.run("ip", &["-brief", "link", "show", "dev", device]).unwrap();
        let hardware_address = link.split_whitespace().nth(2).unwrap();
        for address in [IpAddr::from(host.ipv4), host.ipv6.into()] {
            let gateway = host.gateway(address);
            let bits = if gateway.is_ipv4() { 24 } else { 64 };
            node.ip(&format!("addr del {gateway}/{bits} dev {device}")).unwrap();
            node.ip(&format!("route replace {address} dev {device}")).unwrap();
            host.ip(&format!("neigh replace {gateway} lladdr {hardware_address} dev eth0 nud permanent"))
                .unwrap();
        }
    }
    node.ip(&format!(
        "link add kube-ipvs0 type dummy
         link add later type dummy
         link set later up
         addr add {}/32 dev later
         addr add {}/128 dev later nodad
         route replace default via 192.168.50.2 dev eth0 onlink
         route replace ::/0 via fd00:50::2 dev eth0",
        OWN[0], OWN[1]
    ))
    .unwrap();
    cluster.restart(&[&[NO_PERIOD], arguments].concat());
    for vip in VIPS {
        cluster.apply(&Service::tcp(vip).endpoints([1]));
    }
    let other = json!({ "clusterIPs": LIKE_A_POD, "ports": [{ "port": 80 }] });
    cluster.apply(&Service::new("other", &other).endpoints([1]));
    cluster
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn no_vip_is_the_source_of_what_the_node_sends_or_masquerades() {
    for binding in BINDINGS {
        let cluster = unnumbered(&[binding]);
        let (node, client) = (&cluster.lab.node, &cluster.lab.client);
        for (vip, own) in VIPS.into_iter().zip(OWN) {
            let own: IpAddr = own.parse().unwrap();
            assert_eq!(node.ask(cluster.pod_address(1, own)).unwrap().seen_as, own, "{binding}");
            for host in [node, client] {
                let answer = host.ask(at(vip, 80)).unwrap();
                assert_eq!(answer.seen_as, own, "{binding}: {} asked {vip}", host.name);
            }
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn connections_of_the_node_to_a_pod_outlive_unrelated_services() {
    for binding in BINDINGS {
        let cluster = unnumbered(&[binding]);
        let own = OWN.map(|ip| ip.parse::<IpAddr>().unwrap());
        let mut opened = own.map(|own| cluster.lab.node.connect(cluster.pod_address(1, own)).unwrap());
        let other = json!({ "clusterIPs": LIKE_A_POD, "ports": [{ "port": 80 }] });
        cluster.delete(&Service::new("other", &other));
        cluster.shows("it is gone", |table| {
            table.iter().all(|(address, _)| !LIKE_A_POD.contains(&address.ip.to_string().as_str()))
        });
        for vip in LIKE_A_POD {
            cluster.is_bound(vip.parse().unwrap(), false);
        }
        for connection in &mut opened {
            connection.still_works().unwrap();
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn addresses_that_kube_proxy_left_are_made_right_in_place() {
    let mut cluster = cluster(&[]);
    let mut opened: Vec<_> = VIPS
        .into_iter()
        .flat_map(|vip| {
            [&cluster.lab.node, &cluster.lab.client].map(|host| host.connect(at(vip, 80)).unwrap())
        })
        .collect();
    cluster.stop();
    let node = &cluster.lab.node;
    node.ip(&format!(
        "route add local {V4} dev lo table local metric 1
         addr del {V4}/32 dev kube-ipvs0
         addr add {V4}/32 dev kube-ipvs0
         route del local {V4} dev lo table local metric 1
         addr change {V6}/128 dev kube-ipvs0 preferred_lft forever"
    ))
    .unwrap();
    let watched = ["monitor", "address", "dev", "kube-ipvs0"];
    let mut watcher = node.command("ip").args(watched).stdout(Stdio::piped()).spawn().unwrap();
    cluster.restart(&[NO_PERIOD]);
    let node = &cluster.lab.node;
    eventually("each is the source of nothing else", || {
        let shown = node.run("ip", &["-o", "addr", "show", "dev", "kube-ipvs0"])?;
        let right = |line: &str| line.contains("scope link") || line.contains("deprecated");
        anyhow::ensure!(shown.lines().count() == 2 && shown.lines().all(right), "{shown}");
        Ok(())
    })
    .unwrap();
    for connection in &mut opened {
        connection.still_works().unwrap();
    }
    cluster.resync_writes_nothing();
    // An IPv4 address is only added again, behind a route.
    watcher.kill().unwrap();
    let reported = String::from_utf8(watcher.wait_with_output().unwrap().stdout).unwrap();
    assert!(
        !reported.lines().any(|line| line.starts_with("Deleted") && line.contains("inet6")),
        "{reported}"
    );
    assert_eq!(node.run("ip", &["route", "show", "table", "local", "proto", "73"]).unwrap(), "");

    // kube-proxy takes back what is there, and what others make an ordinary address again is repaired at once.
    node.ip(&format!("addr change {V6}/128 dev kube-ipvs0 preferred_lft forever")).unwrap();
    eventually("it is deprecated again", || {
        let shown = node.run("ip", &["-6", "-o", "addr", "show", "dev", "kube-ipvs0"])?;
        anyhow::ensure!(shown.contains("deprecated"), "{shown}");
        Ok(())
    })
    .unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_vip_is_answered_to_neighbours_by_arp_ignore_3_as_kube_proxys_are() {
    for binding in BINDINGS {
        let cluster = cluster(&[binding]);
        cluster.lab.node.run("sysctl", &["-qw", "net.ipv4.conf.all.arp_ignore=3"]).unwrap();
        assert_eq!(asks_who_has(&cluster.lab.client, V4), binding == ADDRESS, "{binding}");
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_node_goes_to_a_vip_from_that_vip_or_from_its_own_address() {
    for (binding, expected) in [(ADDRESS, VIPS), (ROUTE, ["192.168.50.1", "fd00:50::1"])] {
        let cluster = cluster(&[binding]);
        for (vip, source) in VIPS.into_iter().zip(expected) {
            let chosen = source_towards(&cluster.lab.node, vip);
            assert_eq!(chosen, source.parse::<IpAddr>().unwrap(), "{binding}");
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_program_on_the_node_can_bind_a_vip_except_an_ipv6_vip_bound_as_route() {
    for binding in BINDINGS {
        let cluster = cluster(&[binding]);
        for vip in VIPS {
            let address = SocketAddr::new(vip.parse().unwrap(), 0);
            let bound = cluster.lab.node.inside(move || TcpListener::bind(address)).unwrap();
            match (binding, vip) {
                (ROUTE, V6) => assert_eq!(bound.unwrap_err().kind(), ErrorKind::AddrNotAvailable),
                _ => drop(bound.unwrap()),
            }
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_list_of_addresses_has_the_vips_that_are_addresses_and_none_is_tentative() {
    for (binding, listed) in [(ADDRESS, true), (ROUTE, false)] {
        let cluster = cluster(&[binding]);
        let node = &cluster.lab.node;
        let shown = node.run("ip", &["-o", "addr", "show"]).unwrap();
        for vip in VIPS {
            assert_eq!(shown.contains(&format!(" {vip}/")), listed, "{binding}: {shown}");
        }
        let tentative = node.run("ip", &["addr", "show", "dev", "kube-ipvs0", "tentative"]).unwrap();
        assert!(!tentative.contains("inet"), "{binding}: {tentative}");
        assert!(node.run("ip", &["link", "show", "kube-ipvs0"]).unwrap().contains("NOARP"), "{binding}");
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn vips_that_become_routes_are_not_taken_for_node_addresses() {
    const BALANCER: &str = "2001:db8::20";
    let mut cluster = Cluster::without_daemon(1);
    // The way out has no address of its own: the kernel chooses among those of all links.
    cluster.lab.node.ip("link add bare type dummy\nlink set bare up\nroute add ::/0 dev bare").unwrap();
    cluster.restart(&[NO_PERIOD, ADDRESS]);
    let balanced = Service::tcp(V6).patch(&json!({
        "spec": { "type": "LoadBalancer" },
        "status": { "loadBalancer": { "ingress": [{ "ip": BALANCER }] } },
    }));
    cluster.apply(&balanced.endpoints([1]));
    cluster.is_bound(BALANCER.parse().unwrap(), true);

    cluster.restart(&[NO_PERIOD, ROUTE]);
    cluster.is_bound(BALANCER.parse().unwrap(), false);
    let log = cluster.daemon().log();
    assert!(!log.contains(&format!("source_v6: Some({BALANCER})")), "{log}");
    for vip in [V6, BALANCER] {
        assert_eq!(cluster.lab.client.ask(at(vip, 80)).unwrap().from, "pod-1");
        let source = source_towards(&cluster.lab.node, vip);
        assert!(source != vip.parse::<IpAddr>().unwrap(), "the node asks {vip} from {source}");
    }
}
