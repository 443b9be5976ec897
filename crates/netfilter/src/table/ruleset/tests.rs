mod direct_return;
mod repair;

use insta::assert_snapshot;

use super::*;
use crate::{
    Element, HostFirewall, LocalTraffic,
    nft::{chain::ObservedChain, rule::ObservedRule, set::ObservedSet, statement::Statement},
};

fn policy(local_traffic: LocalTraffic) -> Policy {
    Policy { host_firewall: HostFirewall::Warn, ..Policy::new(local_traffic) }
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
#[expect(clippy::too_many_lines, reason = "the whole table")]
fn the_ipv4_table() {
    assert_snapshot!(Ruleset::new(&by_source(), Family::V4), @r##"
    table ip kube-ipvs {
    	counter drop-vip-as-source {
    		packets 0 bytes 0
    	}

    	counter drop-source-range {
    		packets 0 bytes 0
    	}

    	counter drop-no-local-endpoint {
    		packets 0 bytes 0
    	}

    	counter drop-tunnel {
    		packets 0 bytes 0
    	}

    	counter reject-no-service {
    		packets 0 bytes 0
    	}

    	counter masquerade-marked {
    		packets 0 bytes 0
    	}

    	counter masquerade-hairpin {
    		packets 0 bytes 0
    	}

    	counter masquerade-no-tunnel {
    		packets 0 bytes 0
    	}

    	counter tunnel-sent {
    		packets 0 bytes 0
    	}

    	counter tunnel-received {
    		packets 0 bytes 0
    	}

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

    	set untracked {
    		type ipv4_addr . inet_proto . inet_service
    	}

    	set untracked-endpoints {
    		type ipv4_addr . inet_proto . inet_service
    	}

    	set tracked-clients {
    		type ipv4_addr
    	}

    	chain kept-destinations {
    		ip daddr @vips dnat to ip daddr comment "no DNAT for hostPorts in other tables #51c290b3"
    		ip daddr . meta l4proto . th dport @external dnat to ip daddr comment "no DNAT for hostPorts in other tables #dc4ce5ce"
    		ip daddr . meta l4proto . th dport @external-local dnat to ip daddr comment "no DNAT for hostPorts in other tables #d86f32ce"
    	}

    	chain from-outside {
    		ip saddr @vips counter name "drop-vip-as-source" drop comment "no client has a VIP as its source #b63a28b9"
    		ip daddr . meta l4proto . th dport . ip saddr @allowed-sources return comment "the client is in an allowed source range #193ea07d"
    		counter name "drop-source-range" drop comment "the client is outside the source ranges #7d3f8d49"
    	}

    	chain source-ranges {
    		ip daddr . meta l4proto . th dport . ip saddr @allowed-sources return comment "the client is in an allowed source range #193ea07d"
    		counter name "drop-source-range" drop comment "the client is outside the source ranges #7d3f8d49"
    	}

    	chain new-flows {
    		ip daddr . meta l4proto . th dport @local-clients-only jump local-clients comment "new flows to the policy Local without an endpoint here #6c293a56"
    		ip daddr @vips jump vip-ports comment "new flows to a VIP #64cdcc21"
    	}

    	chain vip-ports {
    		ip daddr . meta l4proto . th dport @cluster-ips return comment "a ClusterIP's port #55285065"
    		ip daddr . meta l4proto . th dport @external return comment "an external address's port #48355064"
    		ip daddr . meta l4proto . th dport @external-local return comment "the same with the policy Local #cea16a2b"
    		meta l4proto . th dport @health-check-ports return comment "health checks of load balancers #c98e3aaa"
    		icmp type echo-request return comment "a VIP can be pinged #d32b9a42"
    		counter name "reject-no-service" reject comment "no Service has this port #1eaea1ff"
    	}

    	chain local-clients {
    		ip saddr 10.244.0.0/16 return comment "pods of this node are allowed #762503d5"
    		counter name "drop-no-local-endpoint" drop comment "no endpoint on this node (policy Local) #dce0ee7a"
    	}

    	chain nat-prerouting {
    		type nat hook prerouting priority -101; policy accept;
    		ip saddr 10.244.0.0/16 ip daddr . meta l4proto . th dport @cluster-ips dnat to ip daddr comment "pods of this node keep their source address #926abb8d"
    		ip daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 dnat to ip daddr comment "flows to a ClusterIP from elsewhere #9facb527"
    		ip daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 dnat to ip daddr comment "all flows to an external address #be91be2e"
    		ip daddr . meta l4proto . th dport @external-local dnat to ip daddr comment "no DNAT for hostPorts in other tables #d86f32ce"
    		ip daddr @vips dnat to ip daddr comment "no DNAT for hostPorts in other tables #51c290b3"
    	}

    	chain nat-output {
    		type nat hook output priority -101; policy accept;
    		ip saddr 127.0.0.0/8 goto kept-destinations comment "loopback is never masqueraded #6df9c3b5"
    		ip saddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 comment "this node's own flows to a ClusterIP #9d1c6622"
    		ip saddr 10.244.0.0/16 ip daddr . meta l4proto . th dport @cluster-ips dnat to ip daddr comment "pods of this node keep their source address #926abb8d"
    		ip daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 dnat to ip daddr comment "flows to a ClusterIP from elsewhere #9facb527"
    		ip daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 dnat to ip daddr comment "all flows to an external address #be91be2e"
    		ip daddr . meta l4proto . th dport @external-local meta mark set meta mark | 0x00004000 dnat to ip daddr comment "this node's own flows to an external address with the policy Local #44fda6be"
    		ip daddr @vips dnat to ip daddr comment "no DNAT for hostPorts in other tables #51c290b3"
    	}

    	chain nat-postrouting {
    		type nat hook postrouting priority 99; policy accept;
    		meta mark & 0x00004000 == 0x00004000 counter name "masquerade-marked" meta mark set meta mark & 0xffffbfff masquerade fully-random comment "marked flows #d8588e1f"
    		ip daddr . meta l4proto . th dport . ip saddr @hairpin counter name "masquerade-hairpin" masquerade comment "a pod that reached itself #493a76cb"
    	}

    	chain filter-input {
    		type filter hook input priority 0; policy accept;
    		ip daddr . meta l4proto . th dport @restricted jump from-outside comment "restricted by source ranges #82fe846b"
    		ct state new jump new-flows comment "new flows #e2368f3c"
    	}

    	chain filter-output {
    		type filter hook output priority -102; policy accept;
    		ip daddr . meta l4proto . th dport @restricted jump source-ranges comment "restricted by source ranges #3dccd170"
    	}
    }
    "##);
}

#[test]
#[expect(clippy::too_many_lines, reason = "the whole table")]
fn the_ipv6_table() {
    assert_snapshot!(Ruleset::new(&by_source(), Family::V6), @r##"
    table ip6 kube-ipvs {
    	counter drop-vip-as-source {
    		packets 0 bytes 0
    	}

    	counter drop-source-range {
    		packets 0 bytes 0
    	}

    	counter drop-no-local-endpoint {
    		packets 0 bytes 0
    	}

    	counter drop-tunnel {
    		packets 0 bytes 0
    	}

    	counter reject-no-service {
    		packets 0 bytes 0
    	}

    	counter masquerade-marked {
    		packets 0 bytes 0
    	}

    	counter masquerade-hairpin {
    		packets 0 bytes 0
    	}

    	counter masquerade-no-tunnel {
    		packets 0 bytes 0
    	}

    	counter tunnel-sent {
    		packets 0 bytes 0
    	}

    	counter tunnel-received {
    		packets 0 bytes 0
    	}

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

    	set untracked {
    		type ipv6_addr . inet_proto . inet_service
    	}

    	set untracked-endpoints {
    		type ipv6_addr . inet_proto . inet_service
    	}

    	set tracked-clients {
    		type ipv6_addr
    	}

    	chain kept-destinations {
    		ip6 daddr @vips dnat to ip6 daddr comment "no DNAT for hostPorts in other tables #034100db"
    		ip6 daddr . meta l4proto . th dport @external dnat to ip6 daddr comment "no DNAT for hostPorts in other tables #7d6f5590"
    		ip6 daddr . meta l4proto . th dport @external-local dnat to ip6 daddr comment "no DNAT for hostPorts in other tables #7d99c004"
    	}

    	chain from-outside {
    		ip6 saddr @vips counter name "drop-vip-as-source" drop comment "no client has a VIP as its source #ad4bcf69"
    		ip6 daddr . meta l4proto . th dport . ip6 saddr @allowed-sources return comment "the client is in an allowed source range #08222e6c"
    		counter name "drop-source-range" drop comment "the client is outside the source ranges #7d3f8d49"
    	}

    	chain source-ranges {
    		ip6 daddr . meta l4proto . th dport . ip6 saddr @allowed-sources return comment "the client is in an allowed source range #08222e6c"
    		counter name "drop-source-range" drop comment "the client is outside the source ranges #7d3f8d49"
    	}

    	chain new-flows {
    		ip6 daddr . meta l4proto . th dport @local-clients-only jump local-clients comment "new flows to the policy Local without an endpoint here #7b68d540"
    		ip6 daddr @vips jump vip-ports comment "new flows to a VIP #0bf5f445"
    	}

    	chain vip-ports {
    		ip6 daddr . meta l4proto . th dport @cluster-ips return comment "a ClusterIP's port #8d7978d7"
    		ip6 daddr . meta l4proto . th dport @external return comment "an external address's port #9a6af1be"
    		ip6 daddr . meta l4proto . th dport @external-local return comment "the same with the policy Local #33d554c9"
    		meta l4proto . th dport @health-check-ports return comment "health checks of load balancers #c98e3aaa"
    		icmpv6 type echo-request return comment "a VIP can be pinged #722c3d65"
    		counter name "reject-no-service" reject comment "no Service has this port #ed78e888"
    	}

    	chain local-clients {
    		ip6 saddr fd00:10:244::/56 return comment "pods of this node are allowed #a2192a48"
    		counter name "drop-no-local-endpoint" drop comment "no endpoint on this node (policy Local) #dce0ee7a"
    	}

    	chain nat-prerouting {
    		type nat hook prerouting priority -101; policy accept;
    		ip6 saddr fd00:10:244::/56 ip6 daddr . meta l4proto . th dport @cluster-ips dnat to ip6 daddr comment "pods of this node keep their source address #29222579"
    		ip6 daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 dnat to ip6 daddr comment "flows to a ClusterIP from elsewhere #bbca4815"
    		ip6 daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 dnat to ip6 daddr comment "all flows to an external address #799683ec"
    		ip6 daddr . meta l4proto . th dport @external-local dnat to ip6 daddr comment "no DNAT for hostPorts in other tables #7d99c004"
    		ip6 daddr @vips dnat to ip6 daddr comment "no DNAT for hostPorts in other tables #034100db"
    	}

    	chain nat-output {
    		type nat hook output priority -101; policy accept;
    		ip6 saddr ::1 goto kept-destinations comment "loopback is never masqueraded #4baa1fcb"
    		ip6 saddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 comment "this node's own flows to a ClusterIP #84557bec"
    		ip6 saddr fd00:10:244::/56 ip6 daddr . meta l4proto . th dport @cluster-ips dnat to ip6 daddr comment "pods of this node keep their source address #29222579"
    		ip6 daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 dnat to ip6 daddr comment "flows to a ClusterIP from elsewhere #bbca4815"
    		ip6 daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 dnat to ip6 daddr comment "all flows to an external address #799683ec"
    		ip6 daddr . meta l4proto . th dport @external-local meta mark set meta mark | 0x00004000 dnat to ip6 daddr comment "this node's own flows to an external address with the policy Local #10e88568"
    		ip6 daddr @vips dnat to ip6 daddr comment "no DNAT for hostPorts in other tables #034100db"
    	}

    	chain nat-postrouting {
    		type nat hook postrouting priority 99; policy accept;
    		meta mark & 0x00004000 == 0x00004000 counter name "masquerade-marked" meta mark set meta mark & 0xffffbfff masquerade fully-random comment "marked flows #d8588e1f"
    		ip6 daddr . meta l4proto . th dport . ip6 saddr @hairpin counter name "masquerade-hairpin" masquerade comment "a pod that reached itself #febfbf66"
    	}

    	chain filter-input {
    		type filter hook input priority 0; policy accept;
    		ip6 daddr . meta l4proto . th dport @restricted jump from-outside comment "restricted by source ranges #423c3965"
    		ct state new jump new-flows comment "new flows #e2368f3c"
    	}

    	chain filter-output {
    		type filter hook output priority -102; policy accept;
    		ip6 daddr . meta l4proto . th dport @restricted jump source-ranges comment "restricted by source ranges #a11c468a"
    	}
    }
    "##);
}

#[test]
fn flows_of_pods_are_untracked_in_both_directions_where_the_policy_asks_for_it() {
    let of = |policy: &Policy| {
        let table = Ruleset::new(policy, Family::V4).to_string();
        table.contains("chain untracked {").then(|| rules_of(&Ruleset::new(policy, Family::V4), "untracked"))
    };
    let untracked = Policy { untracked_pods: vec!["10.244.0.0/16".parse().unwrap()], ..by_source() };
    assert_snapshot!(of(&untracked).unwrap(), @r#"
    type filter hook prerouting priority -300; policy accept;
    ip saddr 10.244.0.0/16 ip daddr . meta l4proto . th dport @untracked ip saddr != @tracked-clients notrack comment "from pods to Services without conntrack #f192ea5c"
    ip saddr 10.244.0.0/16 ip daddr . meta l4proto . th dport @untracked-endpoints ip saddr != @tracked-clients notrack comment "from pods to their endpoints #b8f01a87"
    ip daddr 10.244.0.0/16 ip saddr . meta l4proto . th sport @untracked-endpoints ip daddr != @tracked-clients fib daddr type != local notrack comment "the endpoints' answers #255699fd"
    "#);
    assert_eq!(of(&by_source()), None);
    assert_eq!(of(&Policy { masquerade_all: true, ..untracked.clone() }), None, "all need conntrack");
    assert!(Ruleset::new(&untracked, Family::V4).prepared().chain_names().all(|name| name != "untracked"));
}

#[test]
fn without_a_range_in_a_family_no_flow_to_a_cluster_ip_is_marked_but_the_nodes_own() {
    let policy = policy(LocalTraffic::Source { ipv4: None, ipv6: "fd00::/56".parse().ok() });
    assert_snapshot!(prerouting_of(&policy, Family::V4), @r##"
    type nat hook prerouting priority -101; policy accept;
    ip daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 dnat to ip daddr comment "all flows to an external address #be91be2e"
    ip daddr . meta l4proto . th dport @external-local dnat to ip daddr comment "no DNAT for hostPorts in other tables #d86f32ce"
    ip daddr @vips dnat to ip daddr comment "no DNAT for hostPorts in other tables #51c290b3"
    "##);
    assert_snapshot!(prerouting_of(&policy, Family::V6), @r##"
    type nat hook prerouting priority -101; policy accept;
    ip6 saddr fd00::/56 ip6 daddr . meta l4proto . th dport @cluster-ips dnat to ip6 daddr comment "pods of this node keep their source address #63899bff"
    ip6 daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 dnat to ip6 daddr comment "flows to a ClusterIP from elsewhere #bbca4815"
    ip6 daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 dnat to ip6 daddr comment "all flows to an external address #799683ec"
    ip6 daddr . meta l4proto . th dport @external-local dnat to ip6 daddr comment "no DNAT for hostPorts in other tables #7d99c004"
    ip6 daddr @vips dnat to ip6 daddr comment "no DNAT for hostPorts in other tables #034100db"
    "##);
}

#[test]
fn others_are_kept_away_without_a_local_endpoint_only_where_local_pods_are_known() {
    let known = policy(LocalTraffic::Source { ipv4: None, ipv6: "fd00::/56".parse().ok() });
    let [v4, v6] = Family::BOTH.map(|family| rules_of(&Ruleset::new(&known, family), "local-clients"));
    assert_eq!(v4, "");
    assert_snapshot!(v6, @r##"
    ip6 saddr fd00::/56 return comment "pods of this node are allowed #94210e12"
    counter name "drop-no-local-endpoint" drop comment "no endpoint on this node (policy Local) #dce0ee7a"
    "##);
    let bridge = policy(LocalTraffic::Bridge("cbr0".into()));
    assert_snapshot!(rules_of(&Ruleset::new(&bridge, Family::V4), "local-clients"), @r##"
    iifname "cbr0" return comment "pods of this node are allowed #8c4ac508"
    counter name "drop-no-local-endpoint" drop comment "no endpoint on this node (policy Local) #dce0ee7a"
    "##);
}

#[test]
fn masquerade_all_asks_for_no_source() {
    let policy = Policy { masquerade_all: true, ..by_source() };
    assert_snapshot!(prerouting_of(&policy, Family::V4), @r##"
    type nat hook prerouting priority -101; policy accept;
    ip daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 dnat to ip daddr comment "masquerade all flows to a ClusterIP #9facb527"
    ip daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 dnat to ip daddr comment "all flows to an external address #be91be2e"
    ip daddr . meta l4proto . th dport @external-local dnat to ip daddr comment "no DNAT for hostPorts in other tables #d86f32ce"
    ip daddr @vips dnat to ip daddr comment "no DNAT for hostPorts in other tables #51c290b3"
    "##);
    assert_snapshot!(prerouting_of(&policy, Family::V6), @r##"
    type nat hook prerouting priority -101; policy accept;
    ip6 daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 dnat to ip6 daddr comment "masquerade all flows to a ClusterIP #bbca4815"
    ip6 daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 dnat to ip6 daddr comment "all flows to an external address #799683ec"
    ip6 daddr . meta l4proto . th dport @external-local dnat to ip6 daddr comment "no DNAT for hostPorts in other tables #7d99c004"
    ip6 daddr @vips dnat to ip6 daddr comment "no DNAT for hostPorts in other tables #034100db"
    "##);
}

#[test]
fn pods_behind_a_bridge() {
    let policy = policy(LocalTraffic::Bridge("cbr0".into()));
    assert_snapshot!(prerouting_of(&policy, Family::V4), @r##"
    type nat hook prerouting priority -101; policy accept;
    iifname "cbr0" ip daddr . meta l4proto . th dport @cluster-ips dnat to ip daddr comment "pods of this node keep their source address #eafaa8a4"
    ip daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 dnat to ip daddr comment "flows to a ClusterIP from elsewhere #9facb527"
    ip daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 dnat to ip daddr comment "all flows to an external address #be91be2e"
    ip daddr . meta l4proto . th dport @external-local dnat to ip daddr comment "no DNAT for hostPorts in other tables #d86f32ce"
    ip daddr @vips dnat to ip daddr comment "no DNAT for hostPorts in other tables #51c290b3"
    "##);
    assert_snapshot!(prerouting_of(&policy, Family::V6), @r##"
    type nat hook prerouting priority -101; policy accept;
    iifname "cbr0" ip6 daddr . meta l4proto . th dport @cluster-ips dnat to ip6 daddr comment "pods of this node keep their source address #c681bbfe"
    ip6 daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 dnat to ip6 daddr comment "flows to a ClusterIP from elsewhere #bbca4815"
    ip6 daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 dnat to ip6 daddr comment "all flows to an external address #799683ec"
    ip6 daddr . meta l4proto . th dport @external-local dnat to ip6 daddr comment "no DNAT for hostPorts in other tables #7d99c004"
    ip6 daddr @vips dnat to ip6 daddr comment "no DNAT for hostPorts in other tables #034100db"
    "##);
}

#[test]
fn pods_behind_interfaces_with_a_common_prefix() {
    let policy = policy(LocalTraffic::InterfacePrefix("veth".into()));
    assert_snapshot!(prerouting_of(&policy, Family::V4), @r##"
    type nat hook prerouting priority -101; policy accept;
    iifname "veth*" ip daddr . meta l4proto . th dport @cluster-ips dnat to ip daddr comment "pods of this node keep their source address #3bffe006"
    ip daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00004000 dnat to ip daddr comment "flows to a ClusterIP from elsewhere #9facb527"
    ip daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00004000 dnat to ip daddr comment "all flows to an external address #be91be2e"
    ip daddr . meta l4proto . th dport @external-local dnat to ip daddr comment "no DNAT for hostPorts in other tables #d86f32ce"
    ip daddr @vips dnat to ip daddr comment "no DNAT for hostPorts in other tables #51c290b3"
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
    		meta l4proto . th dport @health-check-ports meta mark set meta mark | 0x00001000 comment "health checks of load balancers #c79d6859"
    	}

    	chain accepted-input {
    		type filter hook input priority 90; policy accept;
    		meta mark & 0x00001000 == 0x00001000 meta l4proto . th dport @health-check-ports meta mark set meta mark & 0xffffefff comment "health checks of load balancers #d474b134"
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
    		meta l4proto . th dport @health-check-ports meta mark set meta mark | 0x00001000 comment "health checks of load balancers #c79d6859"
    	}

    	chain accepted-input {
    		type filter hook input priority 90; policy accept;
    		meta mark & 0x00001000 == 0x00001000 ip daddr @vips meta mark set meta mark & 0xffffefff comment "to a VIP #e623ae73"
    		meta mark & 0x00001000 == 0x00001000 ip daddr . meta l4proto . th dport @external meta mark set meta mark & 0xffffefff comment "to a NodePort #6e2a0dfe"
    		meta mark & 0x00001000 == 0x00001000 ip daddr . meta l4proto . th dport @external-local meta mark set meta mark & 0xffffefff comment "to a NodePort with the policy Local #ef3665de"
    		meta mark & 0x00001000 == 0x00001000 meta l4proto . th dport @health-check-ports meta mark set meta mark & 0xffffefff comment "health checks of load balancers #d474b134"
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
fn without_sets_of_intervals_no_client_reaches_a_restricted_address() {
    let ruleset = Ruleset::new(&by_source(), Family::V6).without(Element::ALLOWED_SOURCES);
    assert!(!ruleset.to_string().contains("allowed-sources"));
    let rules = rules_of(&ruleset, "source-ranges");
    assert!(
        rules.starts_with("counter name \"drop-source-range\" drop comment ") && rules.lines().count() == 1,
        "{rules}"
    );
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
    counter masquerade-marked {
    ip daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00100000 dnat to ip daddr
    ip daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00100000 dnat to ip daddr
    ip saddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00100000
    ip daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x00100000 dnat to ip daddr
    ip daddr . meta l4proto . th dport @external meta mark set meta mark | 0x00100000 dnat to ip daddr
    ip daddr . meta l4proto . th dport @external-local meta mark set meta mark | 0x00100000 dnat to ip daddr
    meta mark & 0x00100000 == 0x00100000 counter name "masquerade-marked" meta mark set meta mark & 0xffefffff masquerade fully-random
    "##);
}
