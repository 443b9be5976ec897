//! Reading our tables back.

use std::iter;

use ipvs::Family;
use netlink::{Errno, Error, Protocol, Reply, Socket, if_exists};

use super::ruleset::{TUNNEL_POSTROUTING, TUNNEL_PREROUTING};
use crate::{
    Element, ElementSet,
    element::KNOWN_SETS,
    nft::{
        TABLE, chain,
        chain::ObservedChain,
        element,
        message::{self, Message, NFTA_TABLE_FLAGS, NFTA_TABLE_NAME, NFTA_TABLE_USE},
        rule,
        rule::ObservedRule,
        set,
        set::{ObservedSet, Set},
    },
};

/// Our table of one family as the kernel shows it, without elements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObservedTable {
    pub(crate) flags: u32,
    pub(crate) sets: Vec<ObservedSet>,
    pub(crate) chains: Vec<ObservedChain>,
    /// Chain by chain, each chain's in order.
    pub(crate) rules: Vec<ObservedRule>,
}

impl ObservedTable {
    /// Reads the table, which should have chains of these names; `None` if there is none. ENOENT means that
    /// it was deleted meanwhile.
    ///
    /// This takes as long as our table is large, however many chains others have and however often they
    /// commit: our table alone is dumped, once. The kernel calls a dump interrupted whenever any table changes
    /// meanwhile (`nft_base_seq`), which with large sets can be always; but our table is only changed by our own
    /// thread, and by others whom the [`Monitor`](crate::Monitor) reports. The chains of all tables are listed
    /// only if another program has put something into ours.
    pub(crate) fn read(
        socket: &mut Socket,
        family: Family,
        names: impl Iterator<Item = &'static str>,
    ) -> Result<Option<Self>, Error> {
        let mut request =
            message::request(Message::GetTable, family, |encoder| encoder.string(NFTA_TABLE_NAME, TABLE));
        let header = if_exists(socket.get(&mut request, Header::decode), &[Errno::ENOENT])?;
        let Some(Header { flags, objects }) = header.map(Option::unwrap_or_default) else { return Ok(None) };
        let sets = socket.dump_once(&mut set::list(family), set::decode)?;
        let mut chains = named_chains(socket, family, names)?;
        if usize::try_from(objects) != Ok(sets.len() + chains.len()) {
            chains = socket.dump(&mut chain::list(family), chain::decode)?;
        }
        let rules = socket.dump_once(&mut rule::list(family), rule::decode)?;
        Ok(Some(Self { flags, sets, chains, rules }))
    }

    /// Whether it takes flows from the destination NAT of others, even if another version of ours made it.
    pub(crate) fn takes_flows(&self) -> bool {
        self.rules.iter().any(|rule| rule.keeps_destination)
    }
}

/// A table itself, as the kernel shows it.
#[derive(Debug, Default)]
struct Header {
    flags: u32,
    /// How many sets, chains, stateful objects and flowtables it has (`use` in `struct nft_table`).
    objects: u32,
}

impl Header {
    fn decode(reply: &Reply<'_>) -> Result<Option<Self>, Error> {
        let mut header = Self::default();
        for attribute in message::body(reply)? {
            let attribute = attribute?;
            match attribute.kind {
                NFTA_TABLE_FLAGS => header.flags = attribute.u32_be()?,
                NFTA_TABLE_USE => header.objects = attribute.u32_be()?,
                _ => {}
            }
        }
        Ok(Some(header))
    }
}

/// The chains of these names that our table has.
pub(super) fn named_chains(
    socket: &mut Socket,
    family: Family,
    names: impl Iterator<Item = &'static str>,
) -> Result<Vec<ObservedChain>, Error> {
    let mut found = Vec::new();
    for name in names {
        let chain = socket.get(&mut chain::get(family, name), chain::decode);
        found.extend(if_exists(chain, &[Errno::ENOENT])?.flatten());
    }
    Ok(found)
}

/// The elements of our sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Elements {
    /// Set by set.
    pub(crate) ours: Vec<Vec<Element>>,
    /// Whether another program has put something there that cannot be ours, but can match packets: a range of
    /// ports, another protocol.
    pub(crate) has_foreign: bool,
}

/// The elements of interest, set by set, in the sets that have our names and types; dumped once, as
/// [`ObservedTable::read`] says.
pub(super) fn known_elements(
    socket: &mut Socket,
    family: Family,
    table: &ObservedTable,
    of_interest: impl Fn(&Set) -> bool,
) -> Result<Elements, Error> {
    let mut elements = Elements::default();
    for known in KNOWN_SETS.iter().filter(|known| of_interest(&known.set)) {
        if !table.sets.iter().any(|observed| known.set.is(family, observed)) {
            continue;
        }
        let mut ours = Vec::new();
        socket.dump_once(&mut element::list(family, known.set.name), |reply| {
            element::decode(reply, |raw| match known.read(family, raw) {
                Some(element) => ours.push(element),
                None => elements.has_foreign = true,
            })?;
            Ok(None::<()>)
        })?;
        elements.ours.push(ours);
    }
    Ok(elements)
}

/// Reads the elements of our tables in the calling thread's network namespace, by which virtual servers are
/// recognised as ours; none where the kernel has no nf_tables.
pub fn elements() -> Result<ElementSet, crate::Error> {
    read_elements().map_err(|source| crate::Error::new("read the elements of our nf_tables tables", source))
}

fn read_elements() -> Result<ElementSet, Error> {
    let mut socket = Socket::open(Protocol::Netfilter)?;
    let mut found = ElementSet::default();
    // Without nf_tables the kernel has no handler for the message (`nfnetlink_rcv_msg`).
    if if_exists(message::generation(&mut socket), &[Errno::EINVAL])?.is_none() {
        return Ok(found);
    }
    for family in Family::BOTH {
        if let Some(table) = ObservedTable::read(&mut socket, family, iter::empty())? {
            let elements = known_elements(&mut socket, family, &table, |_| true)?;
            found.extend(elements.ours.into_iter().flatten());
        }
    }
    Ok(found)
}

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
    pub fn read(family: Family) -> Result<Self, crate::Error> {
        let failed = |source| crate::Error::new("read the counters of tunnels", source);
        let mut socket = Socket::open(Protocol::Netfilter).map_err(failed)?;
        // Interrupted by another program's commit, it may count a rule twice; the next reading is right.
        Ok(Self::sum(&socket.dump_once(&mut rule::list(family), rule::decode).map_err(failed)?))
    }

    /// Only two kinds of rules let pass what they count, each kind in a chain of its own.
    fn sum(rules: &[ObservedRule]) -> Self {
        let mut all = Self::default();
        for rule in rules {
            let sum = match &*rule.chain {
                TUNNEL_POSTROUTING if !rule.drops => &mut all.sent,
                TUNNEL_PREROUTING if !rule.drops => &mut all.received,
                _ => &mut all.refused,
            };
            *sum = sum.saturating_add(rule.counted.unwrap_or_default());
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use netlink::{Batch, Encoder};
    use proptest::prelude::*;

    use super::*;
    use crate::nft::{
        message::{NFTA_RULE_CHAIN, NFTA_RULE_EXPRESSIONS, NFTA_RULE_TABLE},
        parts::encode_expression,
        statement::Statement,
    };

    proptest! {
        #[test]
        fn no_reply_makes_a_decoder_panic(payload in prop::collection::vec(any::<u8>(), 0..200)) {
            decode_everything(&payload);
        }

        #[test]
        fn no_attributes_make_a_decoder_panic(
            parts in prop::collection::vec((0u16..12, prop::collection::vec(any::<u8>(), 0..40)), 0..8),
        ) {
            let mut batch = Batch::default();
            message::add(&mut batch, Message::NewRule, 0, Family::V4, |encoder| {
                for (kind, payload) in &parts {
                    encoder.bytes(*kind, payload);
                    encoder.nest(*kind, |inner| inner.nest(1, |inner| inner.bytes(1, payload)));
                }
            });
            decode_everything(&batch.as_bytes()[16..]);
        }
    }

    fn decode_everything(payload: &[u8]) {
        let reply = Reply { payload, ..Reply::default() };
        let _ = Header::decode(&reply);
        let _ = chain::decode(&reply);
        let _ = rule::decode(&reply);
        let _ = set::decode(&reply);
        let _ = element::decode(&reply, |raw| {
            for known in KNOWN_SETS {
                known.read(Family::V4, raw);
                known.read(Family::V6, raw);
            }
        });
    }

    #[test]
    fn another_tables_objects_are_left_out() {
        let mut batch = Batch::default();
        message::add(&mut batch, Message::NewChain, 0, Family::V4, |encoder| {
            encoder.string(1, "somebody-elses");
            encoder.string(3, "services");
        });
        let payload = &batch.as_bytes()[16..];
        let reply = Reply { payload, ..Reply::default() };
        assert_eq!(chain::decode(&reply).unwrap(), None);
    }

    /// A rule as the kernel shows it.
    fn rule(chain: &str, packets: u64, drops: bool) -> ObservedRule {
        const NFTA_COUNTER_PACKETS: u16 = 2;
        let expressions = |list: &mut Encoder<'_>| {
            encode_expression(list, "counter", |data| {
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
        rule::decode(&Reply { payload, ..Reply::default() }).unwrap().unwrap()
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
        assert_eq!(TunnelCounts::sum(&counts), all);
    }
}
