//! Leftovers of kube-proxy in nf_tables and ipsets.

use host_rules::leftovers::{Leftover, Leftovers, Scope};
use netlink::{Socket, Transcript};

/// Searches for leftovers. Nothing but kube-proxy's own is found.
pub fn fuzz(input: &[u8]) {
    for leftover in converse(Socket::replay(&Transcript::decode(input))) {
        match leftover {
            Leftover::Rules(rules) => {
                assert!(rules.chains.iter().all(|chain| chain.starts_with("KUBE-")), "{rules}");
            }
            Leftover::Set(name) => assert!(name.starts_with("KUBE-"), "{name}"),
            Leftover::NftablesTable(_) => {}
        }
    }
}

/// The conversation, over a socket of netfilter.
pub fn converse(socket: Socket) -> Vec<Leftover> {
    let scope = Scope { nftables_tables: true, forwarding_needed_in: None };
    Leftovers::over(socket, scope).find_without_programs().leftovers
}
