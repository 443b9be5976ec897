//! The chains of the host's own firewall.

use host_rules::host_firewall::{ClosedChain, HostChain, HostChains};
use netlink::Transcript;

use crate::nf_tables::policy;

/// What a kernel has said.
#[derive(Debug, PartialEq)]
pub struct Heard {
    /// The chains that drop what they do not know.
    pub closed: Vec<ClosedChain>,
    /// Those that a rule of ours is in.
    pub ours: Vec<HostChain>,
}

/// Judges the chains, and opens and closes those that were found.
pub fn fuzz(input: &[u8]) {
    let Some(heard) = Transcript::decode(input).replay(converse) else { return };
    for chain in heard.closed {
        assert!(!chain.chain.to_string().is_empty());
    }
}

/// The conversation.
pub fn converse() -> Option<Heard> {
    let mark = policy().accept_mark();
    let mut chains = HostChains::open().ok()?;
    let closed = chains.closed_chains(mark).ok()?;
    let ours = chains.chains_with_our_rule().unwrap_or_default();
    for chain in &closed {
        drop(chains.accept_in(&chain.chain, mark));
        drop(chains.withdraw(&chain.chain));
    }
    Some(Heard { closed, ours })
}
