//! Our table leaves new flows to another program's destination NAT, and takes them back last of all.

use ipvs::Family;
use netfilter::{KernelNetfilter, Netfilter as _, Operation, Policy, hand_over};

use crate::support::{
    cluster::{cluster_cidr, policy},
    host::Host,
    programs::run,
};

/// The hooks at which our table takes part.
fn hooks(family: &str) -> Vec<String> {
    let table = run(&format!("nft list table {family} kube-ipvs"));
    let mut chain = "";
    let mut hooks = Vec::new();
    for line in table.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("chain ") {
            chain = name.trim_end_matches(" {");
        }
        if line.contains(" hook ") {
            hooks.push(chain.to_owned());
        }
    }
    hooks.sort_unstable();
    hooks
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn a_handed_over_table_ignores_new_flows_to_services_until_it_is_whole_again() {
    Host::new().inside(|| {
        let untracked_pods = ["10.244.0.0/16", "fd00:10:244::/48"].map(|range| range.parse().unwrap()).into();
        let policy = Policy { untracked_pods, ..policy(cluster_cidr()) };
        let mut tables = KernelNetfilter::open(&policy).unwrap();
        for (family, name) in [(Family::V4, "ip"), (Family::V6, "ip6")] {
            // There is no table.
            hand_over(family).unwrap();
            tables.apply(&[Operation::InstallTable(family)]).unwrap();
            hand_over(family).unwrap();
            assert_eq!(hooks(name), ["filter-input", "nat-postrouting"]);
            let left = run(&format!("nft list chain {name} kube-ipvs filter-input"));
            assert_eq!(left.matches("comment").count(), 1, "{left}");
            assert!(left.contains("ct state new") && left.contains("@vips jump vip-ports"), "{left}");
            hand_over(family).unwrap();
            assert_eq!(run(&format!("nft list chain {name} kube-ipvs filter-input")), left);

            tables.apply(&[Operation::PrepareTable(family)]).unwrap();
            assert!(tables.observe().unwrap().prepared.contains(&family), "nothing is taken from others yet");
            let prepared = run(&format!("nft list table {name} kube-ipvs"));
            assert!(!prepared.contains("dnat") && !prepared.contains("notrack"), "{prepared}");
            tables.apply(&[Operation::InstallTable(family)]).unwrap();
            assert!(tables.observe().unwrap().installed.contains(&family));
            assert!(run(&format!("nft list table {name} kube-ipvs")).contains("notrack"));
        }
    });
}
