//! Which chains of the host decide about what IPVS forwards.

use std::fmt;

use netlink::{Error, Reply};
use serde::Serialize;

use crate::Backend;
use netfilter::nft::{
    TABLE, decode,
    message::{
        self, NFTA_CHAIN_HOOK, NFTA_CHAIN_NAME, NFTA_CHAIN_POLICY, NFTA_CHAIN_TABLE, NFTA_CHAIN_TYPE,
        NFTA_TABLE_FLAGS, NFTA_TABLE_NAME, Nfproto,
    },
};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
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

/// A table with some of its flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) family: TableFamily,
    pub(super) name: Box<str>,
    /// No packet enters its chains.
    pub(super) dormant: bool,
    /// Another program owns it and alone may change it (the flag `owner`), as firewalld can do.
    pub(super) owned: bool,
}

impl HostChain {
    /// Whether iptables shows this chain and writes to it.
    pub fn belongs_to_iptables(&self) -> bool {
        let name = match self.hook {
            Hook::Input => "INPUT",
            Hook::Forward => "FORWARD",
        };
        self.family != TableFamily::Inet && &*self.table == "filter" && &*self.name == name
    }
}

impl Table {
    pub(super) fn holds(&self, chain: &HostChain) -> bool {
        self.family == chain.family && self.name == chain.table
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
    fn numbered(family: Nfproto) -> Option<Self> {
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
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Input => "input",
            Self::Forward => "forward",
        })
    }
}

/// Reads one table; `None` if it is ours, or of another kind, or if its name is not UTF-8, which the kernel
/// allows and nft does not.
pub(super) fn decode_table(reply: &Reply<'_>) -> Result<Option<Table>, Error> {
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
    let family = TableFamily::numbered(message::family(reply));
    Ok(family.zip(name).filter(|(family, name)| !is_ours(*family, name)).map(|(family, name)| Table {
        family,
        name: name.into(),
        dormant: flags & NFT_TABLE_F_DORMANT != 0,
        owned: flags & NFT_TABLE_F_OWNER != 0,
    }))
}

/// Reads one chain; `None` if it is not a [`HostChain`].
pub(super) fn decode_chain(reply: &Reply<'_>) -> Result<Option<BaseChain>, Error> {
    let Some(Described { table, name, base: Some(base) }) = Described::decode(reply)? else {
        return Ok(None);
    };
    let (Some(family), "filter", Some(hook)) =
        (TableFamily::numbered(message::family(reply)), base.kind, Hook::numbered(base.hook))
    else {
        return Ok(None);
    };
    let (table, name) = (table.into(), name.into());
    let chain = HostChain { backend: Backend::Nft, family, table, name, hook, priority: base.priority };
    Ok((!is_ours(family, &chain.table)).then_some(BaseChain { chain, drops_by_policy: base.drops }))
}

/// What the kernel says of a chain of any kind and family.
pub(super) struct Described<'a> {
    pub(super) table: &'a str,
    pub(super) name: &'a str,
    pub(super) base: Option<DescribedBase<'a>>,
}

/// Where packets enter a base chain, and what becomes of those that reach its end.
pub(super) struct DescribedBase<'a> {
    pub(super) kind: &'a str,
    pub(super) hook: u32,
    pub(super) priority: i32,
    pub(super) drops: bool,
}

impl<'a> Described<'a> {
    /// Reads one; `None` if a name is not UTF-8.
    pub(super) fn decode(reply: &Reply<'a>) -> Result<Option<Self>, Error> {
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
        let base = base.map(|(kind, (hook, priority))| DescribedBase { kind, hook, priority, drops });
        Ok(table.zip(name).map(|(table, name)| Self { table, name, base }))
    }
}

fn is_ours(family: TableFamily, table: &str) -> bool {
    family != TableFamily::Inet && table == TABLE
}
