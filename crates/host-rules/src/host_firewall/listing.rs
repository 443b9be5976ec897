//! All tables of nf_tables with their chains, for people.

use std::fmt;

use netfilter::nft::message::{self, NFTA_TABLE_NAME, Nfproto};
use netlink::{Error, Reply};

use super::chain::Described;

/// A table of any family with its chains, and without its rules and sets.
///
/// Its `Display` is like that of `nft list tables` and `nft list chains`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedTable {
    pub(super) family: Nfproto,
    pub(super) name: Box<str>,
    pub(super) chains: Vec<ListedChain>,
}

/// A chain of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListedChain {
    pub(super) table: (Nfproto, Box<str>),
    name: Box<str>,
    base: Option<Base>,
}

/// Where packets enter a base chain, and what becomes of those that reach its end.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Base {
    kind: Box<str>,
    hook: u32,
    priority: i32,
    drops: bool,
}

/// Reads a table; `None` if its name is not UTF-8.
pub(super) fn decode_table(reply: &Reply<'_>) -> Result<Option<ListedTable>, Error> {
    let mut name = None;
    for attribute in message::body(reply)? {
        let attribute = attribute?;
        if attribute.kind == NFTA_TABLE_NAME {
            name = attribute.string().ok();
        }
    }
    let family = message::family(reply);
    Ok(name.map(|name| ListedTable { family, name: name.into(), chains: Vec::new() }))
}

/// Reads a chain; `None` if a name is not UTF-8.
pub(super) fn decode_chain(reply: &Reply<'_>) -> Result<Option<ListedChain>, Error> {
    let described = Described::decode(reply)?;
    Ok(described.map(|Described { table, name, base }| ListedChain {
        table: (message::family(reply), table.into()),
        name: name.into(),
        base: base.map(|base| Base {
            kind: base.kind.into(),
            hook: base.hook,
            priority: base.priority,
            drops: base.drops,
        }),
    }))
}

impl fmt::Display for ListedTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { family, name, chains } = self;
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
