//! The counters of the rules of direct return.

use ipvs::Family;
use netlink::{Protocol, Socket};

use super::ruleset::{TUNNEL_POSTROUTING, TUNNEL_PREROUTING};
use crate::{
    Error,
    nft::rule::{self, Counted},
};

/// How many packets went through tunnels, or were kept from it, since the rules were written: at the start of
/// direct return, and when they are repaired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelCounts {
    /// Packets that this node has put into others, for endpoints of other nodes.
    pub sent: u64,
    /// Packets from other nodes that it has unpacked.
    pub received: u64,
    /// Packets that were dropped, because they may not be sent that way, or belong to no connection.
    pub refused: u64,
}

impl TunnelCounts {
    /// Reads them in the calling thread's network namespace.
    pub fn read(family: Family) -> Result<Self, Error> {
        let failed = |source| Error::new("read the counters of tunnels", source);
        let mut socket = Socket::open(Protocol::Netfilter).map_err(failed)?;
        // Interrupted by another program's commit, it may count a rule twice; the next reading is right.
        let counts = socket.dump_once(&mut rule::list(family), rule::decode_count).map_err(failed)?;
        Ok(Self::sum(counts.into_iter()))
    }

    /// Only two kinds of rules let pass what they count, each kind in a chain of its own.
    fn sum(counts: impl Iterator<Item = Counted>) -> Self {
        let mut all = Self::default();
        for Counted { chain, packets, dropped } in counts {
            let sum = match &*chain {
                TUNNEL_POSTROUTING if !dropped => &mut all.sent,
                TUNNEL_PREROUTING if !dropped => &mut all.received,
                _ => &mut all.refused,
            };
            *sum = sum.saturating_add(packets);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use netlink::{Encoder, Reply};

    use super::*;
    use crate::nft::{
        TABLE, encode,
        message::{self, Message, NFTA_RULE_CHAIN, NFTA_RULE_EXPRESSIONS, NFTA_RULE_TABLE},
        statement::Statement,
    };

    /// A rule as the kernel shows it.
    fn rule(chain: &str, packets: u64, drops: bool) -> Option<Counted> {
        const NFTA_COUNTER_PACKETS: u16 = 2;
        let expressions = |list: &mut Encoder<'_>| {
            encode::expression(list, "counter", |data| {
                data.bytes(NFTA_COUNTER_PACKETS, &packets.to_be_bytes());
            });
            if drops {
                Statement::Drop.encode(Family::V4, list);
            }
        };
        let shown = message::request(Message::NewRule, Family::V4, |encoder| {
            encoder.string(NFTA_RULE_TABLE, TABLE);
            encoder.string(NFTA_RULE_CHAIN, chain);
            encoder.nest(NFTA_RULE_EXPRESSIONS, expressions);
        });
        let payload = &shown.as_bytes()[16..];
        rule::decode_count(&Reply { payload, ..Reply::default() }).unwrap()
    }

    #[test]
    fn rules_that_count_are_told_apart_by_chain_and_verdict() {
        let counts = [
            rule(TUNNEL_POSTROUTING, 1, false),
            rule(TUNNEL_PREROUTING, 20, false),
            rule(TUNNEL_PREROUTING, 300, true),
            rule("nat-prerouting", 4_000, true),
        ];
        let all = TunnelCounts { sent: 1, received: 20, refused: 4_300 };
        assert_eq!(TunnelCounts::sum(counts.into_iter().flatten()), all);
    }
}
