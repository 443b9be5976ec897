//! Leftovers of kube-proxy in nf_tables and ipsets.

use host_rules::leftovers::{Leftover, Leftovers, Scope};
use netlink::Transcript;

/// Searches for leftovers. Nothing but kube-proxy's own is found.
pub fn fuzz(input: &[u8]) {
    for leftover in Transcript::decode(input).replay(converse) {
        match leftover {
            Leftover::Rules(rules) => {
                assert!(rules.chains.iter().all(|chain| chain.starts_with("KUBE-")), "{rules}");
            }
            Leftover::Set(name) => assert!(name.starts_with("KUBE-"), "{name}"),
            Leftover::NftablesTable(_) => {}
        }
    }
}

/// The conversation.
pub fn converse() -> Vec<Leftover> {
    let scope = Scope { nftables_tables: true, forwarding_needed_in: None };
    let leftovers = Leftovers::open(scope).ok();
    leftovers.map(|mut leftovers| leftovers.find_without_programs().leftovers).unwrap_or_default()
}
