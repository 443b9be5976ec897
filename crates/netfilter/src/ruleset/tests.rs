use insta::assert_snapshot;

use super::*;
use crate::{
    Element, HostFirewall,
    nft::{chain::ObservedChain, rule::ObservedRule, set::ObservedSet},
};

fn policy(local_traffic: LocalTraffic) -> Policy {
    Policy { masquerade_all: false, mark: 0x4000, local_traffic, host_firewall: HostFirewall::Warn }
}

fn by_source() -> Policy {
    policy(LocalTraffic::Source { ipv4: "10.244.0.0/16".parse().ok(), ipv6: "fd00:10:244::/56".parse().ok() })
}

/// The rules of the chain `services`; the other chains depend on the mark alone.
fn services_of(policy: &Policy, family: Family) -> String {
    let table = Ruleset::new(policy, family).to_string();
    let chain = table.split("chain services {\n").nth(1).unwrap().split("\t}").next().unwrap();
    chain.replace("\t\t", "")
}

#[test]
fn the_ipv4_table() {
    assert_snapshot!(Ruleset::new(&by_source(), Family::V4), @r##"
    table ip kube-ipvs {
    	set cluster-ips {
    		type ipv4_addr . inet_proto . inet_service
    	}

    	set external {
    		type ipv4_addr . inet_proto . inet_service
    	}

    	set hairpin {
    		type ipv4_addr . inet_proto . inet_service . ipv4_addr
    	}

    	chain services {
    		ip saddr 127.0.0.0/8 return comment "loopback is never masqueraded #04a38fb9"
    		ip daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 comment "all flows to an external address #24a73d07"
    		ip saddr 10.244.0.0/16 return comment "pods of this node keep their address #762503d5"
    		ip daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 comment "flows to a ClusterIP from elsewhere #1067966e"
    	}

    	chain prerouting {
    		type nat hook prerouting priority dstnat; policy accept;
    		jump services comment "new connections #ae628e7a"
    	}

    	chain output {
    		type nat hook output priority -100; policy accept;
    		jump services comment "new connections #ae628e7a"
    	}

    	chain postrouting {
    		type nat hook postrouting priority srcnat; policy accept;
    		ip daddr . meta l4proto . th dport . ip saddr @hairpin meta mark set meta mark & 0xffffbfff masquerade comment "a pod that reached itself #d207af6b"
    		meta mark & 0x00004000 == 0x00004000 meta mark set meta mark & 0xffffbfff masquerade fully-random comment "marked flows #bef01819"
    	}
    }
    "##);
}

#[test]
fn the_ipv6_table() {
    assert_snapshot!(Ruleset::new(&by_source(), Family::V6), @r##"
    table ip6 kube-ipvs {
    	set cluster-ips {
    		type ipv6_addr . inet_proto . inet_service
    	}

    	set external {
    		type ipv6_addr . inet_proto . inet_service
    	}

    	set hairpin {
    		type ipv6_addr . inet_proto . inet_service . ipv6_addr
    	}

    	chain services {
    		ip6 saddr ::1 return comment "loopback is never masqueraded #81157790"
    		ip6 daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 comment "all flows to an external address #5233c84d"
    		ip6 saddr fd00:10:244::/56 return comment "pods of this node keep their address #a2192a48"
    		ip6 daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 comment "flows to a ClusterIP from elsewhere #6c28381c"
    	}

    	chain prerouting {
    		type nat hook prerouting priority dstnat; policy accept;
    		jump services comment "new connections #ae628e7a"
    	}

    	chain output {
    		type nat hook output priority -100; policy accept;
    		jump services comment "new connections #ae628e7a"
    	}

    	chain postrouting {
    		type nat hook postrouting priority srcnat; policy accept;
    		ip6 daddr . meta l4proto . th dport . ip6 saddr @hairpin meta mark set meta mark & 0xffffbfff masquerade comment "a pod that reached itself #e62ee216"
    		meta mark & 0x00004000 == 0x00004000 meta mark set meta mark & 0xffffbfff masquerade fully-random comment "marked flows #bef01819"
    	}
    }
    "##);
}

#[test]
fn without_a_range_in_a_family_only_flows_from_a_vip_are_marked() {
    let policy = policy(LocalTraffic::Source { ipv4: None, ipv6: "fd00::/56".parse().ok() });
    assert_snapshot!(services_of(&policy, Family::V4), @r##"
    ip saddr 127.0.0.0/8 return comment "loopback is never masqueraded #04a38fb9"
    ip daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 comment "all flows to an external address #24a73d07"
    ip saddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 comment "flows from a ClusterIP #9d1c6622"
    "##);
    assert_snapshot!(services_of(&policy, Family::V6), @r##"
    ip6 saddr ::1 return comment "loopback is never masqueraded #81157790"
    ip6 daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 comment "all flows to an external address #5233c84d"
    ip6 saddr fd00::/56 return comment "pods of this node keep their address #94210e12"
    ip6 daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 comment "flows to a ClusterIP from elsewhere #6c28381c"
    "##);
}

#[test]
fn masquerade_all_asks_for_no_source() {
    let policy = Policy { masquerade_all: true, ..by_source() };
    assert_snapshot!(services_of(&policy, Family::V4), @r##"
    ip saddr 127.0.0.0/8 return comment "loopback is never masqueraded #04a38fb9"
    ip daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 comment "all flows to an external address #24a73d07"
    ip daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 comment "masquerade all flows to a ClusterIP #1067966e"
    "##);
    assert_snapshot!(services_of(&policy, Family::V6), @r##"
    ip6 saddr ::1 return comment "loopback is never masqueraded #81157790"
    ip6 daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 comment "all flows to an external address #5233c84d"
    ip6 daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 comment "masquerade all flows to a ClusterIP #6c28381c"
    "##);
}

#[test]
fn pods_behind_a_bridge() {
    let policy = policy(LocalTraffic::Bridge("cbr0".into()));
    assert_snapshot!(services_of(&policy, Family::V4), @r##"
    ip saddr 127.0.0.0/8 return comment "loopback is never masqueraded #04a38fb9"
    ip daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 comment "all flows to an external address #24a73d07"
    iifname "cbr0" return comment "pods of this node keep their address #8c4ac508"
    ip daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 comment "flows to a ClusterIP from elsewhere #1067966e"
    "##);
    assert_snapshot!(services_of(&policy, Family::V6), @r##"
    ip6 saddr ::1 return comment "loopback is never masqueraded #81157790"
    ip6 daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 comment "all flows to an external address #5233c84d"
    iifname "cbr0" return comment "pods of this node keep their address #8c4ac508"
    ip6 daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 comment "flows to a ClusterIP from elsewhere #6c28381c"
    "##);
}

#[test]
fn pods_behind_interfaces_with_a_common_prefix() {
    let policy = policy(LocalTraffic::InterfacePrefix("veth".into()));
    assert_snapshot!(services_of(&policy, Family::V4), @r##"
    ip saddr 127.0.0.0/8 return comment "loopback is never masqueraded #04a38fb9"
    ip daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 comment "all flows to an external address #24a73d07"
    iifname "veth*" return comment "pods of this node keep their address #af73919e"
    ip daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 comment "flows to a ClusterIP from elsewhere #1067966e"
    "##);
}

#[test]
fn the_mark_is_the_policys() {
    let policy = Policy { mark: 1 << 20, ..by_source() };
    let table = Ruleset::new(&policy, Family::V4).to_string();
    let marks = table
        .lines()
        .filter(|line| line.contains("mark"))
        .map(|line| line.trim().split(" comment").next().unwrap());
    assert_snapshot!(marks.collect::<Vec<_>>().join("\n"), @r##"
    ip daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00100000
    ip daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00100000
    ip daddr . meta l4proto . th dport . ip saddr @hairpin meta mark set meta mark & 0xffefffff masquerade
    meta mark & 0x00100000 == 0x00100000 meta mark set meta mark & 0xffefffff masquerade fully-random
    "##);
}

/// What the kernel shows when `ruleset` is installed.
fn installed(ruleset: &Ruleset) -> ObservedTable {
    let family = ruleset.family;
    ObservedTable {
        flags: 0,
        sets: SETS.iter().map(|set| set.observed(family)).collect(),
        chains: ruleset.chains.iter().map(Chain::observed).collect(),
        rules: ruleset
            .chains
            .iter()
            .flat_map(|chain| chain.rules.iter().map(move |rule| (chain.name, rule)))
            .map(|(chain, rule)| ObservedRule { chain: chain.into(), comment: rule.comment(family).into() })
            .collect(),
    }
}

/// The transaction that makes `table` right.
fn repair(table: Option<&ObservedTable>, elements: &[Vec<Element>]) -> String {
    let ruleset = Ruleset::new(&by_source(), Family::V4);
    let mut transaction = Transaction::default();
    ruleset.install(&mut transaction, table, elements);
    transaction.to_string()
}

#[test]
fn installing_where_nothing_is() {
    assert_snapshot!(repair(None, &[]), @r##"
    add table ip kube-ipvs
    add set ip kube-ipvs cluster-ips { type ipv4_addr . inet_proto . inet_service; }
    add set ip kube-ipvs external { type ipv4_addr . inet_proto . inet_service; }
    add set ip kube-ipvs hairpin { type ipv4_addr . inet_proto . inet_service . ipv4_addr; }
    add chain ip kube-ipvs services
    add chain ip kube-ipvs prerouting { type nat hook prerouting priority dstnat; policy accept; }
    add chain ip kube-ipvs output { type nat hook output priority -100; policy accept; }
    add chain ip kube-ipvs postrouting { type nat hook postrouting priority srcnat; policy accept; }
    add rule ip kube-ipvs services ip saddr 127.0.0.0/8 return comment "loopback is never masqueraded #04a38fb9"
    add rule ip kube-ipvs services ip daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 comment "all flows to an external address #24a73d07"
    add rule ip kube-ipvs services ip saddr 10.244.0.0/16 return comment "pods of this node keep their address #762503d5"
    add rule ip kube-ipvs services ip daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 comment "flows to a ClusterIP from elsewhere #1067966e"
    add rule ip kube-ipvs prerouting jump services comment "new connections #ae628e7a"
    add rule ip kube-ipvs output jump services comment "new connections #ae628e7a"
    add rule ip kube-ipvs postrouting ip daddr . meta l4proto . th dport . ip saddr @hairpin meta mark set meta mark & 0xffffbfff masquerade comment "a pod that reached itself #d207af6b"
    add rule ip kube-ipvs postrouting meta mark & 0x00004000 == 0x00004000 meta mark set meta mark & 0xffffbfff masquerade fully-random comment "marked flows #bef01819"
    "##);
}

#[test]
fn what_is_installed_needs_no_transaction() {
    let table = installed(&Ruleset::new(&by_source(), Family::V4));
    assert_eq!(repair(Some(&table), &[]), "");
}

#[test]
fn a_missing_rule_fills_the_chains_anew_and_leaves_the_sets_alone() {
    let mut table = installed(&Ruleset::new(&by_source(), Family::V4));
    table.rules.remove(0);
    assert_snapshot!(repair(Some(&table), &[]), @r##"
    flush table ip kube-ipvs
    add rule ip kube-ipvs services ip saddr 127.0.0.0/8 return comment "loopback is never masqueraded #04a38fb9"
    add rule ip kube-ipvs services ip daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 comment "all flows to an external address #24a73d07"
    add rule ip kube-ipvs services ip saddr 10.244.0.0/16 return comment "pods of this node keep their address #762503d5"
    add rule ip kube-ipvs services ip daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 comment "flows to a ClusterIP from elsewhere #1067966e"
    add rule ip kube-ipvs prerouting jump services comment "new connections #ae628e7a"
    add rule ip kube-ipvs output jump services comment "new connections #ae628e7a"
    add rule ip kube-ipvs postrouting ip daddr . meta l4proto . th dport . ip saddr @hairpin meta mark set meta mark & 0xffffbfff masquerade comment "a pod that reached itself #d207af6b"
    add rule ip kube-ipvs postrouting meta mark & 0x00004000 == 0x00004000 meta mark set meta mark & 0xffffbfff masquerade fully-random comment "marked flows #bef01819"
    "##);
}

#[test]
fn a_foreign_chain_goes_and_a_missing_one_comes() {
    let mut table = installed(&Ruleset::new(&by_source(), Family::V4));
    table.chains.remove(2);
    table.chains.push(ObservedChain { name: "foreign".into(), hook: None });
    assert_snapshot!(repair(Some(&table), &[]), @r##"
    flush table ip kube-ipvs
    delete chain ip kube-ipvs foreign
    add chain ip kube-ipvs output { type nat hook output priority -100; policy accept; }
    add rule ip kube-ipvs services ip saddr 127.0.0.0/8 return comment "loopback is never masqueraded #04a38fb9"
    add rule ip kube-ipvs services ip daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 comment "all flows to an external address #24a73d07"
    add rule ip kube-ipvs services ip saddr 10.244.0.0/16 return comment "pods of this node keep their address #762503d5"
    add rule ip kube-ipvs services ip daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 comment "flows to a ClusterIP from elsewhere #1067966e"
    add rule ip kube-ipvs prerouting jump services comment "new connections #ae628e7a"
    add rule ip kube-ipvs output jump services comment "new connections #ae628e7a"
    add rule ip kube-ipvs postrouting ip daddr . meta l4proto . th dport . ip saddr @hairpin meta mark set meta mark & 0xffffbfff masquerade comment "a pod that reached itself #d207af6b"
    add rule ip kube-ipvs postrouting meta mark & 0x00004000 == 0x00004000 meta mark set meta mark & 0xffffbfff masquerade fully-random comment "marked flows #bef01819"
    "##);
}

#[test]
fn a_wrong_set_builds_the_table_anew_and_puts_known_elements_back() {
    let mut table = installed(&Ruleset::new(&by_source(), Family::V4));
    table.sets.push(ObservedSet::default());
    let element = Element::ClusterIp(ipvs::ServiceAddress {
        protocol: ipvs::Protocol::Tcp,
        ip: [10, 96, 0, 1].into(),
        port: 443,
    });
    let transaction = repair(Some(&table), &[vec![element], vec![]]);
    assert!(transaction.starts_with("delete table ip kube-ipvs\nadd table ip kube-ipvs\n"), "{transaction}");
    assert!(
        transaction.ends_with("\nadd element ip kube-ipvs cluster-ips { 10.96.0.1 . tcp . 443 }\n"),
        "{transaction}"
    );
}
