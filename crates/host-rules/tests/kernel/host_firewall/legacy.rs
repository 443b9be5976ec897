//! The chains of the old iptables, by its own programs.

use std::process::Command;

use host_rules::host_firewall::{Accepts, FirewallChains, Hook, LegacyChains};
use ipvs::Family;
use netfilter::{HostFirewall, Policy};

use super::{accept, as_kube_proxy, open};
use crate::support::{host::in_fresh_namespace, programs::run};

const FAMILIES: [(&str, Family); 2] = [("iptables-legacy", Family::V4), ("ip6tables-legacy", Family::V6)];

/// Whether the programs and the kernel's part of them are here. Says so if not.
fn has_legacy() -> bool {
    FAMILIES.iter().all(|(program, _)| match Command::new(program).args(["-L", "-n"]).output() {
        Err(_) => {
            println!("SKIP: {program} is not installed");
            false
        }
        Ok(output) if !output.status.success() => {
            println!("ABSENT: the kernel's part of {program}");
            false
        }
        Ok(_) => true,
    })
}

fn legacy() -> LegacyChains {
    LegacyChains::open().unwrap()
}

fn saved(program: &str) -> String {
    let saved = run(&format!("{program}-save -t filter"));
    saved.lines().filter(|line| !line.starts_with(['#', ':'])).collect::<Vec<_>>().join("\n")
}

/// Settles every closed chain. Returns how many have changed.
fn settle_all(policy: &Policy) -> usize {
    let mut chains = legacy();
    let closed = chains.closed_chains(policy).unwrap();
    closed.iter().filter(|closed| chains.settle(&closed.chain, policy).unwrap()).count()
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn chains_of_the_old_iptables_are_closed_and_settled_as_those_of_the_new() {
    const FORWARD: &str = "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -m comment --comment \"kube-ipvs: what it forwards\" -j ACCEPT
-A FORWARD -m mark --mark 0x4000/0x4000 -m comment --comment \"kube-ipvs: what it forwards\" -j ACCEPT";
    const INPUT: &str = "-A INPUT -m mark --mark 0x1000/0x1000 -m comment --comment \"kube-ipvs: what it forwards\" -j ACCEPT";
    in_fresh_namespace(|| {
        if !has_legacy() {
            return;
        }
        for (program, _) in FAMILIES {
            run(&format!("{program} -P FORWARD DROP"));
            run(&format!("{program} -A INPUT -p tcp --dport 22 -j ACCEPT"));
            run(&format!("{program} -A INPUT -j REJECT"));
        }
        let before = FAMILIES.map(|(program, _)| saved(program));
        let policy = as_kube_proxy();
        assert_eq!(settle_all(&policy), 4);
        for (program, _) in FAMILIES {
            let listed = saved(program);
            assert!(listed.contains(FORWARD) && listed.contains(INPUT), "{listed}");
            let input = listed.lines().filter(|line| line.starts_with("-A INPUT"));
            assert_eq!(input.take(1).collect::<Vec<_>>(), [INPUT], "{listed}");
        }
        assert_eq!(settle_all(&policy), 0, "nothing happens twice");
        let closed = legacy().closed_chains(&policy).unwrap();
        assert!(closed.iter().all(|closed| closed.accepts == Accepts::ByOurRules), "{closed:?}");
        assert_eq!(open().closed_chains(&policy).unwrap(), [], "they are no part of nf_tables");

        // In INPUT both accept by the mark.
        assert_eq!(settle_all(&accept()), 2);
        assert_eq!(saved("iptables-legacy").matches("kube-ipvs").count(), 2);
        assert_eq!(settle_all(&policy), 2);
        let forward = closed.iter().filter(|closed| closed.chain.hook == Hook::Forward);
        for chain in forward.map(|closed| &closed.chain) {
            assert!(legacy().withdraw(chain).unwrap(), "{chain}");
            assert!(!legacy().withdraw(chain).unwrap(), "{chain}, again");
        }
        assert_eq!(legacy().chains_with_our_rules().unwrap().len(), 2);
        assert_eq!(settle_all(&Policy { host_firewall: HostFirewall::Warn, ..accept() }), 2);
        assert_eq!(FAMILIES.map(|(program, _)| saved(program)), before);
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn a_host_without_tables_of_the_old_iptables_gets_none() {
    in_fresh_namespace(|| {
        let mut chains = legacy();
        assert_eq!(chains.closed_chains(&as_kube_proxy()).unwrap(), []);
        assert_eq!(chains.unseen(), []);
        assert_eq!(std::fs::read_to_string("/proc/thread-self/net/ip_tables_names").unwrap_or_default(), "");
    });
}
