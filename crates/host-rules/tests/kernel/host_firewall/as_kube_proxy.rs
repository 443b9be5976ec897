//! Rules that accept what kube-proxy accepts, in the chains of iptables and in no other.

use std::sync::atomic::{AtomicBool, Ordering};

use host_rules::host_firewall::{Accepts, FirewallChains as _, HostChain};
use netfilter::{HostFirewall, Policy};

use super::{accept, as_kube_proxy, only_closed_chain, open, shell};
use crate::support::{
    host::in_fresh_namespace,
    programs::{nft, run},
};

/// What iptables lists of a chain that drops and has one rule of its own, without the words that come before.
const RULES: [(&str, &[&str]); 2] = [
    (
        "FORWARD",
        &[
            "-m conntrack --ctstate RELATED,ESTABLISHED -m comment --comment \"kube-ipvs: what it forwards\" -j ACCEPT",
            "-m mark --mark 0x4000/0x4000 -m comment --comment \"kube-ipvs: what it forwards\" -j ACCEPT",
            "-p tcp -m tcp --dport 22 -j ACCEPT",
        ],
    ),
    (
        "INPUT",
        &[
            "-m mark --mark 0x1000/0x1000 -m comment --comment \"kube-ipvs: what it forwards\" -j ACCEPT",
            "-p tcp -m tcp --dport 22 -j ACCEPT",
        ],
    ),
];

fn rule_set() -> String {
    run("nft -a list ruleset")
}

/// Settles the chains that are closed and those with rules of ours. Returns how many have changed.
fn settle_all(policy: &Policy) -> usize {
    let mut chains = open();
    let closed = chains.closed_chains(policy).unwrap().into_iter().map(|closed| closed.chain);
    let mut found: Vec<HostChain> =
        chains.chains_with_our_rules().unwrap().into_iter().chain(closed).collect();
    found.sort_by_key(ToString::to_string);
    found.dedup();
    found.iter().filter(|chain| chains.settle(chain, policy).unwrap()).count()
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn iptables_lists_what_kube_proxy_accepts_as_its_own_and_restores_it() {
    for iptables in ["iptables", "ip6tables"] {
        for (hook, expected) in RULES {
            in_fresh_namespace(|| {
                let save = || {
                    let saved = run(&format!("{iptables}-nft-save"));
                    saved.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n")
                };
                run(&format!("{iptables}-nft -P {hook} DROP"));
                run(&format!("{iptables}-nft -A {hook} -p tcp --dport 22 -j ACCEPT"));
                let before = save();
                let policy = as_kube_proxy();
                let mut chains = open();
                let chain = only_closed_chain(&mut chains);
                assert!(chains.settle(&chain, &policy).unwrap());
                let listed = run(&format!("{iptables}-nft -S {hook}"));
                let rules: Vec<_> = listed.lines().skip(1).collect();
                let expected: Vec<_> = expected.iter().map(|rule| format!("-A {hook} {rule}")).collect();
                assert_eq!(rules, expected);

                let settled = rule_set();
                assert!(!chains.settle(&chain, &policy).unwrap());
                assert_eq!(rule_set(), settled, "nothing happens twice");
                assert_eq!(chains.closed_chains(&policy).unwrap()[0].accepts, Accepts::ByOurRules);

                let saved = save();
                shell(&format!("{iptables}-nft-save | {iptables}-nft-restore"));
                assert_eq!(save(), saved);
                assert!(!chains.settle(&chain, &policy).unwrap(), "restored they are still ours");
                assert!(chains.withdraw(&chain).unwrap());
                assert_eq!(save(), before);
            });
        }
    }
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn our_rules_come_before_those_of_docker_ufw_and_firewalld_and_after_none() {
    for host in [
        include_str!("hosts/docker.iptables"),
        include_str!("hosts/ufw.iptables"),
        include_str!("hosts/firewalld.iptables"),
    ] {
        in_fresh_namespace(|| {
            shell(&format!("iptables-nft-restore <<'END'\n{host}\nEND"));
            let chains = ["FORWARD", "INPUT"].map(|hook| run(&format!("iptables-nft -S {hook}")));
            settle_all(&as_kube_proxy());
            for ((hook, rules), before) in RULES.into_iter().zip(chains) {
                let mut expected: Vec<_> = before.lines().map(str::to_owned).collect();
                let closes = |line: &String| line.ends_with("DROP") || line.contains("-j REJECT");
                if expected.iter().any(closes) {
                    let ours = rules.iter().filter(|rule| rule.contains("kube-ipvs"));
                    expected.splice(1..1, ours.map(|rule| format!("-A {hook} {rule}")));
                }
                let listed = run(&format!("iptables-nft -S {hook}"));
                assert_eq!(listed.lines().collect::<Vec<_>>(), expected);
            }
        });
    }
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn a_host_that_drops_nothing_gets_no_rule() {
    in_fresh_namespace(|| {
        run("iptables-nft -P OUTPUT DROP");
        run("iptables-nft -A FORWARD -p tcp --dport 22 -j DROP");
        run("ip6tables-nft -A INPUT -p tcp --dport 22 -j REJECT");
        let before = rule_set();
        assert_eq!(settle_all(&as_kube_proxy()), 0);
        assert_eq!(rule_set(), before);
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn a_chain_that_is_not_of_iptables_gets_no_rule_and_keeps_none() {
    in_fresh_namespace(|| {
        nft(include_str!("hosts/firewalld.nft"));
        nft("table ip filter { chain forward { type filter hook forward priority 0; policy drop; }; }");
        let before = run("nft list ruleset");
        assert_eq!(settle_all(&as_kube_proxy()), 0);
        assert_eq!(run("nft list ruleset"), before);
        let closed = settle_all(&accept());
        assert_eq!(closed, 3, "{before}");
        assert_eq!(settle_all(&as_kube_proxy()), closed);
        assert_eq!(run("nft list ruleset"), before);
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn each_value_of_the_flag_replaces_the_rules_of_another_without_a_gap() {
    let warn = Policy { host_firewall: HostFirewall::Warn, ..accept() };
    in_fresh_namespace(|| {
        run("iptables-nft -P FORWARD DROP");
        let before = run("iptables-nft -S FORWARD");
        settle_all(&accept());
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watched = scope.spawn(|| {
                let mut looked = 0;
                while !over.load(Ordering::Relaxed) {
                    let listed = run("nft list chain ip filter FORWARD");
                    assert!(listed.contains("kube-ipvs: what it forwards"), "{listed}");
                    looked += 1;
                }
                looked
            });
            for _ in 0..100 {
                assert_eq!(settle_all(&as_kube_proxy()), 1);
                assert_eq!(settle_all(&accept()), 1);
            }
            over.store(true, Ordering::Relaxed);
            assert!(watched.join().unwrap() > 0);
        });
        assert_eq!(run("iptables-nft -S FORWARD").matches("kube-ipvs").count(), 1);
        assert_eq!(settle_all(&as_kube_proxy()), 1);
        assert_eq!(run("iptables-nft -S FORWARD").matches("kube-ipvs").count(), 2);
        assert_eq!(settle_all(&warn), 1);
        assert_eq!(run("iptables-nft -S FORWARD"), before);
    });
}
