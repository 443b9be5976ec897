//! Chains: where rules are, and where packets meet them.

use ipvs::Family;
use netlink::{Batch, Error, Reply, find};

use super::{
    TABLE,
    message::{self, CREATE, Message, NFTA_CHAIN_NAME, NFTA_CHAIN_TABLE, Nfproto},
    rule::Rule,
};

/// Of `enum nft_chain_attributes`.
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_CHAIN_TYPE: u16 = 7;
/// `enum nft_hook_attributes`.
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;

/// The policy by which packets go on at the end of a chain.
const NF_ACCEPT: u32 = 1;
/// The policy by which packets are dropped at the end of a chain.
pub const NF_DROP: u32 = 0;

/// A chain with its rules, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) name: &'static str,
    /// `None`: packets come here only by a jump.
    pub(crate) hook: Option<Hook>,
    pub(crate) rules: Vec<Rule>,
}

/// Where packets enter a base chain. Packets that reach its end go on (policy accept).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hook {
    pub(crate) kind: Kind,
    pub(crate) point: Point,
    /// The order among chains and other functions of the hook, from the lowest to the highest.
    pub(crate) priority: i32,
}

/// The type of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Sees every packet.
    Filter,
    /// Sees the first packet of each connection.
    Nat,
}

/// `enum nf_inet_hooks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    Prerouting = 0,
    Input = 1,
    Forward = 2,
    Output = 3,
    Postrouting = 4,
}

/// A chain of our table as the kernel shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedChain {
    pub(crate) name: Box<str>,
    pub(crate) hook: Option<ObservedHook>,
}

/// A chain of any table as the kernel shows it. A name that is not UTF-8, which the kernel allows and nft does not, is
/// empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedChain {
    /// The family of its table.
    pub family: Nfproto,
    /// The name of its table.
    pub table: Box<str>,
    /// Its own name.
    pub name: Box<str>,
    /// Where packets enter it; `None` if they come only by a jump.
    pub hook: Option<ObservedHook>,
}

/// A hook of a base chain as the kernel shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedHook {
    /// `filter`, `nat` or `route`.
    pub kind: Box<str>,
    /// `enum nf_inet_hooks`, or those of another family.
    pub number: u32,
    /// The order among chains and other functions of the hook, from the lowest to the highest.
    pub priority: i32,
    /// What happens to packets that reach the end of the chain: `NF_ACCEPT` or `NF_DROP`.
    pub policy: u32,
}

impl Hook {
    fn observed(self) -> ObservedHook {
        let (kind, number) = (self.kind.name().into(), self.point as u32);
        ObservedHook { kind, number, priority: self.priority, policy: NF_ACCEPT }
    }
}

impl Kind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
        }
    }
}

impl Chain {
    /// Whether the kernel's chain is this one, rules aside. A chain cannot be changed in place: if it differs
    /// it is deleted and created again in one transaction.
    pub(crate) fn is(&self, observed: &ObservedChain) -> bool {
        self.observed() == *observed
    }

    /// The chain as the kernel shows it.
    pub(crate) fn observed(&self) -> ObservedChain {
        ObservedChain { name: self.name.into(), hook: self.hook.map(Hook::observed) }
    }

    /// Appends the request that creates it without rules.
    pub(crate) fn add_to(&self, batch: &mut Batch, family: Family, table: &str) {
        message::add(batch, Message::NewChain, CREATE, family, |encoder| {
            encoder.string(NFTA_CHAIN_TABLE, table);
            encoder.string(NFTA_CHAIN_NAME, self.name);
            if let Some(hook) = self.hook {
                encoder.nest(NFTA_CHAIN_HOOK, |attributes| {
                    attributes.u32_be(NFTA_HOOK_HOOKNUM, hook.point as u32);
                    attributes.u32_be(NFTA_HOOK_PRIORITY, hook.priority.cast_unsigned());
                });
                encoder.u32_be(NFTA_CHAIN_POLICY, NF_ACCEPT);
                encoder.string(NFTA_CHAIN_TYPE, hook.kind.name());
            }
        });
    }
}

/// Appends the request that deletes a chain, which must have no rules.
pub(crate) fn delete(batch: &mut Batch, family: Family, name: &str) {
    message::add(batch, Message::DelChain, 0, family, |encoder| {
        encoder.string(NFTA_CHAIN_TABLE, TABLE);
        encoder.string(NFTA_CHAIN_NAME, name);
    });
}

/// The request for one chain of our table.
pub(crate) fn get(family: Family, name: &str) -> Batch {
    message::request(Message::GetChain, family, |encoder| {
        encoder.string(NFTA_CHAIN_TABLE, TABLE);
        encoder.string(NFTA_CHAIN_NAME, name);
    })
}

/// The request for the chains of all tables of the family: the kernel cannot list those of one.
pub(crate) fn list(family: Family) -> Batch {
    message::request(Message::GetChain, family, |_| {})
}

/// Reads one chain; `None` for another table's.
pub(crate) fn decode(reply: &Reply<'_>) -> Result<Option<ObservedChain>, Error> {
    let ListedChain { table, name, hook, .. } = ListedChain::decode(reply)?;
    Ok((*table == *TABLE).then_some(ObservedChain { name, hook }))
}

impl ListedChain {
    /// Reads one chain.
    pub fn decode(reply: &Reply<'_>) -> Result<Self, Error> {
        let (mut table, mut name) = ("", "");
        let (mut kind, mut policy, mut place) = ("", NF_ACCEPT, None);
        for attribute in message::body(reply)? {
            let attribute = attribute?;
            match attribute.kind {
                NFTA_CHAIN_TABLE => table = attribute.string().unwrap_or_default(),
                NFTA_CHAIN_NAME => name = attribute.string().unwrap_or_default(),
                NFTA_CHAIN_TYPE => kind = attribute.string()?,
                NFTA_CHAIN_POLICY => policy = attribute.u32_be()?,
                NFTA_CHAIN_HOOK => place = Some(attribute.payload),
                _ => {}
            }
        }
        let number = |place, kind| find(place, kind).map_or(Ok(0), |number| number.u32_be());
        let hook = place.map(|place| {
            let (number, priority) = (number(place, NFTA_HOOK_HOOKNUM)?, number(place, NFTA_HOOK_PRIORITY)?);
            Ok::<_, Error>(ObservedHook {
                kind: kind.into(),
                number,
                priority: priority.cast_signed(),
                policy,
            })
        });
        let hook = hook.transpose()?;
        Ok(Self { family: message::family(reply), table: table.into(), name: name.into(), hook })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(batch: &Batch) -> ObservedChain {
        let payload = &batch.as_bytes()[16..];
        decode(&Reply { payload, ..Reply::default() }).unwrap().unwrap()
    }

    const OUTPUT: Hook = Hook { kind: Kind::Nat, point: Point::Output, priority: -100 };

    #[test]
    fn a_chain_is_read_back_as_it_was_written_and_differs_from_others() {
        let variants = [
            None,
            Some(OUTPUT),
            Some(Hook { priority: 100, ..OUTPUT }),
            Some(Hook { kind: Kind::Filter, ..OUTPUT }),
            Some(Hook { point: Point::Prerouting, ..OUTPUT }),
        ];
        let chains = variants.map(|hook| Chain { name: "c", hook, rules: vec![] });
        for written in &chains {
            let mut batch = Batch::default();
            written.add_to(&mut batch, Family::V4, TABLE);
            for chain in &chains {
                assert_eq!(chain.is(&decoded(&batch)), chain == written, "{chain:?} {written:?}");
            }
        }
    }

    #[test]
    fn a_base_chain_carries_hook_priority_policy_and_type() {
        let chain = Chain { name: "out", hook: Some(OUTPUT), rules: vec![] };
        let mut batch = Batch::default();
        chain.add_to(&mut batch, Family::V6, TABLE);
        let short = |kind: u16, text: &[u8; 4]| [&8u16.to_ne_bytes()[..], &kind.to_ne_bytes(), text].concat();
        let expected = [
            &[10, 0, 0, 0][..],
            &14u16.to_ne_bytes(),
            &1u16.to_ne_bytes(),
            b"kube-ipvs\0\0\0",
            &short(3, b"out\0"),
            &20u16.to_ne_bytes(),
            &0x8004u16.to_ne_bytes(),
            &short(1, &[0, 0, 0, 3]),
            &short(2, &[0xff, 0xff, 0xff, 0x9c]),
            &short(5, &[0, 0, 0, 1]),
            &short(7, b"nat\0"),
        ];
        assert_eq!(batch.as_bytes()[16..], expected.concat());
    }
}
