//! The chains of the host's own firewall.

use host_rules::host_firewall::{ClosedChain, FirewallChains as _, HostChain, HostChains};
use netfilter::{HostFirewall, Policy};
use netlink::Transcript;

use crate::nf_tables::policy;

/// The decoded answers of a kernel.
#[derive(Debug, PartialEq)]
pub struct Answers {
    /// The chains that drop unknown packets.
    pub closed: Vec<ClosedChain>,
    /// The chains with a rule of ours.
    pub ours: Vec<HostChain>,
}

/// Judges the chains, and opens and closes those that were found.
pub fn fuzz(input: &[u8]) {
    let Some(answers) = Transcript::decode(input).replay(converse) else { return };
    for chain in answers.closed {
        assert!(!chain.chain.to_string().is_empty());
    }
}

/// The conversation.
pub fn converse() -> Option<Answers> {
    let policy = Policy { host_firewall: HostFirewall::Accept, ..policy() };
    let mut chains = HostChains::open().ok()?;
    let closed = chains.closed_chains(&policy).ok()?;
    let ours = chains.chains_with_our_rules().unwrap_or_default();
    for chain in &closed {
        drop(chains.settle(&chain.chain, &policy));
        drop(chains.withdraw(&chain.chain));
    }
    Some(Answers { closed, ours })
}
