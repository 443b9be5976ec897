//! The chains and rules that a traced packet passes, of any table.

use netlink::{Error as NetlinkError, Reply};

use crate::{
    Error,
    nft::{
        decode,
        message::{
            self, Message, NFTA_CHAIN_HOOK, NFTA_CHAIN_NAME, NFTA_CHAIN_TABLE, NFTA_RULE_CHAIN,
            NFTA_RULE_HANDLE, NFTA_RULE_TABLE, NFTA_RULE_USERDATA, Nfproto,
        },
    },
    table::open_socket,
};

/// A chain where packets enter nf_tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseChain {
    /// The family of its table, as in [`TraceEvent`](super::TraceEvent).
    pub family: u8,
    /// The name of its table.
    pub table: Box<str>,
    /// Its name.
    pub name: Box<str>,
    /// Its hook, as in `enum nf_inet_hooks`: 0 prerouting, 1 input, 2 forward, 3 output, 4 postrouting.
    pub hook: u32,
    /// Its place among those of the hook.
    pub priority: i32,
}

/// Which rule a step is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RuleId {
    /// The family of its table.
    pub family: u8,
    /// The name of its table.
    pub table: Box<str>,
    /// The name of its chain.
    pub chain: Box<str>,
    /// Its handle.
    pub handle: u64,
}

/// What is known of an installed rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstalledRule {
    /// Its place in its chain, from 1, as `iptables -S CHAIN NUMBER` counts.
    pub number: usize,
    /// Its comment; empty if it has none.
    pub comment: Box<str>,
}

/// Lists the base chains of all tables. The order is the kernel's.
pub fn base_chains() -> Result<Vec<BaseChain>, Error> {
    let request = message::request(Message::GetChain, Nfproto::UNSPECIFIED, |_| {});
    message::dump(&mut open_socket()?, request, decode_chain)
        .map_err(|source| Error::new("list the chains of nf_tables", source))
}

fn decode_chain(reply: &Reply<'_>) -> Result<Option<BaseChain>, NetlinkError> {
    let (mut table, mut name, mut place) = ("", "", None);
    for attribute in message::body(reply)? {
        let attribute = attribute?;
        match attribute.kind {
            // Others' names may be any bytes.
            NFTA_CHAIN_TABLE => table = attribute.string().unwrap_or_default(),
            NFTA_CHAIN_NAME => name = attribute.string().unwrap_or_default(),
            NFTA_CHAIN_HOOK => place = Some(decode::hook(attribute.payload)?),
            _ => {}
        }
    }
    let Nfproto(family) = message::family(reply);
    Ok(place.map(|(hook, priority)| BaseChain {
        family,
        table: table.into(),
        name: name.into(),
        hook,
        priority,
    }))
}

/// Reads where a rule stands in its chain, and its comment; `None` if it is gone.
pub fn installed_rule(id: &RuleId) -> Result<Option<InstalledRule>, Error> {
    let request = message::request(Message::GetRule, Nfproto(id.family), |encoder| {
        encoder.string(NFTA_RULE_TABLE, &id.table);
        encoder.string(NFTA_RULE_CHAIN, &id.chain);
    });
    // Kernels before 4.20 send the rules of all chains.
    let rules = message::dump(&mut open_socket()?, request, |reply| decode_rule(reply, id))
        .map_err(|source| Error::new("list the rules of a chain", source))?;
    let at = rules.iter().position(|(handle, _)| *handle == id.handle);
    Ok(at.and_then(|at| {
        let (_, comment) = rules.into_iter().nth(at)?;
        Some(InstalledRule { number: at + 1, comment })
    }))
}

fn decode_rule(reply: &Reply<'_>, id: &RuleId) -> Result<Option<(u64, Box<str>)>, NetlinkError> {
    let (mut table, mut chain, mut handle, mut comment) = ("", "", 0, "");
    for attribute in message::body(reply)? {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_RULE_TABLE => table = attribute.string().unwrap_or_default(),
            NFTA_RULE_CHAIN => chain = attribute.string().unwrap_or_default(),
            NFTA_RULE_HANDLE => handle = u64::from_be_bytes(attribute.array()?),
            NFTA_RULE_USERDATA => comment = decode::comment(attribute.payload),
            _ => {}
        }
    }
    Ok((*table == *id.table && *chain == *id.chain).then(|| (handle, comment.into())))
}
