//! Counters, in the tables of this version and of those before it.

use std::{collections::BTreeSet, fmt::Write as _};

use ipvs::Family;
use netfilter::{Netfilter, PacketCounter, packet_counts};

use super::{INSTALL, both, some_elements, with_installed};
use crate::support::{
    host::in_fresh_namespace,
    programs::{nft, run},
};

/// The sets of the table, with the numbers by which the kernel knows them.
fn sets() -> String {
    run("nft --terse -a list sets table ip kube-ipvs")
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn each_table_has_every_counter_at_0_and_nothing_has_none() {
    in_fresh_namespace(|| assert_eq!(packet_counts().unwrap().len(), 0));
    with_installed(|_| {
        let all = Family::BOTH.into_iter().flat_map(|family| PacketCounter::ALL.map(|it| ((family, it), 0)));
        assert_eq!(packet_counts().unwrap(), all.collect());
        // As each family of tables has objects of that name.
        nft(
            "add table inet kube-ipvs; add counter inet kube-ipvs drop-tunnel; add quota ip kube-ipvs drop-tunnel 1 bytes",
        );
        assert_eq!(packet_counts().unwrap().len(), 2 * PacketCounter::ALL.len());
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn a_table_of_a_version_that_did_not_count_is_made_to_count_and_keeps_its_sets() {
    with_installed(|netfilter| {
        nft(&without_counters(&run("nft list table ip kube-ipvs")));
        let listed = run("nft list table ip kube-ipvs");
        assert!(
            listed.contains("the client is outside the source ranges") && !listed.contains("counter"),
            "{listed}"
        );
        let kept = sets();
        let observed = netfilter.observe().unwrap();
        assert_eq!(observed.installed, BTreeSet::from([Family::V6]));
        assert_eq!(observed.elements, both(&some_elements()).elements);

        netfilter.apply(&INSTALL).unwrap();
        assert_eq!(netfilter.observe().unwrap(), both(&some_elements()));
        assert_eq!(sets(), kept, "they are the same sets: nothing was out of them for a moment");
        assert_eq!(packet_counts().unwrap().len(), 2 * PacketCounter::ALL.len());
    });
}

/// Turns the listed table into one of a version whose rules do not count. nft 1.0.6 cannot add a rule that uses
/// intervals in a field of several.
fn without_counters(listed: &str) -> String {
    let (mut rules, mut counters, mut chain) = (String::new(), String::new(), "");
    for line in listed.lines().map(str::trim) {
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["counter", name, "{"] => writeln!(counters, "delete counter ip kube-ipvs {name}").unwrap(),
            ["chain", name, "{"] => chain = name,
            _ if line.contains(" comment ") && !line.contains("@allowed-sources") => {
                let (before, after) = line.split_once("counter name ").unwrap_or((line, ""));
                let after = after.split_once(' ').map_or("", |(_, after)| after);
                writeln!(rules, "add rule ip kube-ipvs {chain} {before}{after}").unwrap();
            }
            _ => {}
        }
    }
    format!("flush table ip kube-ipvs\n{counters}{rules}")
}
