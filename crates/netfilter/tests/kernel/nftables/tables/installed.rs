//! What is installed, and that it is read back.

use std::collections::BTreeSet;

use ipvs::Family;
use netfilter::{
    HostFirewall, KernelNetfilter, LocalTraffic, Netfilter, Observed, Operation, Policy, Ruleset,
};

use super::{INSTALL, add, both, by_source, policy, some_elements, with_installed};
use crate::{
    support::host::in_fresh_namespace,
    support::programs::{nft, run},
};

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn what_is_installed_is_what_nft_lists_for_every_policy() {
    let without_range = LocalTraffic::Source { ipv4: None, ipv6: None };
    let everything = LocalTraffic::Source {
        ipv4: Some("0.0.0.0/0".parse().unwrap()),
        ipv6: Some("::/0".parse().unwrap()),
    };
    let one_address = LocalTraffic::Source {
        ipv4: Some("10.0.0.1/32".parse().unwrap()),
        ipv6: Some("fd00::1/128".parse().unwrap()),
    };
    let odd_length = LocalTraffic::Source {
        ipv4: Some("10.11.12.13/13".parse().unwrap()),
        ipv6: Some("fd00:1234:5678::/45".parse().unwrap()),
    };
    for policy in [
        by_source(),
        policy(without_range.clone()),
        policy(everything),
        policy(one_address),
        policy(odd_length),
        policy(LocalTraffic::Bridge("cbr0".into())),
        policy(LocalTraffic::Bridge("a-name-of-15-by".into())),
        policy(LocalTraffic::InterfacePrefix("veth".into())),
        Policy {
            masquerade_all: true,
            mark: 1 << 30,
            host_firewall: HostFirewall::Accept,
            ..Policy::new(without_range)
        },
        Policy { mark: 0x2000, host_firewall: HostFirewall::Accept, ..by_source() },
        Policy { host_firewall: HostFirewall::AsKubeProxy, ..by_source() },
        Policy {
            untracked_pods: vec!["10.244.0.0/16".parse().unwrap(), "fd00:10:244::/56".parse().unwrap()],
            ..by_source()
        },
    ] {
        in_fresh_namespace(|| {
            let mut netfilter = KernelNetfilter::open(&policy).unwrap();
            netfilter.apply(&INSTALL).unwrap();
            let expected = Family::BOTH.map(|family| Ruleset::new(&policy, family).to_string());
            assert_eq!(run("nft --numeric-priority list ruleset"), expected.concat(), "{policy:?}");
            assert_eq!(netfilter.observe().unwrap(), both(&[]), "{policy:?}");

            netfilter.apply(&Family::BOTH.map(Operation::AddDirectReturn)).unwrap();
            let extended =
                Family::BOTH.map(|family| Ruleset::with_direct_return(&policy, family).to_string());
            assert_eq!(run("nft --numeric-priority list ruleset"), extended.concat(), "{policy:?}");
            let with = Observed { direct_return: BTreeSet::from(Family::BOTH), ..both(&[]) };
            assert_eq!(netfilter.observe().unwrap(), with, "{policy:?}");

            netfilter.apply(&Family::BOTH.map(Operation::RemoveDirectReturn)).unwrap();
            assert_eq!(run("nft --numeric-priority list ruleset"), expected.concat(), "{policy:?}");
            assert_eq!(netfilter.observe().unwrap(), both(&[]), "{policy:?}");
        });
    }
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn nothing_is_observed_where_nothing_is_installed() {
    in_fresh_namespace(|| {
        let mut netfilter = KernelNetfilter::open(&by_source()).unwrap();
        assert_eq!(netfilter.observe().unwrap(), Observed::default());
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn one_family_is_installed_without_the_other() {
    in_fresh_namespace(|| {
        let mut netfilter = KernelNetfilter::open(&by_source()).unwrap();
        netfilter.apply(&[Operation::InstallTable(Family::V6)]).unwrap();
        assert_eq!(netfilter.observe().unwrap().installed, BTreeSet::from([Family::V6]));
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn an_installed_table_is_not_written_again() {
    with_installed(|netfilter| {
        let before = run("nft -a list ruleset");
        netfilter.apply(&INSTALL).unwrap();
        assert_eq!(run("nft -a list ruleset"), before, "handles show that nothing was replaced");
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn prepared_table_leaves_destinations_to_others_and_an_installed_one_does_not() {
    const PREPARE: [Operation; 2] =
        [Operation::PrepareTable(Family::V4), Operation::PrepareTable(Family::V6)];
    in_fresh_namespace(|| {
        let kept = || run("nft list ruleset").matches("no DNAT for hostPorts in other tables").count();
        let mut netfilter = KernelNetfilter::open(&by_source()).unwrap();
        netfilter.apply(&[&PREPARE[..], &add(&some_elements())].concat()).unwrap();
        let prepared = Observed {
            installed: BTreeSet::new(),
            prepared: BTreeSet::from(Family::BOTH),
            ..both(&some_elements())
        };
        assert_eq!((netfilter.observe().unwrap(), kept()), (prepared.clone(), 0));
        netfilter.apply(&PREPARE).unwrap();
        assert_eq!((netfilter.observe().unwrap(), kept()), (prepared, 0), "by the next daemon");

        let rules = Family::BOTH.len() * 2 * 3;
        netfilter.apply(&INSTALL).unwrap();
        assert_eq!((netfilter.observe().unwrap(), kept()), (both(&some_elements()), rules));
        netfilter.apply(&PREPARE).unwrap();
        assert_eq!((netfilter.observe().unwrap(), kept()), (both(&some_elements()), rules));
        nft("flush chain ip kube-ipvs vip-ports");
        netfilter.apply(&PREPARE).unwrap();
        assert_eq!((netfilter.observe().unwrap(), kept()), (both(&some_elements()), rules), "repaired");
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn this_kernel_lacks_nothing_and_finding_that_out_changes_nothing() {
    in_fresh_namespace(|| {
        nft("table ip foreign { chain output { type nat hook output priority 0; }; }");
        let list = || run("nft -a list ruleset");
        let before = list();
        let netfilter = KernelNetfilter::open(&by_source()).unwrap();
        for family in Family::BOTH {
            assert_eq!(netfilter.missing_features(family), []);
        }
        assert_eq!(list(), before);
    });
}
