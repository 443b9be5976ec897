//! Reading our tables back.

use std::iter;

use ipvs::Family;
use netlink::{Errno, Error, Protocol, Reply, Socket, if_exists};

use crate::{
    Element, ElementSet, PacketCounter, PacketCounts,
    element::KNOWN_SETS,
    nft::{
        TABLE, chain,
        chain::ObservedChain,
        counter,
        counter::ObservedObject,
        element,
        message::{self, Message, NFTA_TABLE_FLAGS, NFTA_TABLE_NAME, NFTA_TABLE_USE, Nfproto},
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
    /// Its counters, and any other stateful objects, which are not ours.
    pub(crate) objects: Vec<ObservedObject>,
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
        let Some(Header { flags, in_use }) = header.map(Option::unwrap_or_default) else { return Ok(None) };
        let objects = socket.dump_once(&mut counter::list(family), counter::decode)?;
        let sets = socket.dump_once(&mut set::list(family), set::decode)?;
        let mut chains = named_chains(socket, family, names)?;
        if usize::try_from(in_use) != Ok(objects.len() + sets.len() + chains.len()) {
            chains = socket.dump(&mut chain::list(family), chain::decode)?;
        }
        let rules = socket.dump_once(&mut rule::list(family, TABLE, None), rule::decode)?;
        Ok(Some(Self { flags, objects, sets, chains, rules }))
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
    in_use: u32,
}

impl Header {
    fn decode(reply: &Reply<'_>) -> Result<Option<Self>, Error> {
        let mut header = Self::default();
        for attribute in message::body(reply)? {
            let attribute = attribute?;
            match attribute.kind {
                NFTA_TABLE_FLAGS => header.flags = attribute.u32_be()?,
                NFTA_TABLE_USE => header.in_use = attribute.u32_be()?,
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

/// Reads the counters of our tables in the calling thread's network namespace; none where the kernel has no
/// nf_tables.
pub fn packet_counts() -> Result<PacketCounts, crate::Error> {
    let failed = |source| crate::Error::new("read the counters of our nf_tables tables", source);
    let mut socket = Socket::open(Protocol::Netfilter).map_err(failed)?;
    // Interrupted by another program's commit, it may read a counter twice, which is the same.
    let found = socket.dump_once(&mut counter::list(Nfproto::UNSPECIFIED), counter::decode);
    let found = if_exists(found, &[Errno::EINVAL]).map_err(failed)?.unwrap_or_default();
    let read = |object: ObservedObject| {
        Some(((object.family?, PacketCounter::from_name(&object.name)?), object.packets?))
    };
    Ok(found.into_iter().filter_map(read).collect())
}

#[cfg(test)]
mod tests {
    use netlink::Batch;
    use proptest::prelude::*;

    use super::*;

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
        let _ = counter::decode(&reply);
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
}
