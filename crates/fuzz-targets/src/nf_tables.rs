//! Our own tables in nf_tables, read back.

use std::collections::BTreeSet;

use ipvs::Family;
use netfilter::{
    Element, Feature, HostFirewall, KernelNetfilter, LocalTraffic, Netfilter, Operation, Policy, wire,
};
use netlink::Transcript;

/// The decoded answers of a kernel.
#[derive(Debug, PartialEq)]
pub struct Answers {
    /// The missing features of each family.
    pub missing: Vec<Vec<Feature>>,
    /// The families whose table is as it should be.
    pub installed: BTreeSet<Family>,
    /// The elements of the sets.
    pub elements: BTreeSet<Element>,
}

/// Finds out what the kernel is capable of, reads our tables, and changes one of them.
pub fn fuzz(input: &[u8]) {
    let Some(answers) = Transcript::decode(input).replay(converse) else { return };
    let changes: Vec<_> = answers.elements.iter().copied().map(Operation::AddElement).collect();
    let encoded = wire::encode(&changes);
    assert!(changes.is_empty() || encoded.len() > 2, "elements that are not written");
}

/// The conversation.
pub fn converse() -> Option<Answers> {
    let mut kernel = KernelNetfilter::open(&policy()).ok()?;
    let missing = Family::BOTH.map(|family| kernel.missing_features(family).to_vec()).into();
    let observed = kernel.observe().ok()?;
    let elements: BTreeSet<_> = observed.elements.iter().collect();
    // One family is enough: its elements are read once more before they are deleted.
    let of_one = elements.iter().filter(|element| element.family() == Family::V4).copied();
    let changes: Vec<_> = [Operation::InstallTable(Family::V4)]
        .into_iter()
        .chain(of_one.map(Operation::DeleteElement))
        .collect();
    drop(kernel.apply(&changes));
    Some(Answers { missing, installed: observed.installed, elements })
}

/// How the tables of the recorded kernel were installed.
pub fn policy() -> Policy {
    Policy { host_firewall: HostFirewall::Warn, ..Policy::new(LocalTraffic::Bridge("cni0".into())) }
}
