//! What the rules of direct return have counted.

use ipvs::Family;
use netlink::{Protocol, Socket};

use super::{
    netfilter::Error,
    ruleset::{RECEIVED, SENT},
};
use crate::nft::rule;

/// How many packets went through tunnels, or were kept from it, since the rules were written: at the start of direct
/// return, and when they are repaired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelCounts {
    /// Packets that this node has put into others, for endpoints of other nodes.
    pub sent: u64,
    /// Packets from other nodes that it has unpacked.
    pub received: u64,
    /// Packets that were dropped, because nobody may send them so, or nobody knows what they belong to.
    pub refused: u64,
}

impl TunnelCounts {
    /// Reads them in the calling thread's network namespace.
    pub fn read(family: Family) -> Result<Self, Error> {
        let failed = |source| Error::new("count what went through tunnels", source);
        let mut socket = Socket::open(Protocol::Netfilter).map_err(failed)?;
        // Interrupted by a commit of somebody else, it may count a rule twice; the next reading is right.
        let (counts, _) = socket.dump_once(&mut rule::list(family), rule::decode_count).map_err(failed)?;
        Ok(Self::sum(counts.into_iter().flatten()))
    }

    fn sum(counts: impl Iterator<Item = (Box<str>, u64)>) -> Self {
        let mut all = Self::default();
        for (comment, packets) in counts {
            let sum = match comment.split_once(" #").map(|(purpose, _)| purpose) {
                Some(SENT) => &mut all.sent,
                Some(RECEIVED) => &mut all.received,
                _ => &mut all.refused,
            };
            *sum = sum.saturating_add(packets);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_that_count_are_told_apart_by_their_purpose() {
        let counts =
            [(SENT, 1), (RECEIVED, 20), ("nobody else", 300), ("nothing else leaves the tunnel", 4_000)];
        let counts = counts.map(|(purpose, packets)| (format!("{purpose} #0123abcd").into(), packets));
        let all = TunnelCounts { sent: 1, received: 20, refused: 4_300 };
        assert_eq!(TunnelCounts::sum(counts.into_iter()), all);
    }
}
