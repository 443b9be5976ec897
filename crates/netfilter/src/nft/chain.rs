//! Chains: where rules are, and where packets meet them.

use std::fmt;

use ipvs::Family;
use netlink::{Batch, Error, Reply, attributes};

use super::{
    TABLE,
    message::{self, CREATE, Message},
    rule::Rule,
};

/// `enum nft_chain_attributes`.
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_CHAIN_TYPE: u16 = 7;
/// `enum nft_hook_attributes`.
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;

const NF_ACCEPT: u32 = 1;
const NAT: &str = "nat";

/// A chain with its rules, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) name: &'static str,
    /// `None`: packets come here only by a jump.
    pub(crate) hook: Option<Hook>,
    pub(crate) rules: Vec<Rule>,
}

/// Where packets enter a chain of type nat, which sees the first packet of each connection only.
/// Packets that leave it by its end go on (policy accept).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    Prerouting,
    Output,
    Postrouting,
}

/// A chain of our table as the kernel shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedChain {
    pub(crate) name: Box<str>,
    pub(crate) hook: Option<ObservedHook>,
}

/// A hook as the kernel shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObservedHook {
    kind: Box<str>,
    number: u32,
    priority: i32,
    policy: u32,
}

impl Hook {
    /// `enum nf_inet_hooks`.
    const fn number(self) -> u32 {
        match self {
            Self::Prerouting => 0,
            Self::Output => 3,
            Self::Postrouting => 4,
        }
    }

    /// `NF_IP_PRI_NAT_DST` before routing, `NF_IP_PRI_NAT_SRC` after it.
    const fn priority(self) -> i32 {
        match self {
            Self::Prerouting | Self::Output => -100,
            Self::Postrouting => 100,
        }
    }

    fn observed(self) -> ObservedHook {
        let (number, priority) = (self.number(), self.priority());
        ObservedHook { kind: NAT.into(), number, priority, policy: NF_ACCEPT }
    }
}

impl fmt::Display for Hook {
    /// nft knows the priority of `output` by number only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hook, priority) = match self {
            Self::Prerouting => ("prerouting", "dstnat"),
            Self::Output => ("output", "-100"),
            Self::Postrouting => ("postrouting", "srcnat"),
        };
        write!(f, "type {NAT} hook {hook} priority {priority}; policy accept;")
    }
}

impl Chain {
    /// Whether the kernel's chain is this one, rules aside. What differs cannot be changed in place:
    /// such a chain is deleted and created again in one transaction.
    pub(crate) fn is(&self, observed: &ObservedChain) -> bool {
        self.observed() == *observed
    }

    /// What the kernel shows of it.
    pub(crate) fn observed(&self) -> ObservedChain {
        ObservedChain { name: self.name.into(), hook: self.hook.map(Hook::observed) }
    }

    /// Appends the request that creates it without rules.
    pub(crate) fn add_to(&self, batch: &mut Batch, family: Family) {
        message::add(batch, Message::NewChain, CREATE, family, |encoder| {
            encoder.string(NFTA_CHAIN_TABLE, TABLE);
            encoder.string(NFTA_CHAIN_NAME, self.name);
            if let Some(hook) = self.hook {
                encoder.nest(NFTA_CHAIN_HOOK, |attributes| {
                    attributes.u32_be(NFTA_HOOK_HOOKNUM, hook.number());
                    attributes.u32_be(NFTA_HOOK_PRIORITY, hook.priority().cast_unsigned());
                });
                encoder.u32_be(NFTA_CHAIN_POLICY, NF_ACCEPT);
                encoder.string(NFTA_CHAIN_TYPE, NAT);
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

/// The request for the family's chains; the kernel cannot be asked for one table's.
pub(crate) fn list(family: Family) -> Batch {
    message::request(Message::GetChain, family, |_| {})
}

/// Reads one chain; `None` for another table's.
pub(crate) fn decode(reply: &Reply<'_>) -> Result<Option<ObservedChain>, Error> {
    let (mut table, mut name) = ("", "");
    let (mut kind, mut policy, mut place) = ("", NF_ACCEPT, None);
    for attribute in message::body(reply)? {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_CHAIN_TABLE => table = attribute.string()?,
            NFTA_CHAIN_NAME => name = attribute.string()?,
            NFTA_CHAIN_TYPE => kind = attribute.string()?,
            NFTA_CHAIN_POLICY => policy = attribute.u32_be()?,
            NFTA_CHAIN_HOOK => place = Some(decode_hook(attribute.payload)?),
            _ => {}
        }
    }
    let hook = place.map(|(number, priority)| ObservedHook { kind: kind.into(), number, priority, policy });
    Ok((table == TABLE).then(|| ObservedChain { name: name.into(), hook }))
}

fn decode_hook(bytes: &[u8]) -> Result<(u32, i32), Error> {
    let (mut number, mut priority) = (0, 0);
    for attribute in attributes(bytes) {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_HOOK_HOOKNUM => number = attribute.u32_be()?,
            NFTA_HOOK_PRIORITY => priority = attribute.u32_be()?.cast_signed(),
            _ => {}
        }
    }
    Ok((number, priority))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(batch: &Batch) -> ObservedChain {
        let payload = &batch.as_bytes()[16..];
        decode(&Reply { kind: 0, flags: 0, sequence: 0, payload }).unwrap().unwrap()
    }

    #[test]
    fn a_chain_is_read_back_as_it_was_written() {
        for hook in [None, Some(Hook::Prerouting), Some(Hook::Output), Some(Hook::Postrouting)] {
            let chain = Chain { name: "c", hook, rules: vec![] };
            let mut batch = Batch::default();
            chain.add_to(&mut batch, Family::V4);
            assert!(chain.is(&decoded(&batch)), "{chain:?}");
        }
    }

    #[test]
    fn a_base_chain_carries_hook_priority_policy_and_type() {
        let chain = Chain { name: "out", hook: Some(Hook::Output), rules: vec![] };
        let mut batch = Batch::default();
        chain.add_to(&mut batch, Family::V6);
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
