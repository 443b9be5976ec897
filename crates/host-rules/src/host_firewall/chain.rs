//! The chains of the host that decide about what IPVS forwards, and all tables with all chains.

use std::fmt;

use netfilter::nft::{
    TABLE,
    chain::{ListedChain, NF_DROP, ObservedHook},
    message::{self, NFTA_TABLE_FLAGS, NFTA_TABLE_NAME, Nfproto},
};
use netlink::{Error, Reply};
use serde::Serialize;

use crate::Backend;

/// A chain of the host's own firewall: a base chain of type filter at the hook input or forward.
///
/// Its `Display` names it as nft does: `ip filter INPUT`; or it is `INPUT of iptables-legacy`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct HostChain {
    /// Where its table is.
    pub backend: Backend,
    /// The family of its table.
    pub family: TableFamily,
    /// The name of its table.
    pub table: Box<str>,
    /// Its name.
    pub name: Box<str>,
    /// Where packets enter it.
    pub hook: Hook,
    /// Its place among the chains at the same hook.
    pub priority: i32,
}

/// The families of tables that see what IPVS forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TableFamily {
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
    /// Both.
    Inet,
}

/// The hooks that a flow through IPVS passes and a host's firewall filters at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hook {
    /// Requests, with the VIP as destination, unless this node itself sends them.
    Input,
    /// Answers of pods.
    Forward,
}

/// A base chain, and what happens to a packet that reaches its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BaseChain {
    pub(super) chain: HostChain,
    pub(super) drops_by_policy: bool,
}

impl HostChain {
    /// Whether iptables shows this chain and writes to it.
    pub fn belongs_to_iptables(&self) -> bool {
        let is_named_so = &*self.table == "filter" && &*self.name == self.hook.chain_of_iptables();
        self.family != TableFamily::Inet && is_named_so
    }
}

impl fmt::Display for HostChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.backend, self.family) {
            (Backend::Nft, family) => write!(f, "{family} {} {}", self.table, self.name),
            (Backend::Legacy, TableFamily::Ip6) => write!(f, "{} of ip6tables-legacy", self.name),
            (Backend::Legacy, _) => write!(f, "{} of iptables-legacy", self.name),
        }
    }
}

impl TableFamily {
    pub(crate) fn numbered(family: Nfproto) -> Option<Self> {
        [Self::Ip, Self::Ip6, Self::Inet].into_iter().find(|one| Nfproto::from(*one) == family)
    }
}

/// `NFPROTO_IPV4`, `NFPROTO_IPV6`, `NFPROTO_INET`.
impl From<TableFamily> for Nfproto {
    fn from(family: TableFamily) -> Self {
        match family {
            TableFamily::Ip => Self(2),
            TableFamily::Ip6 => Self(10),
            TableFamily::Inet => Self(1),
        }
    }
}

impl fmt::Display for TableFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
            Self::Inet => "inet",
        })
    }
}

impl Hook {
    /// `NF_INET_LOCAL_IN`, `NF_INET_FORWARD`.
    fn numbered(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Input),
            2 => Some(Self::Forward),
            _ => None,
        }
    }

    /// The name of iptables' chain there.
    pub(super) const fn chain_of_iptables(self) -> &'static str {
        match self {
            Self::Input => "INPUT",
            Self::Forward => "FORWARD",
        }
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Input => "input",
            Self::Forward => "forward",
        })
    }
}

/// Reads one chain; `None` if it is not a [`HostChain`].
pub(super) fn decode_base(reply: &Reply<'_>) -> Result<Option<BaseChain>, Error> {
    let Some(ListedChain { family, table, name, hook: Some(listed) }) = decode_any(reply)? else {
        return Ok(None);
    };
    let (Some(family), "filter", Some(hook)) =
        (TableFamily::numbered(family), &*listed.kind, Hook::numbered(listed.number))
    else {
        return Ok(None);
    };
    let chain = HostChain { backend: Backend::Nft, family, table, name, hook, priority: listed.priority };
    let drops_by_policy = listed.policy == NF_DROP;
    Ok((!is_ours(family, &chain.table)).then_some(BaseChain { chain, drops_by_policy }))
}

/// Reads a chain of any kind and family; `None` if a name is not UTF-8.
pub(super) fn decode_any(reply: &Reply<'_>) -> Result<Option<ListedChain>, Error> {
    let chain = ListedChain::decode(reply)?;
    Ok((!chain.table.is_empty() && !chain.name.is_empty()).then_some(chain))
}

fn is_ours(family: TableFamily, table: &str) -> bool {
    family != TableFamily::Inet && table == TABLE
}

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

impl fmt::Display for ListedTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { family, name, chains, .. } = self;
        writeln!(f, "table {} {name}", family_name(*family))?;
        for ListedChain { name, hook, .. } in chains {
            write!(f, "  chain {name}")?;
            if let Some(ObservedHook { kind, number, priority, policy }) = hook {
                let hook = hook_name(*family, *number);
                let policy = if *policy == NF_DROP { "drop" } else { "accept" };
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
