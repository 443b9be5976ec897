//! Whose connections to a ClusterIP are masqueraded: packets through our table and IPVS, seen from
//! the real server.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ipvs::{Family, Protocol, RealServerAddress, ServiceAddress};
use netfilter::{Change, Element, HairpinFlow, KernelNetfilter, LocalTraffic, Netfilter, Policy};

use crate::{
    host::Host,
    programs::{nft, run},
};

/// A node with two pods and a client outside of the cluster.
struct Cluster {
    node: Host,
    pod1: Host,
    pod2: Host,
    client: Host,
}

const PORT: u16 = 80;
const TARGET_PORT: u16 = 8080;
const MARK: u32 = 0x4000;

/// Addresses end in 1 on the node's side of a link and in 2 on the other.
struct Addresses {
    vip: IpAddr,
    pod1: IpAddr,
    pod2: IpAddr,
    client: IpAddr,
    node_towards_pod1: IpAddr,
    node_towards_pod2: IpAddr,
}

fn addresses(family: Family) -> Addresses {
    let of = |v4: &str, v6: &str| if family == Family::V4 { v4 } else { v6 }.parse().unwrap();
    Addresses {
        vip: of("10.96.0.10", "fd00:10:96::10"),
        pod1: of("10.244.1.2", "fd00:10:244:1::2"),
        pod2: of("10.244.2.2", "fd00:10:244:2::2"),
        client: of("192.0.2.2", "2001:db8::2"),
        node_towards_pod1: of("10.244.1.1", "fd00:10:244:1::1"),
        node_towards_pod2: of("10.244.2.1", "fd00:10:244:2::1"),
    }
}

impl Cluster {
    fn new() -> Self {
        let cluster = Self { node: Host::new(), pod1: Host::new(), pod2: Host::new(), client: Host::new() };
        let node = &cluster.node;
        cluster.pod1.plug_into(node, "pod1", &["10.244.1.", "fd00:10:244:1::"]);
        cluster.pod2.plug_into(node, "pod2", &["10.244.2.", "fd00:10:244:2::"]);
        cluster.client.plug_into(node, "uplink", &["192.0.2.", "2001:db8::"]);
        node.write("/proc/sys/net/ipv4/ip_forward", "1");
        node.write("/proc/sys/net/ipv6/conf/all/forwarding", "1");
        node.write("/proc/sys/net/ipv4/vs/conntrack", "1");
        node.ip(&["link add kube-ipvs0 type dummy"]);
        for family in Family::BOTH {
            let vip = addresses(family).vip;
            let length = family.address_bits();
            node.ip(&[&format!("address add {vip}/{length} dev kube-ipvs0")]);
        }
        cluster.pod1.echo_peers(TARGET_PORT);
        cluster.pod2.echo_peers(TARGET_PORT);
        cluster
    }

    /// A cluster whose services, one per family, have `pod` as their only real server.
    fn balancing_to(pod: impl Fn(&Addresses) -> IpAddr) -> Self {
        let cluster = Self::new();
        for family in Family::BOTH {
            let service = SocketAddr::new(addresses(family).vip, PORT);
            let real = SocketAddr::new(pod(&addresses(family)), TARGET_PORT);
            cluster.node.inside(move || {
                run(&format!("ipvsadm -A -t {service} -s rr"));
                run(&format!("ipvsadm -a -t {service} -r {real} -m"));
            });
        }
        cluster
    }

    /// Installs both tables with the VIPs, and hairpin elements for `local` pods.
    fn install(&self, policy: &Policy, local: impl Fn(&Addresses) -> Vec<IpAddr>) {
        let mut changes = Vec::new();
        for family in Family::BOTH {
            let addresses = addresses(family);
            changes.push(Change::InstallTable(family));
            let vip = ServiceAddress { protocol: Protocol::Tcp, ip: addresses.vip, port: PORT };
            changes.push(Change::AddElement(Element::ClusterIp(vip)));
            changes.extend(local(&addresses).into_iter().map(|ip| {
                let pod = RealServerAddress { ip, port: TARGET_PORT };
                Change::AddElement(Element::Hairpin(HairpinFlow { protocol: Protocol::Tcp, pod }))
            }));
        }
        let policy = policy.clone();
        self.node.inside(move || KernelNetfilter::open(&policy).unwrap().apply(&changes).unwrap());
    }
}

fn policy(local_traffic: LocalTraffic) -> Policy {
    Policy { masquerade_all: false, mark: MARK, local_traffic }
}

fn cluster_cidr() -> LocalTraffic {
    LocalTraffic::Source {
        ipv4: Some("10.244.0.0/16".parse().unwrap()),
        ipv6: Some("fd00:10:244::/48".parse().unwrap()),
    }
}

/// The source that the real server sees of a connection from `host` to the VIP of `family`.
#[track_caller]
fn seen(host: &Host, family: Family) -> IpAddr {
    let vip = SocketAddr::new(addresses(family).vip, PORT);
    match host.source_seen_by(vip, Duration::from_secs(10)) {
        Some(source) => source,
        None => panic!("{family}: no answer from {vip}"),
    }
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
    // A second pair of eyes: somebody else's bit 0 on everything, and counters on both sides of ours.
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
    let packets = |comment: &str| -> u32 {
        let line = listed.lines().find(|line| line.contains(&format!("\"{comment}\""))).unwrap();
        line.split("packets ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap()
    };
    assert_eq!(
        (packets("marked"), packets("leaked"), packets("kept"), packets("lost")),
        (8, 0, 8, 0),
        "{listed}"
    );
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn requests_pass_the_hooks_in_the_order_that_the_crate_documents() {
    const POINTS: [(&str, &str); 7] = [
        ("prerouting", "type filter hook prerouting priority -150"),
        ("input", "type filter hook input priority 0"),
        ("forward", "type filter hook forward priority 0"),
        ("output-early", "type filter hook output priority -150"),
        ("output-nat", "type nat hook output priority -101"),
        ("output-late", "type filter hook output priority 0"),
        ("postrouting", "type filter hook postrouting priority 50"),
    ];
    // Where the first packet of a connection from `host` is seen, and where it was going there.
    let walk = |host: fn(&Cluster) -> &Host| {
        let cluster = Cluster::balancing_to(|a| a.pod2);
        cluster.install(&policy(cluster_cidr()), |_| vec![]);
        let chains = POINTS.map(|(name, hook)| {
            let count = |port, to| {
                format!("tcp flags & (syn|ack) == syn tcp dport {port} counter comment \"{name} {to}\"")
            };
            let (vip, real) = (count(PORT, "VIP"), count(TARGET_PORT, "pod"));
            format!("chain {name} {{ {hook}; {vip}; {real}; }}")
        });
        cluster.node.inside(move || nft(&format!("table ip walk {{\n{}\n}}", chains.join("\n"))));
        seen(host(&cluster), Family::V4);
        let listed = cluster.node.inside(|| run("nft list table ip walk"));
        let seen = listed.lines().filter(|line| line.contains("comment") && !line.contains("packets 0 "));
        seen.map(|line| line.split('"').nth(1).unwrap().to_owned()).collect::<Vec<_>>()
    };
    let through_the_node =
        ["prerouting VIP", "input VIP", "output-early pod", "output-late pod", "postrouting pod"];
    assert_eq!(walk(|c| &c.client), through_the_node);
    assert_eq!(walk(|c| &c.pod1), through_the_node);
    assert_eq!(
        walk(|c| &c.node),
        ["output-early VIP", "output-early pod", "output-nat VIP", "output-late pod", "postrouting pod"]
    );
}
