//! All tables of nf_tables with their chains.

use std::fmt;

use netfilter::nft::{
    decode,
    message::{
        self, NFTA_CHAIN_HOOK, NFTA_CHAIN_NAME, NFTA_CHAIN_POLICY, NFTA_CHAIN_TABLE, NFTA_CHAIN_TYPE,
        NFTA_TABLE_FLAGS, NFTA_TABLE_NAME, Nfproto,
    },
};
use netlink::{Error, Reply};

use super::chain::HostChain;

/// A table of any family with its chains, and without its rules and sets.
///
/// Its `Display` is like that of `nft list tables` and `nft list chains`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedTable {
    family: Nfproto,
    name: Box<str>,
    /// No packet enters its chains.
    pub(super) dormant: bool,
    /// Another program owns it and alone may change it (the flag `owner`), as firewalld can do.
    pub(super) owned: bool,
    pub(super) chains: Vec<ListedChain>,
}

/// A chain of any kind and family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListedChain {
    pub(super) family: Nfproto,
    pub(super) table: Box<str>,
    pub(super) name: Box<str>,
    pub(super) base: Option<Base>,
}

/// Where packets enter a base chain, and what becomes of those that reach its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Base {
    pub(super) kind: Box<str>,
    pub(super) hook: u32,
    pub(super) priority: i32,
    pub(super) drops: bool,
}

impl ListedTable {
    /// Whether a chain of the host is in this table.
    pub(super) fn holds(&self, chain: &HostChain) -> bool {
        self.family == Nfproto::from(chain.family) && self.name == chain.table
    }

    /// Whether a chain of any kind is in this table.
    pub(super) fn lists(&self, chain: &ListedChain) -> bool {
        self.family == chain.family && self.name == chain.table
    }
}

/// Reads a table; `None` if its name is not UTF-8, which the kernel allows and nft does not.
pub(super) fn decode_table(reply: &Reply<'_>) -> Result<Option<ListedTable>, Error> {
    const NFT_TABLE_F_DORMANT: u32 = 1;
    const NFT_TABLE_F_OWNER: u32 = 2;
    let (mut name, mut flags) = (None, 0);
    for attribute in message::body(reply)? {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_TABLE_NAME => name = attribute.string().ok(),
            NFTA_TABLE_FLAGS => flags = attribute.u32_be()?,
            _ => {}
        }
    }
    Ok(name.map(|name| ListedTable {
        family: message::family(reply),
        name: name.into(),
        dormant: flags & NFT_TABLE_F_DORMANT != 0,
        owned: flags & NFT_TABLE_F_OWNER != 0,
        chains: Vec::new(),
    }))
}

/// Reads a chain; `None` if a name is not UTF-8.
pub(super) fn decode_chain(reply: &Reply<'_>) -> Result<Option<ListedChain>, Error> {
    const NF_DROP: u32 = 0;
    let (mut table, mut name, mut kind, mut place, mut drops) = (None, None, None, None, false);
    for attribute in message::body(reply)? {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_CHAIN_TABLE => table = attribute.string().ok(),
            NFTA_CHAIN_NAME => name = attribute.string().ok(),
            NFTA_CHAIN_TYPE => kind = attribute.string().ok(),
            NFTA_CHAIN_POLICY => drops = attribute.u32_be()? == NF_DROP,
            NFTA_CHAIN_HOOK => place = Some(decode::hook(attribute.payload)?),
            _ => {}
        }
    }
    let base = kind.zip(place);
    let base = base.map(|(kind, (hook, priority))| Base { kind: kind.into(), hook, priority, drops });
    let family = message::family(reply);
    Ok(table.zip(name).map(|(table, name)| ListedChain {
        family,
        table: table.into(),
        name: name.into(),
        base,
    }))
}

impl fmt::Display for ListedTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { family, name, chains, .. } = self;
        writeln!(f, "table {} {name}", family_name(*family))?;
        for ListedChain { name, base, .. } in chains {
            write!(f, "  chain {name}")?;
            if let Some(Base { kind, hook, priority, drops }) = base {
                let (hook, policy) = (hook_name(*family, *hook), if *drops { "drop" } else { "accept" });
                write!(f, ": type {kind} hook {hook} priority {priority}, policy {policy}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// `NFPROTO_*` in include/uapi/linux/netfilter.h, in nft's words.
fn family_name(Nfproto(number): Nfproto) -> String {
    match number {
        1 => "inet".to_owned(),
        2 => "ip".to_owned(),
        3 => "arp".to_owned(),
        5 => "netdev".to_owned(),
        7 => "bridge".to_owned(),
        10 => "ip6".to_owned(),
        other => other.to_string(),
    }
}

/// `enum nf_inet_hooks`, which a bridge shares; those of arp and netdev are few and stay numbers.
fn hook_name(Nfproto(family): Nfproto, hook: u32) -> String {
    const NAMES: [&str; 6] = ["prerouting", "input", "forward", "output", "postrouting", "ingress"];
    let name = usize::try_from(hook).ok().and_then(|hook| NAMES.get(hook));
    match name {
        Some(name) if [1, 2, 7, 10].contains(&family) => (*name).to_owned(),
        _ => hook.to_string(),
    }
}
