//! What direct return adds.

use insta::assert_snapshot;

use super::*;

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
    	iifname "kube-ipvs-tun4" counter name "drop-tunnel" drop comment "drop everything else from the tunnel #7efc68ca"
    	ip saddr 10.244.0.0/16 dnat ip to ip daddr . meta l4proto . th dport map @cluster-ip-for comment "pods are redirected to the ClusterIP #c4afbe7d"
    	ip daddr . meta l4proto . th dport @direct-return dnat to ip daddr comment "no DNAT for hostPorts in other tables #9dc7ab48"
    	ip saddr != 127.0.0.0/8 ip daddr . meta l4proto . th dport @direct-return meta mark set meta mark | 0x00004000 comment "this node's own flows with direct return #2b8c89b1"
    	ip saddr != 127.0.0.0/8 ip daddr . meta l4proto . th dport @direct-return dnat ip to ip daddr . meta l4proto . th dport map @cluster-ip-for comment "they are redirected to the ClusterIP #0f474dcb"
    	ct original ip daddr . meta l4proto . ct original proto-dst @direct-return ip daddr @endpoints-here return comment "to a pod of this node #3e4ae62c"
    	ct original ip daddr . meta l4proto . ct original proto-dst @direct-return counter name "masquerade-no-tunnel" masquerade fully-random comment "to an endpoint without a tunnel #b729ed5e"
    chain tunnel-senders-only {
    	fib saddr . iif oif 0 counter name "drop-tunnel" drop comment "the sender arrived on the wrong interface #363c8934"
    	ip saddr @tunnel-senders return comment "another node of the cluster #0a0ae69a"
    	counter name "drop-tunnel" drop comment "no other sender #c79c24b6"
    }
    chain tunnel-prerouting {
    	type filter hook prerouting priority -390; policy accept;
    	ip daddr 169.254.73.1 counter name "drop-tunnel" drop comment "clients must not address the tunnel's end #c8754a6f"
    	meta l4proto ipencap ip daddr @endpoints-here jump tunnel-senders-only comment "only nodes send into the tunnel #7b1323a1"
    	meta l4proto ipencap ip daddr @endpoints-here meta priority set ip daddr ip daddr set 169.254.73.1 notrack counter name "tunnel-received" comment "to the end of the tunnel #3c259c7b"
    	ip daddr . meta l4proto . th dport @direct-return ip daddr . meta l4proto . th dport @restricted jump source-ranges comment "restricted by source ranges #de35880d"
    	iifname "kube-ipvs-tun4" ip daddr . meta l4proto . th dport @restricted jump source-ranges comment "only some clients, through the tunnel #ff32c2a4"
    	meta l4proto ipencap ip saddr 10.244.0.0/16 ip daddr @endpoints-elsewhere counter name "drop-tunnel" drop comment "pods must not send to the tunnel #0348c361"
    	meta l4proto ipencap fib saddr . iif oif 0 ip daddr @endpoints-elsewhere counter name "drop-tunnel" drop comment "drop packets to the tunnel with another's source #5f8af9c5"
    }
    chain tunnel-left {
    	type filter hook prerouting priority -150; policy accept;
    	iifname "kube-ipvs-tun4" ct state invalid,untracked counter name "drop-tunnel" drop comment "drop tunnel packets that belong to no connection #ab08a228"
    }
    chain tunnel-postrouting {
    	type filter hook postrouting priority -150; policy accept;
    	tcp flags syn ct direction reply tcp option maxseg size set ct original ip daddr . meta l4proto . ct original proto-dst map @max-segment-sizes comment "requests must fit into a tunnel #92ef17c0"
    	meta l4proto ipencap ip daddr @endpoints-elsewhere counter name "tunnel-sent" comment "to another node by a tunnel #531daf73"
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
    	iifname "kube-ipvs-tun6" counter name "drop-tunnel" drop comment "drop everything else from the tunnel #68412730"
    	ip6 saddr fd00:10:244::/56 dnat ip6 to ip6 daddr . meta l4proto . th dport map @cluster-ip-for comment "pods are redirected to the ClusterIP #c22d4d76"
    	ip6 daddr . meta l4proto . th dport @direct-return dnat to ip6 daddr comment "no DNAT for hostPorts in other tables #ceccdad2"
    	ip6 saddr != ::1 ip6 daddr . meta l4proto . th dport @direct-return meta mark set meta mark | 0x00004000 comment "this node's own flows with direct return #625faa77"
    	ip6 saddr != ::1 ip6 daddr . meta l4proto . th dport @direct-return dnat ip6 to ip6 daddr . meta l4proto . th dport map @cluster-ip-for comment "they are redirected to the ClusterIP #a0ea9bf5"
    	ct original ip6 daddr . meta l4proto . ct original proto-dst @direct-return ip6 daddr @endpoints-here return comment "to a pod of this node #0f794f74"
    	ct original ip6 daddr . meta l4proto . ct original proto-dst @direct-return counter name "masquerade-no-tunnel" masquerade fully-random comment "to an endpoint without a tunnel #f3a038aa"
    chain tunnel-senders-only {
    	fib saddr . iif oif 0 counter name "drop-tunnel" drop comment "the sender arrived on the wrong interface #363c8934"
    	ip6 saddr @tunnel-senders return comment "another node of the cluster #041a0a6a"
    	counter name "drop-tunnel" drop comment "no other sender #c79c24b6"
    }
    chain tunnel-prerouting {
    	type filter hook prerouting priority -390; policy accept;
    	ip6 daddr fd6b:7562:6970:7673::1 counter name "drop-tunnel" drop comment "clients must not address the tunnel's end #de81299c"
    	meta l4proto ipv6 ip6 daddr @endpoints-here jump tunnel-senders-only comment "only nodes send into the tunnel #d02ceaa8"
    	meta l4proto ipv6 ip6 daddr @endpoints-here meta priority set @nh,288,32 ip6 daddr set fd6b:7562:6970:7673::1 notrack counter name "tunnel-received" comment "to the end of the tunnel #78a0e111"
    	ip6 daddr . meta l4proto . th dport @direct-return ip6 daddr . meta l4proto . th dport @restricted jump source-ranges comment "restricted by source ranges #a1fa8a49"
    	iifname "kube-ipvs-tun6" ip6 daddr . meta l4proto . th dport @restricted jump source-ranges comment "only some clients, through the tunnel #ecdfe628"
    	meta l4proto ipv6 ip6 saddr fd00:10:244::/56 ip6 daddr @endpoints-elsewhere counter name "drop-tunnel" drop comment "pods must not send to the tunnel #5b54165a"
    	meta l4proto ipv6 fib saddr . iif oif 0 ip6 daddr @endpoints-elsewhere counter name "drop-tunnel" drop comment "drop packets to the tunnel with another's source #f186c1b4"
    }
    chain tunnel-left {
    	type filter hook prerouting priority -150; policy accept;
    	iifname "kube-ipvs-tun6" ct state invalid,untracked counter name "drop-tunnel" drop comment "drop tunnel packets that belong to no connection #df7d62c6"
    }
    chain tunnel-postrouting {
    	type filter hook postrouting priority -150; policy accept;
    	tcp flags syn ct direction reply tcp option maxseg size set ct original ip6 daddr . meta l4proto . ct original proto-dst map @max-segment-sizes comment "requests must fit into a tunnel #f958acfc"
    	meta l4proto ipv6 ip6 daddr @endpoints-elsewhere counter name "tunnel-sent" comment "to another node by a tunnel #c771cea6"
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
    udp dport 6080 @th,64,16 0x4 ip daddr @endpoints-here meta priority set ip daddr ip daddr set 169.254.73.1 notrack counter name "tunnel-received" comment "to the end of the tunnel #908414f7"
    udp dport 6080 @th,64,16 0x4 ip saddr 10.244.0.0/16 ip daddr @endpoints-elsewhere counter name "drop-tunnel" drop comment "pods must not send to the tunnel #8fb67df5"
    udp dport 6080 @th,64,16 0x4 fib saddr . iif oif 0 ip daddr @endpoints-elsewhere counter name "drop-tunnel" drop comment "drop packets to the tunnel with another's source #923b2601"
    udp dport 6080 @th,64,16 0x4 ip daddr @endpoints-elsewhere counter name "tunnel-sent" comment "to another node by a tunnel #d3a4bacb"
    "##);
}
