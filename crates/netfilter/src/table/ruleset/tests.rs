use insta::assert_snapshot;

use super::*;
use crate::{
    Element, HostFirewall, LocalTraffic,
    nft::{chain::ObservedChain, rule::ObservedRule, set::ObservedSet, statement::Statement},
};

fn policy(local_traffic: LocalTraffic) -> Policy {
    Policy {
        masquerade_all: false,
        mark: 0x4000,
        local_traffic,
        host_firewall: HostFirewall::Warn,
        gue: false,
    }
}

fn by_source() -> Policy {
    policy(LocalTraffic::Source { ipv4: "10.244.0.0/16".parse().ok(), ipv6: "fd00:10:244::/56".parse().ok() })
}

/// The rules of the chain `nat-prerouting`, on which a policy has its effect; what the others do follows from
/// it.
fn prerouting_of(policy: &Policy, family: Family) -> String {
    rules_of(&Ruleset::new(policy, family), "nat-prerouting")
}

fn rules_of(ruleset: &Ruleset, chain: &str) -> String {
    let (table, start) = (ruleset.to_string(), format!("chain {chain} {{\n"));
    let chain = table.split(&start).nth(1).unwrap().split("\t}").next().unwrap();
    chain.replace("\t\t", "")
}

#[test]
fn the_ipv4_table() {
    assert_snapshot!(Ruleset::new(&by_source(), Family::V4), @r##"
    table ip kube-ipvs {
    	set vips {
    		type ipv4_addr
    	}

    	set restricted {
    		type ipv4_addr . inet_proto . inet_service
    	}

    	set allowed-sources {
    		type ipv4_addr . inet_proto . inet_service . ipv4_addr
    		flags interval
    	}

    	set cluster-ips {
    		type ipv4_addr . inet_proto . inet_service
    	}

    	set external {
    		type ipv4_addr . inet_proto . inet_service
    	}

    	set external-local {
    		type ipv4_addr . inet_proto . inet_service
    	}

    	set local-clients-only {
    		type ipv4_addr . inet_proto . inet_service
    	}

    	set hairpin {
    		type ipv4_addr . inet_proto . inet_service . ipv4_addr
    	}

    	set health-check-ports {
    		type inet_proto . inet_service
    	}

    	chain kept-destinations {
    		ip daddr @vips dnat to ip daddr comment "no hostPort of another table takes this #51c290b3"
    		ip daddr . meta l4proto . th dport @external dnat to ip daddr comment "no hostPort of another table takes this #dc4ce5ce"
    		ip daddr . meta l4proto . th dport @external-local dnat to ip daddr comment "no hostPort of another table takes this #d86f32ce"
    	}

    	chain from-outside {
    		ip saddr @vips drop comment "nobody comes from a VIP #20f6bed5"
    		ip daddr . meta l4proto . th dport . ip saddr @allowed-sources return comment "these may #193ea07d"
    		drop comment "others may not #7e1320c7"
    	}

    	chain source-ranges {
    		ip daddr . meta l4proto . th dport . ip saddr @allowed-sources return comment "these may #193ea07d"
    		drop comment "others may not #7e1320c7"
    	}

    	chain new-flows {
    		ip daddr . meta l4proto . th dport @local-clients-only jump local-clients comment "new flows to the policy Local without an endpoint here #6c293a56"
    		ip daddr @vips jump vip-ports comment "new flows to a VIP #64cdcc21"
    	}

    	chain vip-ports {
    		ip daddr . meta l4proto . th dport @cluster-ips return comment "a ClusterIP's port #55285065"
    		ip daddr . meta l4proto . th dport @external return comment "an external address's port #48355064"
    		ip daddr . meta l4proto . th dport @external-local return comment "the same with the policy Local #cea16a2b"
    		meta l4proto . th dport @health-check-ports return comment "load balancers ask after health #c98e3aaa"
    		icmp type echo-request return comment "a VIP can be pinged #d32b9a42"
    		reject comment "no Service has this port #8ca254e7"
    	}

    	chain local-clients {
    		ip saddr 10.244.0.0/16 return comment "pods of this node may #762503d5"
    		drop comment "others find nothing here #7e1320c7"
    	}

    	chain nat-prerouting {
    		type nat hook prerouting priority -101; policy accept;
    		ip saddr 10.244.0.0/16 ip daddr . meta l4proto . th dport @cluster-ips dnat to ip daddr comment "who is local keeps its address #926abb8d"
    		ip daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 dnat to ip daddr comment "flows to a ClusterIP from elsewhere #9facb527"
    		ip daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 dnat to ip daddr comment "all flows to an external address #be91be2e"
    		ip daddr . meta l4proto . th dport @external-local dnat to ip daddr comment "no hostPort of another table takes this #d86f32ce"
    		ip daddr @vips dnat to ip daddr comment "no hostPort of another table takes this #51c290b3"
    	}

    	chain nat-output {
    		type nat hook output priority -101; policy accept;
    		ip saddr 127.0.0.0/8 goto kept-destinations comment "loopback is never masqueraded #6df9c3b5"
    		ip saddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 comment "this node's own flows to a ClusterIP #9d1c6622"
    		ip saddr 10.244.0.0/16 ip daddr . meta l4proto . th dport @cluster-ips dnat to ip daddr comment "who is local keeps its address #926abb8d"
    		ip daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 dnat to ip daddr comment "flows to a ClusterIP from elsewhere #9facb527"
    		ip daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 dnat to ip daddr comment "all flows to an external address #be91be2e"
    		ip daddr . meta l4proto . th dport @external-local meta mark set meta mark | 0x00004000 dnat to ip daddr comment "this node's own flows to an external address with the policy Local #44fda6be"
    		ip daddr @vips dnat to ip daddr comment "no hostPort of another table takes this #51c290b3"
    	}

    	chain nat-postrouting {
    		type nat hook postrouting priority 99; policy accept;
    		meta mark & 0x00004000 == 0x00004000 meta mark set meta mark & 0xffffbfff masquerade fully-random comment "marked flows #bef01819"
    		ip daddr . meta l4proto . th dport . ip saddr @hairpin masquerade comment "a pod that reached itself #c116a90f"
    	}

    	chain filter-input {
    		type filter hook input priority 0; policy accept;
    		ip daddr . meta l4proto . th dport @restricted jump from-outside comment "only some clients may reach this #82fe846b"
    		ct state new jump new-flows comment "new flows #e2368f3c"
    	}

    	chain filter-output {
    		type filter hook output priority -102; policy accept;
    		ip daddr . meta l4proto . th dport @restricted jump source-ranges comment "only some clients may reach this #3dccd170"
    	}
    }
    "##);
}

#[test]
fn the_ipv6_table() {
    assert_snapshot!(Ruleset::new(&by_source(), Family::V6), @r##"
    table ip6 kube-ipvs {
    	set vips {
    		type ipv6_addr
    	}

    	set restricted {
    		type ipv6_addr . inet_proto . inet_service
    	}

    	set allowed-sources {
    		type ipv6_addr . inet_proto . inet_service . ipv6_addr
    		flags interval
    	}

    	set cluster-ips {
    		type ipv6_addr . inet_proto . inet_service
    	}

    	set external {
    		type ipv6_addr . inet_proto . inet_service
    	}

    	set external-local {
    		type ipv6_addr . inet_proto . inet_service
    	}

    	set local-clients-only {
    		type ipv6_addr . inet_proto . inet_service
    	}

    	set hairpin {
    		type ipv6_addr . inet_proto . inet_service . ipv6_addr
    	}

    	set health-check-ports {
    		type inet_proto . inet_service
    	}

    	chain kept-destinations {
    		ip6 daddr @vips dnat to ip6 daddr comment "no hostPort of another table takes this #034100db"
    		ip6 daddr . meta l4proto . th dport @external dnat to ip6 daddr comment "no hostPort of another table takes this #7d6f5590"
    		ip6 daddr . meta l4proto . th dport @external-local dnat to ip6 daddr comment "no hostPort of another table takes this #7d99c004"
    	}

    	chain from-outside {
    		ip6 saddr @vips drop comment "nobody comes from a VIP #5fe888e5"
    		ip6 daddr . meta l4proto . th dport . ip6 saddr @allowed-sources return comment "these may #08222e6c"
    		drop comment "others may not #7e1320c7"
    	}

    	chain source-ranges {
    		ip6 daddr . meta l4proto . th dport . ip6 saddr @allowed-sources return comment "these may #08222e6c"
    		drop comment "others may not #7e1320c7"
    	}

    	chain new-flows {
    		ip6 daddr . meta l4proto . th dport @local-clients-only jump local-clients comment "new flows to the policy Local without an endpoint here #7b68d540"
    		ip6 daddr @vips jump vip-ports comment "new flows to a VIP #0bf5f445"
    	}

    	chain vip-ports {
    		ip6 daddr . meta l4proto . th dport @cluster-ips return comment "a ClusterIP's port #8d7978d7"
    		ip6 daddr . meta l4proto . th dport @external return comment "an external address's port #9a6af1be"
    		ip6 daddr . meta l4proto . th dport @external-local return comment "the same with the policy Local #33d554c9"
    		meta l4proto . th dport @health-check-ports return comment "load balancers ask after health #c98e3aaa"
    		icmpv6 type echo-request return comment "a VIP can be pinged #722c3d65"
    		reject comment "no Service has this port #5b6c9b70"
    	}

    	chain local-clients {
    		ip6 saddr fd00:10:244::/56 return comment "pods of this node may #a2192a48"
    		drop comment "others find nothing here #7e1320c7"
    	}

    	chain nat-prerouting {
    		type nat hook prerouting priority -101; policy accept;
    		ip6 saddr fd00:10:244::/56 ip6 daddr . meta l4proto . th dport @cluster-ips dnat to ip6 daddr comment "who is local keeps its address #29222579"
    		ip6 daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 dnat to ip6 daddr comment "flows to a ClusterIP from elsewhere #bbca4815"
    		ip6 daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 dnat to ip6 daddr comment "all flows to an external address #799683ec"
    		ip6 daddr . meta l4proto . th dport @external-local dnat to ip6 daddr comment "no hostPort of another table takes this #7d99c004"
    		ip6 daddr @vips dnat to ip6 daddr comment "no hostPort of another table takes this #034100db"
    	}

    	chain nat-output {
    		type nat hook output priority -101; policy accept;
    		ip6 saddr ::1 goto kept-destinations comment "loopback is never masqueraded #4baa1fcb"
    		ip6 saddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 comment "this node's own flows to a ClusterIP #84557bec"
    		ip6 saddr fd00:10:244::/56 ip6 daddr . meta l4proto . th dport @cluster-ips dnat to ip6 daddr comment "who is local keeps its address #29222579"
    		ip6 daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 dnat to ip6 daddr comment "flows to a ClusterIP from elsewhere #bbca4815"
    		ip6 daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 dnat to ip6 daddr comment "all flows to an external address #799683ec"
    		ip6 daddr . meta l4proto . th dport @external-local meta mark set meta mark | 0x00004000 dnat to ip6 daddr comment "this node's own flows to an external address with the policy Local #10e88568"
    		ip6 daddr @vips dnat to ip6 daddr comment "no hostPort of another table takes this #034100db"
    	}

    	chain nat-postrouting {
    		type nat hook postrouting priority 99; policy accept;
    		meta mark & 0x00004000 == 0x00004000 meta mark set meta mark & 0xffffbfff masquerade fully-random comment "marked flows #bef01819"
    		ip6 daddr . meta l4proto . th dport . ip6 saddr @hairpin masquerade comment "a pod that reached itself #fb071a1e"
    	}

    	chain filter-input {
    		type filter hook input priority 0; policy accept;
    		ip6 daddr . meta l4proto . th dport @restricted jump from-outside comment "only some clients may reach this #423c3965"
    		ct state new jump new-flows comment "new flows #e2368f3c"
    	}

    	chain filter-output {
    		type filter hook output priority -102; policy accept;
    		ip6 daddr . meta l4proto . th dport @restricted jump source-ranges comment "only some clients may reach this #a11c468a"
    	}
    }
    "##);
}

#[test]
fn without_a_range_in_a_family_no_flow_to_a_cluster_ip_is_marked_but_the_nodes_own() {
    let policy = policy(LocalTraffic::Source { ipv4: None, ipv6: "fd00::/56".parse().ok() });
    assert_snapshot!(prerouting_of(&policy, Family::V4), @r##"
    type nat hook prerouting priority -101; policy accept;
    ip daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 dnat to ip daddr comment "all flows to an external address #be91be2e"
    ip daddr . meta l4proto . th dport @external-local dnat to ip daddr comment "no hostPort of another table takes this #d86f32ce"
    ip daddr @vips dnat to ip daddr comment "no hostPort of another table takes this #51c290b3"
    "##);
    assert_snapshot!(prerouting_of(&policy, Family::V6), @r##"
    type nat hook prerouting priority -101; policy accept;
    ip6 saddr fd00::/56 ip6 daddr . meta l4proto . th dport @cluster-ips dnat to ip6 daddr comment "who is local keeps its address #63899bff"
    ip6 daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 dnat to ip6 daddr comment "flows to a ClusterIP from elsewhere #bbca4815"
    ip6 daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 dnat to ip6 daddr comment "all flows to an external address #799683ec"
    ip6 daddr . meta l4proto . th dport @external-local dnat to ip6 daddr comment "no hostPort of another table takes this #7d99c004"
    ip6 daddr @vips dnat to ip6 daddr comment "no hostPort of another table takes this #034100db"
    "##);
}

#[test]
fn others_are_kept_away_without_a_local_endpoint_only_where_local_pods_are_known() {
    let known = policy(LocalTraffic::Source { ipv4: None, ipv6: "fd00::/56".parse().ok() });
    let [v4, v6] = Family::BOTH.map(|family| rules_of(&Ruleset::new(&known, family), "local-clients"));
    assert_eq!(v4, "");
    assert_snapshot!(v6, @r##"
    ip6 saddr fd00::/56 return comment "pods of this node may #94210e12"
    drop comment "others find nothing here #7e1320c7"
    "##);
    let bridge = policy(LocalTraffic::Bridge("cbr0".into()));
    assert_snapshot!(rules_of(&Ruleset::new(&bridge, Family::V4), "local-clients"), @r##"
    iifname "cbr0" return comment "pods of this node may #8c4ac508"
    drop comment "others find nothing here #7e1320c7"
    "##);
}

#[test]
fn masquerade_all_asks_for_no_source() {
    let policy = Policy { masquerade_all: true, ..by_source() };
    assert_snapshot!(prerouting_of(&policy, Family::V4), @r##"
    type nat hook prerouting priority -101; policy accept;
    ip daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 dnat to ip daddr comment "masquerade all flows to a ClusterIP #9facb527"
    ip daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 dnat to ip daddr comment "all flows to an external address #be91be2e"
    ip daddr . meta l4proto . th dport @external-local dnat to ip daddr comment "no hostPort of another table takes this #d86f32ce"
    ip daddr @vips dnat to ip daddr comment "no hostPort of another table takes this #51c290b3"
    "##);
    assert_snapshot!(prerouting_of(&policy, Family::V6), @r##"
    type nat hook prerouting priority -101; policy accept;
    ip6 daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 dnat to ip6 daddr comment "masquerade all flows to a ClusterIP #bbca4815"
    ip6 daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 dnat to ip6 daddr comment "all flows to an external address #799683ec"
    ip6 daddr . meta l4proto . th dport @external-local dnat to ip6 daddr comment "no hostPort of another table takes this #7d99c004"
    ip6 daddr @vips dnat to ip6 daddr comment "no hostPort of another table takes this #034100db"
    "##);
}

#[test]
fn pods_behind_a_bridge() {
    let policy = policy(LocalTraffic::Bridge("cbr0".into()));
    assert_snapshot!(prerouting_of(&policy, Family::V4), @r##"
    type nat hook prerouting priority -101; policy accept;
    iifname "cbr0" ip daddr . meta l4proto . th dport @cluster-ips dnat to ip daddr comment "who is local keeps its address #eafaa8a4"
    ip daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 dnat to ip daddr comment "flows to a ClusterIP from elsewhere #9facb527"
    ip daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 dnat to ip daddr comment "all flows to an external address #be91be2e"
    ip daddr . meta l4proto . th dport @external-local dnat to ip daddr comment "no hostPort of another table takes this #d86f32ce"
    ip daddr @vips dnat to ip daddr comment "no hostPort of another table takes this #51c290b3"
    "##);
    assert_snapshot!(prerouting_of(&policy, Family::V6), @r##"
    type nat hook prerouting priority -101; policy accept;
    iifname "cbr0" ip6 daddr . meta l4proto . th dport @cluster-ips dnat to ip6 daddr comment "who is local keeps its address #c681bbfe"
    ip6 daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 dnat to ip6 daddr comment "flows to a ClusterIP from elsewhere #bbca4815"
    ip6 daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 dnat to ip6 daddr comment "all flows to an external address #799683ec"
    ip6 daddr . meta l4proto . th dport @external-local dnat to ip6 daddr comment "no hostPort of another table takes this #7d99c004"
    ip6 daddr @vips dnat to ip6 daddr comment "no hostPort of another table takes this #034100db"
    "##);
}

#[test]
fn pods_behind_interfaces_with_a_common_prefix() {
    let policy = policy(LocalTraffic::InterfacePrefix("veth".into()));
    assert_snapshot!(prerouting_of(&policy, Family::V4), @r##"
    type nat hook prerouting priority -101; policy accept;
    iifname "veth*" ip daddr . meta l4proto . th dport @cluster-ips dnat to ip daddr comment "who is local keeps its address #3bffe006"
    ip daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 dnat to ip daddr comment "flows to a ClusterIP from elsewhere #9facb527"
    ip daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 dnat to ip daddr comment "all flows to an external address #be91be2e"
    ip daddr . meta l4proto . th dport @external-local dnat to ip daddr comment "no hostPort of another table takes this #d86f32ce"
    ip daddr @vips dnat to ip daddr comment "no hostPort of another table takes this #51c290b3"
    "##);
}

#[test]
fn as_kube_proxy_does_only_health_checks_are_marked_for_the_hosts_firewall() {
    let as_kube_proxy = Policy { host_firewall: HostFirewall::AsKubeProxy, ..by_source() };
    let [warn, as_kube_proxy] =
        [by_source(), as_kube_proxy].map(|policy| Ruleset::new(&policy, Family::V4).to_string());
    let added = as_kube_proxy.strip_prefix(warn.trim_end_matches("}\n")).unwrap();
    assert_snapshot!(added, @r##"
    }

    	chain accept-input {
    		type filter hook input priority -149; policy accept;
    		meta l4proto . th dport @health-check-ports meta mark set meta mark | 0x00001000 comment "load balancers ask after health #c79d6859"
    	}

    	chain accepted-input {
    		type filter hook input priority 90; policy accept;
    		meta mark & 0x00001000 == 0x00001000 meta l4proto . th dport @health-check-ports meta mark set meta mark & 0xffffefff comment "load balancers ask after health #d474b134"
    	}
    }
    "##);
}

#[test]
fn for_the_hosts_firewall_packets_are_marked_and_cleared_in_the_same_hook() {
    let accept = Policy { host_firewall: HostFirewall::Accept, ..by_source() };
    let [warn, accept] = [by_source(), accept].map(|policy| Ruleset::new(&policy, Family::V4).to_string());
    let added = accept.strip_prefix(warn.trim_end_matches("}\n")).unwrap();
    assert_snapshot!(added, @r##"
    }

    	chain accept-input {
    		type filter hook input priority -149; policy accept;
    		ip daddr @vips meta mark set meta mark | 0x00001000 comment "to a VIP #a1745406"
    		ip daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00001000 comment "to a NodePort #428acfe7"
    		ip daddr . meta l4proto . th dport @external-local meta mark set meta mark | 0x00001000 comment "to a NodePort with the policy Local #5c659ce7"
    		meta l4proto . th dport @health-check-ports meta mark set meta mark | 0x00001000 comment "load balancers ask after health #c79d6859"
    	}

    	chain accepted-input {
    		type filter hook input priority 90; policy accept;
    		meta mark & 0x00001000 == 0x00001000 ip daddr @vips meta mark set meta mark & 0xffffefff comment "to a VIP #e623ae73"
    		meta mark & 0x00001000 == 0x00001000 ip daddr . meta l4proto . th dport @external meta mark set meta mark & 0xffffefff comment "to a NodePort #6e2a0dfe"
    		meta mark & 0x00001000 == 0x00001000 ip daddr . meta l4proto . th dport @external-local meta mark set meta mark & 0xffffefff comment "to a NodePort with the policy Local #ef3665de"
    		meta mark & 0x00001000 == 0x00001000 meta l4proto . th dport @health-check-ports meta mark set meta mark & 0xffffefff comment "load balancers ask after health #d474b134"
    	}

    	chain accept-forward {
    		type filter hook forward priority -149; policy accept;
    		ct state established,related meta mark set meta mark | 0x00001000 comment "what comes back #ca313efd"
    	}

    	chain accepted-forward {
    		type filter hook forward priority 90; policy accept;
    		meta mark & 0x00001000 == 0x00001000 ct state established,related meta mark set meta mark & 0xffffefff comment "what comes back #2ad1e0a8"
    	}
    }
    "##);
}

#[test]
fn the_mark_for_the_hosts_firewall_is_not_the_one_for_masquerading() {
    assert_eq!(by_source().accept_mark(), 0x1000);
    assert_eq!(Policy { mark: 0x1000, ..by_source() }.accept_mark(), 0x800);
}

#[test]
fn without_sets_of_intervals_nobody_reaches_a_restricted_address() {
    let ruleset = Ruleset::new(&by_source(), Family::V6).without(Element::ALLOWED_SOURCES);
    assert!(!ruleset.to_string().contains("allowed-sources"));
    let rules = rules_of(&ruleset, "source-ranges");
    assert!(rules.starts_with("drop comment ") && rules.lines().count() == 1, "{rules}");
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
    ip daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00100000 dnat to ip daddr
    ip daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00100000 dnat to ip daddr
    ip saddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00100000
    ip daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00100000 dnat to ip daddr
    ip daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00100000 dnat to ip daddr
    ip daddr . meta l4proto . th dport @external-local meta mark set meta mark | 0x00100000 dnat to ip daddr
    meta mark & 0x00100000 == 0x00100000 meta mark set meta mark & 0xffefffff masquerade fully-random
    "##);
}

/// What the second text has more, line by line: both are in the same order.
fn added(usual: &str, extended: &str) -> String {
    let mut usual = usual.lines().peekable();
    let more = extended.lines().filter(|line| usual.next_if_eq(line).is_none());
    let more: Vec<_> = more.filter(|line| !line.trim().is_empty()).collect();
    assert_eq!(usual.next(), None, "something is missing");
    more.join("\n")
}

fn added_by_direct_return(policy: &Policy, family: Family) -> String {
    let [usual, extended] =
        [Ruleset::new, Ruleset::with_direct_return].map(|new| new(policy, family).to_string());
    added(&usual, &extended)
}

#[test]
fn direct_return_adds_sets_rules_and_chains_and_changes_nothing_else() {
    assert_snapshot!(added_by_direct_return(&by_source(), Family::V4), @r##"
    set direct-return {
    	type ipv4_addr . inet_proto . inet_service
    }
    map cluster-ip-for {
    	type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service
    }
    map max-segment-sizes {
    	type ipv4_addr . inet_proto . inet_service : inet_service
    }
    map tunnel-exits {
    	type ipv4_addr . ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service
    }
    set endpoints-here {
    	type ipv4_addr
    }
    set endpoints-elsewhere {
    	type ipv4_addr
    }
    set tunnel-senders {
    	type ipv4_addr
    }
    	ip daddr . meta l4proto . th dport @direct-return return comment "the same with direct return #0b21f89d"
    	iifname "kube-ipvs-tun4" dnat ip to meta priority . ip daddr . meta l4proto . th dport map @tunnel-exits comment "out of the tunnel to the pod #1fc3dcf3"
    	iifname "kube-ipvs-tun4" counter packets 0 bytes 0 drop comment "nothing else leaves the tunnel #d0c512bd"
    	ip saddr 10.244.0.0/16 dnat ip to ip daddr . meta l4proto . th dport map @cluster-ip-for comment "pods ask the ClusterIP instead #c4afbe7d"
    	ip daddr . meta l4proto . th dport @direct-return dnat to ip daddr comment "no hostPort of another table takes this #9dc7ab48"
    	ip saddr != 127.0.0.0/8 ip daddr . meta l4proto . th dport @direct-return meta mark set meta mark | 0x00004000 comment "this node's own flows with direct return #2b8c89b1"
    	ip saddr != 127.0.0.0/8 ip daddr . meta l4proto . th dport @direct-return dnat ip to ip daddr . meta l4proto . th dport map @cluster-ip-for comment "they ask the ClusterIP instead #0f474dcb"
    	ct original ip daddr . meta l4proto . ct original proto-dst @direct-return ip daddr @endpoints-here return comment "to a pod of this node #3e4ae62c"
    	ct original ip daddr . meta l4proto . ct original proto-dst @direct-return masquerade fully-random comment "to an endpoint without a tunnel #3488012c"
    chain tunnel-senders-only {
    	fib saddr . iif oif 0 counter packets 0 bytes 0 drop comment "not by the way to its source #fd219333"
    	ip saddr @tunnel-senders return comment "another node of the cluster #0a0ae69a"
    	counter packets 0 bytes 0 drop comment "nobody else #1397e0b9"
    }
    chain tunnel-prerouting {
    	type filter hook prerouting priority -390; policy accept;
    	ip daddr 169.254.73.1 counter packets 0 bytes 0 drop comment "nobody sends to the end of the tunnel #86b731fc"
    	meta l4proto ipencap ip daddr @endpoints-here jump tunnel-senders-only comment "only nodes send into the tunnel #7b1323a1"
    	meta l4proto ipencap ip daddr @endpoints-here meta priority set ip daddr ip daddr set 169.254.73.1 notrack counter packets 0 bytes 0 comment "to the end of the tunnel #a130d908"
    	ip daddr . meta l4proto . th dport @direct-return ip daddr . meta l4proto . th dport @restricted jump source-ranges comment "only some clients may reach this #de35880d"
    	iifname "kube-ipvs-tun4" ip daddr . meta l4proto . th dport @restricted jump source-ranges comment "only some clients, through the tunnel #ff32c2a4"
    	meta l4proto ipencap ip saddr 10.244.0.0/16 ip daddr @endpoints-elsewhere counter packets 0 bytes 0 drop comment "pods send nothing into it #b2df667a"
    	meta l4proto ipencap fib saddr . iif oif 0 ip daddr @endpoints-elsewhere counter packets 0 bytes 0 drop comment "nor with another's address #099d14de"
    }
    chain tunnel-left {
    	type filter hook prerouting priority -150; policy accept;
    	iifname "kube-ipvs-tun4" ct state invalid,untracked counter packets 0 bytes 0 drop comment "what belongs to nothing leaves no tunnel #7c516807"
    }
    chain tunnel-postrouting {
    	type filter hook postrouting priority -150; policy accept;
    	tcp flags syn ct direction reply tcp option maxseg size set ct original ip daddr . meta l4proto . ct original proto-dst map @max-segment-sizes comment "requests must fit into a tunnel #92ef17c0"
    	meta l4proto ipencap ip daddr @endpoints-elsewhere counter packets 0 bytes 0 comment "to another node by a tunnel #675513af"
    }
    "##);
}

#[test]
fn direct_return_adds_the_same_in_ipv6() {
    assert_snapshot!(added_by_direct_return(&by_source(), Family::V6), @r##"
    set direct-return {
    	type ipv6_addr . inet_proto . inet_service
    }
    map cluster-ip-for {
    	type ipv6_addr . inet_proto . inet_service : ipv6_addr . inet_service
    }
    map max-segment-sizes {
    	type ipv6_addr . inet_proto . inet_service : inet_service
    }
    map tunnel-exits {
    	type ipv4_addr . ipv6_addr . inet_proto . inet_service : ipv6_addr . inet_service
    }
    set endpoints-here {
    	type ipv6_addr
    }
    set endpoints-elsewhere {
    	type ipv6_addr
    }
    set tunnel-senders {
    	type ipv6_addr
    }
    	ip6 daddr . meta l4proto . th dport @direct-return return comment "the same with direct return #210ad2f7"
    	iifname "kube-ipvs-tun6" dnat ip6 to meta priority . ip6 daddr . meta l4proto . th dport map @tunnel-exits comment "out of the tunnel to the pod #ed3952e8"
    	iifname "kube-ipvs-tun6" counter packets 0 bytes 0 drop comment "nothing else leaves the tunnel #350e588f"
    	ip6 saddr fd00:10:244::/56 dnat ip6 to ip6 daddr . meta l4proto . th dport map @cluster-ip-for comment "pods ask the ClusterIP instead #c22d4d76"
    	ip6 daddr . meta l4proto . th dport @direct-return dnat to ip6 daddr comment "no hostPort of another table takes this #ceccdad2"
    	ip6 saddr != ::1 ip6 daddr . meta l4proto . th dport @direct-return meta mark set meta mark | 0x00004000 comment "this node's own flows with direct return #625faa77"
    	ip6 saddr != ::1 ip6 daddr . meta l4proto . th dport @direct-return dnat ip6 to ip6 daddr . meta l4proto . th dport map @cluster-ip-for comment "they ask the ClusterIP instead #a0ea9bf5"
    	ct original ip6 daddr . meta l4proto . ct original proto-dst @direct-return ip6 daddr @endpoints-here return comment "to a pod of this node #0f794f74"
    	ct original ip6 daddr . meta l4proto . ct original proto-dst @direct-return masquerade fully-random comment "to an endpoint without a tunnel #cc648060"
    chain tunnel-senders-only {
    	fib saddr . iif oif 0 counter packets 0 bytes 0 drop comment "not by the way to its source #fd219333"
    	ip6 saddr @tunnel-senders return comment "another node of the cluster #041a0a6a"
    	counter packets 0 bytes 0 drop comment "nobody else #1397e0b9"
    }
    chain tunnel-prerouting {
    	type filter hook prerouting priority -390; policy accept;
    	ip6 daddr fd6b:7562:6970:7673::1 counter packets 0 bytes 0 drop comment "nobody sends to the end of the tunnel #37a0febb"
    	meta l4proto ipv6 ip6 daddr @endpoints-here jump tunnel-senders-only comment "only nodes send into the tunnel #d02ceaa8"
    	meta l4proto ipv6 ip6 daddr @endpoints-here meta priority set @nh,288,32 ip6 daddr set fd6b:7562:6970:7673::1 notrack counter packets 0 bytes 0 comment "to the end of the tunnel #65369de6"
    	ip6 daddr . meta l4proto . th dport @direct-return ip6 daddr . meta l4proto . th dport @restricted jump source-ranges comment "only some clients may reach this #a1fa8a49"
    	iifname "kube-ipvs-tun6" ip6 daddr . meta l4proto . th dport @restricted jump source-ranges comment "only some clients, through the tunnel #ecdfe628"
    	meta l4proto ipv6 ip6 saddr fd00:10:244::/56 ip6 daddr @endpoints-elsewhere counter packets 0 bytes 0 drop comment "pods send nothing into it #9670803d"
    	meta l4proto ipv6 fib saddr . iif oif 0 ip6 daddr @endpoints-elsewhere counter packets 0 bytes 0 drop comment "nor with another's address #9c126a33"
    }
    chain tunnel-left {
    	type filter hook prerouting priority -150; policy accept;
    	iifname "kube-ipvs-tun6" ct state invalid,untracked counter packets 0 bytes 0 drop comment "what belongs to nothing leaves no tunnel #2f4dcb69"
    }
    chain tunnel-postrouting {
    	type filter hook postrouting priority -150; policy accept;
    	tcp flags syn ct direction reply tcp option maxseg size set ct original ip6 daddr . meta l4proto . ct original proto-dst map @max-segment-sizes comment "requests must fit into a tunnel #f958acfc"
    	meta l4proto ipv6 ip6 daddr @endpoints-elsewhere counter packets 0 bytes 0 comment "to another node by a tunnel #0283aa56"
    }
    "##);
}

#[test]
fn what_comes_out_of_the_tunnel_is_marked_for_the_hosts_firewall() {
    let more = |host_firewall| {
        let with = Policy { host_firewall, ..by_source() };
        added_by_direct_return(&with, Family::V4)
            .lines()
            .filter(|line| line.contains("mark set"))
            .map(|line| line.trim().split(" comment").next().unwrap().to_owned())
            .collect::<Vec<_>>()
            .join("\n")
    };
    assert_snapshot!(more(HostFirewall::Warn), @r##"
    ip saddr != 127.0.0.0/8 ip daddr . meta l4proto . th dport @direct-return meta mark set meta mark | 0x00004000
    "##);
    assert_snapshot!(more(HostFirewall::AsKubeProxy), @r##"
    ip saddr != 127.0.0.0/8 ip daddr . meta l4proto . th dport @direct-return meta mark set meta mark | 0x00004000
    ip daddr 169.254.73.1 meta mark set meta mark | 0x00001000
    ct state invalid,untracked ip daddr . meta l4proto . th dport @direct-return meta mark set meta mark | 0x00001000
    meta mark & 0x00001000 == 0x00001000 ip daddr 169.254.73.1 meta mark set meta mark & 0xffffefff
    meta mark & 0x00001000 == 0x00001000 ct state invalid,untracked ip daddr . meta l4proto . th dport @direct-return meta mark set meta mark & 0xffffefff
    iifname "kube-ipvs-tun4" meta mark set meta mark | 0x00004000
    meta mark & 0x00004000 == 0x00004000 iifname "kube-ipvs-tun4" meta mark set meta mark & 0xffffbfff
    "##);
    assert_snapshot!(more(HostFirewall::Accept), @r##"
    ip saddr != 127.0.0.0/8 ip daddr . meta l4proto . th dport @direct-return meta mark set meta mark | 0x00004000
    ip daddr 169.254.73.1 meta mark set meta mark | 0x00001000
    ip daddr . meta l4proto . th dport @direct-return meta mark set meta mark | 0x00001000
    meta mark & 0x00001000 == 0x00001000 ip daddr 169.254.73.1 meta mark set meta mark & 0xffffefff
    meta mark & 0x00001000 == 0x00001000 ip daddr . meta l4proto . th dport @direct-return meta mark set meta mark & 0xffffefff
    iifname "kube-ipvs-tun4" meta mark set meta mark | 0x00001000
    meta mark & 0x00001000 == 0x00001000 iifname "kube-ipvs-tun4" meta mark set meta mark & 0xffffefff
    "##);
}

#[test]
fn generic_udp_encapsulation_is_recognised_beside_ip_in_ip() {
    let of = |gue| Ruleset::with_direct_return(&Policy { gue, ..by_source() }, Family::V4).to_string();
    let (without, with) = (of(false), of(true));
    let added: Vec<_> = with.lines().map(str::trim).filter(|line| !without.contains(line)).collect();
    assert_snapshot!(added.join("\n"), @r##"
    udp dport 6080 @th,64,16 0x4 ip daddr @endpoints-here jump tunnel-senders-only comment "only nodes send into the tunnel #a0ce93ad"
    udp dport 6080 @th,64,16 0x4 ip daddr @endpoints-here meta priority set ip daddr ip daddr set 169.254.73.1 notrack counter packets 0 bytes 0 comment "to the end of the tunnel #176dfc6c"
    udp dport 6080 @th,64,16 0x4 ip saddr 10.244.0.0/16 ip daddr @endpoints-elsewhere counter packets 0 bytes 0 drop comment "pods send nothing into it #231a443e"
    udp dport 6080 @th,64,16 0x4 fib saddr . iif oif 0 ip daddr @endpoints-elsewhere counter packets 0 bytes 0 drop comment "nor with another's address #d80be42a"
    udp dport 6080 @th,64,16 0x4 ip daddr @endpoints-elsewhere counter packets 0 bytes 0 comment "to another node by a tunnel #04a67ad7"
    "##);
}

/// What the kernel shows when `ruleset` is installed.
fn installed(ruleset: &Ruleset) -> ObservedTable {
    let family = ruleset.family;
    ObservedTable {
        flags: 0,
        sets: ruleset.sets.iter().map(|set| set.observed(family)).collect(),
        chains: ruleset.chains.iter().map(Chain::observed).collect(),
        rules: ruleset
            .chains
            .iter()
            .flat_map(|chain| chain.rules.iter().map(move |rule| (chain.name, rule)))
            .map(|(chain, rule)| ObservedRule {
                chain: chain.into(),
                comment: rule.comment(family).into(),
                keeps_destination: rule.statements.contains(&Statement::DnatToDaddr),
            })
            .collect(),
    }
}

/// The transaction that makes `table` right.
fn repair(table: Option<&ObservedTable>, elements: &[Vec<Element>]) -> String {
    repair_with(table, &Elements { ours: elements.to_vec(), has_foreign: false })
}

fn repair_with(table: Option<&ObservedTable>, elements: &Elements) -> String {
    let ruleset = Ruleset::new(&by_source(), Family::V4);
    let mut transaction = Transaction::default();
    ruleset.install(&mut transaction, table, elements);
    transaction.to_string()
}

#[test]
fn installing_where_nothing_is() {
    let transaction = repair(None, &[]);
    let objects: Vec<_> = transaction.lines().filter(|line| !line.starts_with("add rule")).collect();
    assert_snapshot!(objects.join("\n"), @r##"
    add table ip kube-ipvs
    add set ip kube-ipvs vips { type ipv4_addr; }
    add set ip kube-ipvs restricted { type ipv4_addr . inet_proto . inet_service; }
    add set ip kube-ipvs allowed-sources { type ipv4_addr . inet_proto . inet_service . ipv4_addr; flags interval; }
    add set ip kube-ipvs cluster-ips { type ipv4_addr . inet_proto . inet_service; }
    add set ip kube-ipvs external { type ipv4_addr . inet_proto . inet_service; }
    add set ip kube-ipvs external-local { type ipv4_addr . inet_proto . inet_service; }
    add set ip kube-ipvs local-clients-only { type ipv4_addr . inet_proto . inet_service; }
    add set ip kube-ipvs hairpin { type ipv4_addr . inet_proto . inet_service . ipv4_addr; }
    add set ip kube-ipvs health-check-ports { type inet_proto . inet_service; }
    add chain ip kube-ipvs kept-destinations
    add chain ip kube-ipvs from-outside
    add chain ip kube-ipvs source-ranges
    add chain ip kube-ipvs new-flows
    add chain ip kube-ipvs vip-ports
    add chain ip kube-ipvs local-clients
    add chain ip kube-ipvs nat-prerouting { type nat hook prerouting priority -101; policy accept; }
    add chain ip kube-ipvs nat-output { type nat hook output priority -101; policy accept; }
    add chain ip kube-ipvs nat-postrouting { type nat hook postrouting priority 99; policy accept; }
    add chain ip kube-ipvs filter-input { type filter hook input priority 0; policy accept; }
    add chain ip kube-ipvs filter-output { type filter hook output priority -102; policy accept; }
    "##);
    assert!(transaction.ends_with(&all_rules()), "rules last, when every chain that they jump to exists");
}

#[test]
fn what_is_installed_needs_no_transaction() {
    let table = installed(&Ruleset::new(&by_source(), Family::V4));
    assert_eq!(repair(Some(&table), &[]), "");
}

/// The requests that add the rules of a table that is not there yet.
fn all_rules() -> String {
    let fresh = repair(None, &[]);
    fresh.split_inclusive('\n').filter(|line| line.starts_with("add rule")).collect()
}

#[test]
fn a_missing_rule_fills_the_chains_anew_and_leaves_the_sets_alone() {
    let mut table = installed(&Ruleset::new(&by_source(), Family::V4));
    table.rules.remove(0);
    assert_eq!(repair(Some(&table), &[]), format!("flush table ip kube-ipvs\n{}", all_rules()));
}

#[test]
fn a_foreign_chain_goes_and_a_missing_one_comes() {
    let mut table = installed(&Ruleset::new(&by_source(), Family::V4));
    table.chains.retain(|chain| &*chain.name != "filter-output");
    table.chains.push(ObservedChain { name: "foreign".into(), hook: None });
    let chains = "delete chain ip kube-ipvs foreign\n\
        add chain ip kube-ipvs filter-output { type filter hook output priority -102; policy accept; }\n";
    assert_eq!(repair(Some(&table), &[]), format!("flush table ip kube-ipvs\n{chains}{}", all_rules()));
}

#[test]
fn what_cannot_be_ours_in_a_set_goes_with_the_table_and_ours_are_put_back() {
    let table = installed(&Ruleset::new(&by_source(), Family::V4));
    let element = Element::Vip([10, 96, 0, 1].into());
    let transaction = repair_with(Some(&table), &Elements { ours: vec![vec![element]], has_foreign: true });
    assert!(transaction.starts_with("delete table ip kube-ipvs\nadd table ip kube-ipvs\n"), "{transaction}");
    assert!(transaction.ends_with("\nadd element ip kube-ipvs vips { 10.96.0.1 }\n"), "{transaction}");
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

/// The transactions that turn the usual table into one with direct return, and back.
#[test]
fn direct_return_comes_and_goes_while_everything_else_stays() {
    let [usual, extended] =
        [Ruleset::new, Ruleset::with_direct_return].map(|new| new(&by_source(), Family::V4));
    let change = |from: &Ruleset, to: &Ruleset| {
        let mut transaction = Transaction::default();
        to.install(&mut transaction, Some(&installed(from)), &Elements::default());
        let text = transaction.to_string();
        let (rules, objects): (Vec<_>, Vec<_>) = text.lines().partition(|line| line.starts_with("add rule"));
        assert_eq!(rules.len(), to.chains.iter().map(|chain| chain.rules.len()).sum::<usize>());
        objects.join("\n")
    };
    assert_snapshot!(change(&usual, &extended), @r##"
    flush table ip kube-ipvs
    add set ip kube-ipvs direct-return { type ipv4_addr . inet_proto . inet_service; }
    add map ip kube-ipvs cluster-ip-for { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; }
    add map ip kube-ipvs max-segment-sizes { type ipv4_addr . inet_proto . inet_service : inet_service; }
    add map ip kube-ipvs tunnel-exits { type ipv4_addr . ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; }
    add set ip kube-ipvs endpoints-here { type ipv4_addr; }
    add set ip kube-ipvs endpoints-elsewhere { type ipv4_addr; }
    add set ip kube-ipvs tunnel-senders { type ipv4_addr; }
    add chain ip kube-ipvs tunnel-senders-only
    add chain ip kube-ipvs tunnel-prerouting { type filter hook prerouting priority -390; policy accept; }
    add chain ip kube-ipvs tunnel-left { type filter hook prerouting priority -150; policy accept; }
    add chain ip kube-ipvs tunnel-postrouting { type filter hook postrouting priority -150; policy accept; }
    "##);
    assert_snapshot!(change(&extended, &usual), @r##"
    flush table ip kube-ipvs
    delete chain ip kube-ipvs tunnel-senders-only
    delete chain ip kube-ipvs tunnel-prerouting
    delete chain ip kube-ipvs tunnel-left
    delete chain ip kube-ipvs tunnel-postrouting
    delete set ip kube-ipvs direct-return
    delete map ip kube-ipvs cluster-ip-for
    delete map ip kube-ipvs max-segment-sizes
    delete map ip kube-ipvs tunnel-exits
    delete set ip kube-ipvs endpoints-here
    delete set ip kube-ipvs endpoints-elsewhere
    delete set ip kube-ipvs tunnel-senders
    "##);
}

/// [`TunnelCounts`](crate::TunnelCounts) tells what was sent and received from what was dropped by these
/// chains.
#[test]
fn what_counts_without_dropping_is_in_the_two_chains_of_what_is_sent_and_received() {
    let ruleset = Ruleset::with_direct_return(&Policy { gue: true, ..by_source() }, Family::V4);
    let counting = |chain: &&Chain| {
        let counts = |rule: &&Rule| {
            rule.statements.contains(&Statement::Counter) && !rule.statements.contains(&Statement::Drop)
        };
        chain.rules.iter().filter(counts).count()
    };
    let chains = ruleset.chains.iter().filter(|chain| counting(chain) > 0);
    let found: Vec<_> = chains.map(|chain| (chain.name, counting(&chain))).collect();
    assert_eq!(found, [(TUNNEL_PREROUTING, 2), (TUNNEL_POSTROUTING, 2)], "one for each encapsulation");
}

#[test]
fn a_table_takes_flows_from_others_once_it_is_installed_and_not_when_prepared() {
    for new in [Ruleset::new, Ruleset::with_direct_return] {
        let ruleset = new(&by_source(), Family::V4);
        assert!(installed(&ruleset).takes_flows());
        assert!(!installed(&ruleset.prepared()).takes_flows());
    }
}
