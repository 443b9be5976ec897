//! Whose connections to a ClusterIP are masqueraded: packets through our table and IPVS, seen from
//! the real server.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use ipvs::Family;
use netfilter::{LocalTraffic, Policy};

use crate::support::{
    cluster::{Addresses, Cluster, PORT, TARGET_PORT, addresses, cluster_cidr, policy},
    host::Host,
    programs::{nft, packets, run},
};

/// The source that the real server sees of a connection from `host` to the ClusterIP of `family`.
#[track_caller]
fn seen(host: &Host, family: Family) -> IpAddr {
    host.source_at(SocketAddr::new(addresses(family).vip, PORT))
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn with_a_cluster_cidr_all_but_pods_are_masqueraded() {
    let cluster = Cluster::balancing_to(|a| a.pod2);
    cluster.install(&policy(cluster_cidr()), |_| vec![]);
    for family in Family::BOTH {
        let at = addresses(family);
        assert_eq!(seen(&cluster.client, family), at.node_towards_pod2, "client outside, {family}");
        assert_eq!(seen(&cluster.node, family), at.node_towards_pod2, "the node itself, {family}");
        assert_eq!(seen(&cluster.pod1, family), at.pod1, "a pod, {family}");
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn with_masquerade_all_pods_are_masqueraded_too() {
    let cluster = Cluster::balancing_to(|a| a.pod2);
    cluster.install(&Policy { masquerade_all: true, ..policy(cluster_cidr()) }, |_| vec![]);
    for family in Family::BOTH {
        let at = addresses(family);
        for host in [&cluster.client, &cluster.node, &cluster.pod1] {
            assert_eq!(seen(host, family), at.node_towards_pod2, "{family}");
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn without_a_cluster_cidr_only_the_node_is_masqueraded() {
    let cluster = Cluster::balancing_to(|a| a.pod2);
    cluster.install(&policy(LocalTraffic::Source { ipv4: None, ipv6: None }), |_| vec![]);
    for family in Family::BOTH {
        let at = addresses(family);
        assert_eq!(seen(&cluster.node, family), at.node_towards_pod2, "its source was the VIP, {family}");
        assert_eq!(seen(&cluster.client, family), at.client, "{family}");
        assert_eq!(seen(&cluster.pod1, family), at.pod1, "{family}");
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn without_our_table_the_node_connects_from_the_vip() {
    let cluster = Cluster::balancing_to(|a| a.pod2);
    for family in Family::BOTH {
        // On another node the answer would go to that node's own VIP.
        assert_eq!(seen(&cluster.node, family), addresses(family).vip, "{family}");
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn by_interface_prefix_what_comes_from_elsewhere_is_masqueraded() {
    let cluster = Cluster::balancing_to(|a| a.pod2);
    cluster.install(&policy(LocalTraffic::InterfacePrefix("pod".into())), |_| vec![]);
    for family in Family::BOTH {
        let at = addresses(family);
        assert_eq!(seen(&cluster.client, family), at.node_towards_pod2, "{family}");
        assert_eq!(seen(&cluster.node, family), at.node_towards_pod2, "no input interface, {family}");
        assert_eq!(seen(&cluster.pod1, family), at.pod1, "{family}");
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn by_bridge_only_that_very_interface_is_local() {
    let cluster = Cluster::balancing_to(|a| a.pod2);
    for (bridge, pods_source) in [
        ("pod1", (|a| a.pod1) as fn(&Addresses) -> IpAddr),
        ("pod", |a| a.node_towards_pod2),
        ("pod10", |a| a.node_towards_pod2),
    ] {
        cluster.install(&policy(LocalTraffic::Bridge(bridge.into())), |_| vec![]);
        for family in Family::BOTH {
            let at = addresses(family);
            assert_eq!(seen(&cluster.pod1, family), pods_source(&at), "{bridge}, {family}");
            assert_eq!(seen(&cluster.client, family), at.node_towards_pod2, "{bridge}, {family}");
            assert_eq!(seen(&cluster.node, family), at.node_towards_pod2, "{bridge}, {family}");
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_pod_reaches_itself_through_its_service_by_the_hairpin_element() {
    let cluster = Cluster::balancing_to(|a| a.pod1);
    cluster.install(&policy(cluster_cidr()), |_| vec![]);
    for family in Family::BOTH {
        let vip = SocketAddr::new(addresses(family).vip, PORT);
        assert_eq!(
            cluster.pod1.source_seen_by(vip, Duration::from_secs(1)),
            None,
            "it would answer itself directly, {family}"
        );
    }
    cluster.install(&policy(cluster_cidr()), |a| vec![a.pod1]);
    for family in Family::BOTH {
        let at = addresses(family);
        assert_eq!(seen(&cluster.pod1, family), at.node_towards_pod1, "{family}");
        assert_eq!(seen(&cluster.pod2, family), at.pod2, "another pod keeps its address, {family}");
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_mark_is_cleared_before_packets_leave_and_other_bits_stay() {
    let cluster = Cluster::balancing_to(|a| a.pod2);
    cluster.install(&Policy { masquerade_all: true, ..policy(cluster_cidr()) }, |a| vec![a.pod2]);
    // A second pair of eyes: another program's bit 0 on everything, and counters on both sides of ours.
    cluster.node.inside(|| {
        nft("table inet witness {
            chain before { type filter hook prerouting priority mangle; meta mark set 0x1; }
            chain here { type filter hook output priority mangle; meta mark set meta mark | 0x1; }
            chain marked { type filter hook postrouting priority 50; meta mark 0x4001 counter comment \"marked\"; }
            chain after {
                type filter hook postrouting priority 150;
                meta mark & 0x4000 == 0x4000 counter comment \"leaked\"
                tcp flags & (syn|ack) == syn meta mark 0x1 counter comment \"kept\"
                tcp flags & (syn|ack) == syn meta mark != 0x1 counter comment \"lost\"
            }
        }");
    });
    // Marked, masqueraded as hairpin, and from the node itself.
    for host in [&cluster.client, &cluster.pod1, &cluster.pod2, &cluster.node] {
        for family in Family::BOTH {
            seen(host, family);
        }
    }
    let listed = cluster.node.inside(|| run("nft list table inet witness"));
    let packets = |comment| packets(&listed, comment);
    assert_eq!(
        (packets("marked"), packets("leaked"), packets("kept"), packets("lost")),
        (8, 0, 8, 0),
        "{listed}"
    );
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_masqueraded_connection_goes_on_when_the_table_is_built_anew() {
    const SERVER_PORT: u16 = 9090;
    let (cluster, at) = (Cluster::new(), addresses(Family::V4));
    let vip = SocketAddr::new(at.vip, PORT);
    cluster.balance(vip, SocketAddr::new(at.pod2, SERVER_PORT));
    cluster.install(&policy(cluster_cidr()), |_| vec![]);
    let listener = cluster.pod2.inside(|| TcpListener::bind(("0.0.0.0", SERVER_PORT)).unwrap());
    let client = cluster.client.inside(move || TcpStream::connect(vip).unwrap());
    let (server, peer) = listener.accept().unwrap();
    assert_eq!(peer.ip(), at.node_towards_pod2);

    let handle = |listed: String| listed.lines().next().unwrap().to_owned();
    let table = || cluster.node.inside(|| run("nft -a list table ip kube-ipvs"));
    let before = handle(table());
    cluster.node.inside(|| nft("add set ip kube-ipvs unknown { type ipv4_addr; }"));
    cluster.install(&policy(cluster_cidr()), |_| vec![]);
    assert_ne!(handle(table()), before, "another table");

    for (mut from, mut to) in [(&client, &server), (&server, &client)] {
        let mut heard = [0; 5];
        from.write_all(b"hello").unwrap();
        to.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        to.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"hello");
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn requests_pass_the_hooks_in_the_order_that_the_crate_documents() {
    const POINTS: [(&str, &str); 7] = [
        ("prerouting", "type filter hook prerouting priority -150"),
        ("input", "type filter hook input priority 0"),
        ("forward", "type filter hook forward priority 0"),
        ("output-early", "type filter hook output priority -102"),
        ("output-nat", "type nat hook output priority -105"),
        ("output-late", "type filter hook output priority 0"),
        ("postrouting", "type filter hook postrouting priority 50"),
    ];
    let at = addresses(Family::V4);
    // Where the first packet of a connection from `host` to `vip` is seen, and where it was going there.
    let walk = |host: fn(&Cluster) -> &Host, vip: IpAddr| {
        let (cluster, server) = (Cluster::new(), SocketAddr::new(vip, PORT));
        cluster.balance(server, SocketAddr::new(at.pod2, TARGET_PORT));
        cluster.install(&policy(cluster_cidr()), |_| vec![]);
        let chains = POINTS.map(|(name, hook)| {
            let count = |port, to| {
                format!("tcp flags & (syn|ack) == syn tcp dport {port} counter comment \"{name} {to}\"")
            };
            let (vip, real) = (count(PORT, "VIP"), count(TARGET_PORT, "pod"));
            format!("chain {name} {{ {hook}; {vip}; {real}; }}")
        });
        cluster.node.inside(move || nft(&format!("table ip walk {{\n{}\n}}", chains.join("\n"))));
        host(&cluster).source_at(server);
        let listed = cluster.node.inside(|| run("nft list table ip walk"));
        let seen = listed.lines().filter(|line| line.contains("comment") && !line.contains("packets 0 "));
        seen.map(|line| line.split('"').nth(1).unwrap().to_owned()).collect::<Vec<_>>()
    };
    let through_the_node =
        ["prerouting VIP", "input VIP", "output-early pod", "output-late pod", "postrouting pod"];
    let from_the_node =
        ["output-early VIP", "output-early pod", "output-nat VIP", "output-late pod", "postrouting pod"];
    // A NodePort is served at addresses of the node itself, which take the same way.
    for vip in [at.vip, at.node_towards_client] {
        assert_eq!(walk(|c| &c.client, vip), through_the_node);
        assert_eq!(walk(|c| &c.pod1, vip), through_the_node);
        assert_eq!(walk(|c| &c.node, vip), from_the_node);
    }
}
