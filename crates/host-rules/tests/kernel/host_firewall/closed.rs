//! Which chains are found to be closed.

use std::fmt::Write;

use host_rules::{
    Backend,
    host_firewall::{Accepts, FirewallChains as _, Hook, HostChain, HostChains, How, TableFamily},
};

use super::{accept, open};
use crate::support::{
    host::in_fresh_namespace,
    programs::{nft, run},
};

/// The closed chains, as text, in a namespace with what these commands make. `nft` takes the rest of its
/// line as a script.
fn closed_after(commands: &[&str]) -> Vec<String> {
    in_fresh_namespace(|| {
        for command in commands {
            match command.strip_prefix("nft ") {
                Some(script) => nft(script),
                None => drop(run(command)),
            }
        }
        let closed = open().closed_chains(&accept()).unwrap();
        assert!(closed.iter().all(|chain| chain.accepts == Accepts::Nothing), "{closed:?}");
        closed.iter().map(ToString::to_string).collect()
    })
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn a_host_without_rules_has_no_closed_chain() {
    assert_eq!(closed_after(&[]), [""; 0]);
    assert_eq!(closed_after(&["nft table inet filter {}"]), [""; 0]);
}

const POLICY: &str = "policy drop";
const LAST_RULE: &str = "its last rule drops the rest";

/// Base chains, and whether and how they are closed.
const CHAINS: &[(&str, Option<&str>)] = &[
    ("type filter hook input priority filter; policy drop;", Some(POLICY)),
    ("type filter hook input priority filter; policy accept;", None),
    ("type filter hook forward priority filter; policy drop;", Some(POLICY)),
    ("type filter hook forward priority filter; policy accept; drop;", Some(LAST_RULE)),
    // Wherever it is among the chains.
    ("type filter hook input priority raw; policy drop;", Some(POLICY)),
    ("type filter hook input priority -1000; policy drop;", Some(POLICY)),
    ("type filter hook forward priority 200; policy drop;", Some(POLICY)),
    // By its last rule, which may count and log.
    ("type filter hook input priority 10; tcp dport 22 accept; drop;", Some(LAST_RULE)),
    ("type filter hook input priority 10; tcp dport 22 accept; reject;", Some(LAST_RULE)),
    ("type filter hook input priority 10; reject with icmp type admin-prohibited;", Some(LAST_RULE)),
    ("type filter hook input priority 10; counter log prefix \"dropped: \" drop;", Some(LAST_RULE)),
    (
        "type filter hook input priority 10; log group 2; counter name dropped drop comment \"bye\";",
        Some(LAST_RULE),
    ),
    ("type filter hook input priority 10; policy drop; drop;", Some(LAST_RULE)),
    // By the last that packets reach.
    ("type filter hook input priority 10; drop; tcp dport 22 accept;", Some(LAST_RULE)),
    ("type filter hook input priority 10; reject; accept;", Some(LAST_RULE)),
    // Not everything is dropped, or not here.
    ("type filter hook input priority 10; tcp dport 22 drop;", None),
    ("type filter hook input priority 10; reject with tcp reset;", None),
    ("type filter hook input priority 10; limit rate over 5/second drop;", None),
    ("type filter hook input priority 10; jump dropping;", None),
    ("type filter hook input priority 10; return; drop;", None),
    ("type filter hook input priority 10; goto dropping; drop;", None),
    ("type filter hook input priority 10; policy drop; return; accept;", Some(POLICY)),
    ("type filter hook input priority 10; policy drop; jump dropping; counter;", Some(POLICY)),
    // The rest is accepted.
    ("type filter hook input priority 10; policy drop; ct state invalid drop; accept;", None),
    ("type filter hook input priority 10; policy drop; counter accept; drop;", None),
    // Other hooks and types see other packets.
    ("type filter hook prerouting priority 10; policy drop;", None),
    ("type filter hook output priority 10; policy drop;", None),
    ("type filter hook postrouting priority 10; policy drop;", None),
    ("type route hook output priority 10; policy drop;", None),
    ("type nat hook input priority 10; counter;", None),
];

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn a_chain_is_closed_by_its_policy_or_by_a_rule_that_leaves_nothing() {
    for (family, icmp) in [("ip", "icmp"), ("ip6", "icmpv6"), ("inet", "icmpx")] {
        let (mut script, mut expected) = ("nft ".to_owned(), Vec::new());
        for (number, (chain, closed)) in CHAINS.iter().enumerate() {
            let chain = chain.replace("icmp type", &format!("{icmp} type"));
            write!(
                script,
                "table {family} number{number} {{
                    counter dropped {{ }}
                    chain dropping {{ drop; }}
                    chain c {{ {chain} }}
                }}\n"
            )
            .unwrap();
            expected.extend(closed.map(|how| format!("{family} number{number} c ({how})")));
        }
        assert_eq!(closed_after(&[&script]), expected);
    }
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn chains_of_iptables_are_found() {
    for (commands, closed) in [
        (&["iptables-nft -P INPUT DROP"][..], &["ip filter INPUT (policy drop)"][..]),
        (&["ip6tables-nft -P FORWARD DROP"], &["ip6 filter FORWARD (policy drop)"]),
        (&["iptables-nft -P OUTPUT DROP"], &[]),
        (&["iptables-nft -t mangle -A INPUT -j DROP"], &["ip mangle INPUT (its last rule drops the rest)"]),
        (
            &["iptables-nft -A FORWARD -j LOG", "iptables-nft -A FORWARD -j DROP"],
            &["ip filter FORWARD (its last rule drops the rest)"],
        ),
        (
            &[
                "iptables-nft -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
                "iptables-nft -A INPUT -p icmp -j ACCEPT",
                "iptables-nft -A INPUT -m comment --comment rest -j REJECT --reject-with icmp-host-prohibited",
            ],
            &["ip filter INPUT (its last rule drops the rest)"],
        ),
        (&["ip6tables-nft -A INPUT -j REJECT"], &["ip6 filter INPUT (its last rule drops the rest)"]),
        (&["iptables-nft -A INPUT -p tcp -j REJECT"], &[]),
        (&["iptables-nft -A INPUT -j LOG"], &[]),
        (
            &[
                "iptables-nft -N DROPPING",
                "iptables-nft -A DROPPING -j DROP",
                "iptables-nft -A INPUT -j DROPPING",
            ],
            &[],
        ),
        (&["iptables-nft -P INPUT DROP", "iptables-nft -A INPUT -j ACCEPT"], &[]),
    ] {
        assert_eq!(closed_after(commands), closed, "{commands:?}");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn each_closed_chain_is_reported_with_its_place() {
    in_fresh_namespace(|| {
        run("iptables-nft -P INPUT DROP");
        run("iptables-nft -P FORWARD DROP");
        nft("table inet firewalld {
            chain zones { tcp dport 22 accept; }
            chain filter_INPUT {
                type filter hook input priority filter + 10; policy accept;
                ct state { established, related } accept
                ct status dnat accept
                iifname \"lo\" accept
                ct state invalid drop
                jump zones
                reject with icmpx type admin-prohibited
            }
        }");
        let place = |family, table: &str, name: &str, hook, priority| HostChain {
            backend: Backend::Nft,
            family,
            table: table.into(),
            name: name.into(),
            hook,
            priority,
        };
        let mut closed: Vec<_> = open()
            .closed_chains(&accept())
            .unwrap()
            .into_iter()
            .map(|closed| (closed.chain, closed.how))
            .collect();
        closed.sort_by_key(|(chain, _)| chain.to_string());
        let expected = [
            (place(TableFamily::Inet, "firewalld", "filter_INPUT", Hook::Input, 10), How::LastRule),
            (place(TableFamily::Ip, "filter", "FORWARD", Hook::Forward, 0), How::Policy),
            (place(TableFamily::Ip, "filter", "INPUT", Hook::Input, 0), How::Policy),
        ];
        assert_eq!(closed, expected);
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn what_filters_nothing_of_ours_is_left_out() {
    for script in [
        "nft table ip kube-ipvs { chain c { type filter hook input priority 0; policy drop; }; }",
        "nft table ip6 kube-ipvs { chain c { type filter hook input priority 0; policy drop; }; }",
        "nft table ip asleep { flags dormant; chain c { type filter hook input priority 0; policy drop; }; }",
        "nft table bridge b { chain c { type filter hook input priority 0; policy drop; }; }",
        "nft table arp a { chain c { type filter hook input priority 0; policy drop; }; }",
        "nft table netdev n { chain c { type filter hook ingress device lo priority 0; policy drop; }; }",
        "nft table inet i { chain c { type filter hook ingress device lo priority 0; policy drop; }; }",
    ] {
        assert_eq!(closed_after(&[script]), [""; 0], "{script}");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn a_chain_with_thousands_of_rules_is_read_to_its_end() {
    let rules: Vec<_> = (1..=5000).map(|port| format!("tcp dport {port} counter accept;")).collect();
    let rules = rules.join("\n");
    let script = format!(
        "nft table inet big {{ chain c {{ type filter hook input priority 0; policy accept;\n{rules} reject; }}; }}"
    );
    assert_eq!(closed_after(&[&script]), [format!("inet big c ({LAST_RULE})")]);
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn a_comment_that_begins_with_our_name_says_that_a_chain_was_seen_to() {
    let accepts = |chains: &mut HostChains| {
        let closed = chains.closed_chains(&accept()).unwrap();
        closed.iter().map(|closed| closed.accepts).collect::<Vec<_>>()
    };
    in_fresh_namespace(|| {
        run("iptables-nft -P INPUT DROP");
        run("iptables-nft -A INPUT -d 10.96.0.0/12 -m comment --comment kube-ipvs -j ACCEPT");
        assert_eq!(accepts(&mut open()), [Accepts::ByHand]);
    });
    in_fresh_namespace(|| {
        nft("table inet filter { chain input {
            type filter hook input priority filter; policy drop;
            ip daddr 10.96.0.0/12 accept comment \"kube-ipvs: ClusterIPs\"
        }; }");
        assert_eq!(accepts(&mut open()), [Accepts::ByHand]);
    });
    in_fresh_namespace(|| {
        nft("table inet filter { chain input {
            type filter hook input priority filter; policy accept;
            drop
            ip daddr 10.96.0.0/12 accept comment \"kube-ipvs: too late\"
        }; }");
        assert_eq!(accepts(&mut open()), [Accepts::Nothing]);
    });
}
