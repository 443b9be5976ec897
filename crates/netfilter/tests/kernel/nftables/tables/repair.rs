//! A table that another program has changed, or an earlier version has made, is repaired.

use std::collections::BTreeSet;

use ipvs::Family;
use netfilter::{KernelNetfilter, Netfilter, Observed, Policy, Ruleset};

use super::{INSTALL, add, both, by_source, hairpin, some_elements, with_installed};
use crate::{
    support::host::in_fresh_namespace,
    support::programs::{nft, run},
};

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn drift_is_noticed_and_repaired_and_the_elements_stay() {
    for drift in [
        "flush chain ip kube-ipvs kept-destinations",
        "flush table ip kube-ipvs",
        "add rule ip kube-ipvs vip-ports accept",
        "insert rule ip kube-ipvs nat-postrouting ip saddr 1.2.3.4 return comment \"marked flows\"",
        "add chain ip kube-ipvs more",
        "add chain ip kube-ipvs more { type nat hook input priority 100; }",
        "add chain ip kube-ipvs nat-prerouting { type nat hook prerouting priority -101; policy drop; }",
        "flush chain ip kube-ipvs nat-output; delete chain ip kube-ipvs nat-output",
        "flush chain ip kube-ipvs nat-output; delete chain ip kube-ipvs nat-output; \
         add chain ip kube-ipvs nat-output { type nat hook output priority -90; }; \
         add rule ip kube-ipvs nat-output jump source-ranges",
        "flush chain ip kube-ipvs nat-output; delete chain ip kube-ipvs nat-output; \
         add chain ip kube-ipvs nat-output { type route hook output priority -101; }; \
         add rule ip kube-ipvs nat-output jump source-ranges",
        "add set ip kube-ipvs more { type ipv4_addr; }",
        "add table ip kube-ipvs { flags dormant; }",
    ] {
        with_installed(|netfilter| {
            nft(drift);
            let observed = netfilter.observe().unwrap();
            assert_eq!(observed.installed, BTreeSet::from([Family::V6]), "{drift}");
            assert_eq!(observed.elements, both(&some_elements()).elements, "{drift}");
            netfilter.apply(&INSTALL).unwrap();
            assert_eq!(netfilter.observe().unwrap(), both(&some_elements()), "{drift}");
        });
    }
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn one_deleted_rule_is_noticed_and_comes_back_in_its_place() {
    with_installed(|netfilter| {
        let listed = run("nft -a list chain ip kube-ipvs nat-output");
        let handle = listed
            .lines()
            .find(|line| line.contains("loopback"))
            .and_then(|line| line.rsplit(' ').next())
            .unwrap()
            .to_owned();
        run(&format!("nft delete rule ip kube-ipvs nat-output handle {handle}"));
        assert!(!netfilter.observe().unwrap().installed.contains(&Family::V4));
        netfilter.apply(&INSTALL).unwrap();
        let expected = Family::BOTH.map(|family| Ruleset::new(&by_source(), family).to_string()).concat();
        assert_eq!(run("nft --numeric-priority --terse list ruleset"), expected);
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn rules_in_another_order_are_not_ours() {
    with_installed(|netfilter| {
        let chain = run("nft list chain ip kube-ipvs nat-postrouting");
        let mut rules: Vec<&str> = chain.lines().filter(|line| line.contains("comment")).collect();
        rules.reverse();
        let again =
            rules.iter().map(|rule| format!("add rule ip kube-ipvs nat-postrouting {}\n", rule.trim()));
        nft(&format!("flush chain ip kube-ipvs nat-postrouting\n{}", again.collect::<String>()));
        assert!(!netfilter.observe().unwrap().installed.contains(&Family::V4));
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn rules_of_another_policy_are_not_installed_and_are_replaced() {
    with_installed(|_| {
        let all = Policy { masquerade_all: true, ..by_source() };
        let mut netfilter = KernelNetfilter::open(&all).unwrap();
        assert_eq!(netfilter.observe().unwrap().installed, BTreeSet::new());
        netfilter.apply(&INSTALL).unwrap();
        assert_eq!(netfilter.observe().unwrap(), both(&some_elements()));
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn set_with_another_definition_is_replaced_and_other_sets_keep_their_elements() {
    const KEY: &str = "type ipv4_addr . inet_proto . inet_service . ipv4_addr";
    for definition in [
        "type ipv4_addr; elements = { 10.0.0.1 }",
        &format!("{KEY}; size 1000"),
        &format!("{KEY}; flags timeout"),
        &format!("{KEY}; timeout 1h"),
        &format!("{KEY}; flags dynamic"),
        &format!("{KEY}; flags interval"),
    ] {
        with_installed(|netfilter| {
            nft(&format!(
                "flush chain ip kube-ipvs nat-postrouting
                 delete set ip kube-ipvs hairpin
                 add set ip kube-ipvs hairpin {{ {definition}; }}"
            ));
            netfilter.apply(&INSTALL).unwrap();
            let expected: Vec<_> =
                some_elements().into_iter().filter(|e| *e != hairpin("10.244.0.7", 53)).collect();
            assert_eq!(netfilter.observe().unwrap(), both(&expected), "{definition}");
            assert!(!run("nft list set ip kube-ipvs hairpin").contains(definition));
        });
    }
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn foreign_elements_of_our_sets_go_even_if_they_cannot_be_ours() {
    for strange in [
        "allowed-sources { 192.0.2.0/24 . tcp . 80 . 0.0.0.0-10.5.5.0 }",
        "allowed-sources { 192.0.2.7 . tcp . 1-79 . 0.0.0.0/0 }",
        "cluster-ips { 10.96.0.7 . udplite . 22 }",
        "hairpin { 10.1.1.1 . tcp . 22 . 10.1.1.2 }",
        "health-check-ports { udp . 30000 }",
    ] {
        with_installed(|netfilter| {
            nft(&format!("add element ip kube-ipvs {strange}"));
            let seen = netfilter.observe().unwrap();
            assert_eq!(seen.installed, BTreeSet::from([Family::V6]), "{strange}");
            netfilter.apply(&INSTALL).unwrap();
            assert_eq!(netfilter.observe().unwrap(), both(&some_elements()), "{strange}");
        });
    }
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn the_tables_of_an_earlier_version_are_replaced_and_their_elements_stay() {
    in_fresh_namespace(|| {
        for (family, address) in [("ip", "ipv4_addr"), ("ip6", "ipv6_addr")] {
            nft(&format!(
                "table {family} kube-ipvs {{
                    set cluster-ips {{ type {address} . inet_proto . inet_service; }}
                    set external {{ type {address} . inet_proto . inet_service; }}
                    set hairpin {{ type {address} . inet_proto . inet_service . {address}; }}
                    chain services {{ {family} daddr . meta l4proto . th dport @external meta mark set 0x4000; }}
                    chain output {{ type nat hook output priority -100; jump services; }}
                    chain postrouting {{ type nat hook postrouting priority 100; meta mark 0x4000 masquerade; }}
                }}"
            ));
        }
        let mut netfilter = KernelNetfilter::open(&by_source()).unwrap();
        let elements: Vec<_> = some_elements()
            .into_iter()
            .filter(|element| ["cluster-ips", "external", "hairpin"].contains(&element.set()))
            .collect();
        netfilter.apply(&add(&elements)).unwrap();
        let expected = Observed { installed: BTreeSet::new(), ..both(&elements) };
        assert_eq!(netfilter.observe().unwrap(), expected);
        netfilter.apply(&INSTALL).unwrap();
        assert_eq!(netfilter.observe().unwrap(), both(&elements));
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn a_deleted_table_is_installed_again_with_the_elements_given() {
    with_installed(|netfilter| {
        run("nft flush ruleset");
        assert_eq!(netfilter.observe().unwrap(), Observed::default());
        netfilter.apply(&[&add(&some_elements()), &INSTALL[..]].concat()).unwrap();
        assert_eq!(netfilter.observe().unwrap(), both(&some_elements()), "tables come first");
    });
}
