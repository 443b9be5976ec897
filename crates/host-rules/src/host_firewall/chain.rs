//! Which chains of the host decide about what IPVS forwards.

use std::fmt;

use netfilter::nft::{TABLE, message::Nfproto};
use netlink::{Error, Reply};
use serde::Serialize;

use super::listing::{self, ListedChain};
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

/// Reads one chain; `None` if it is not a [`HostChain`].
pub(super) fn decode_chain(reply: &Reply<'_>) -> Result<Option<BaseChain>, Error> {
    let Some(ListedChain { family, table, name, base: Some(base) }) = listing::decode_chain(reply)? else {
        return Ok(None);
    };
    let (Some(family), "filter", Some(hook)) =
        (TableFamily::numbered(family), &*base.kind, Hook::numbered(base.hook))
    else {
        return Ok(None);
    };
    let chain = HostChain { backend: Backend::Nft, family, table, name, hook, priority: base.priority };
    Ok((!is_ours(family, &chain.table)).then_some(BaseChain { chain, drops_by_policy: base.drops }))
}

fn is_ours(family: TableFamily, table: &str) -> bool {
    family != TableFamily::Inet && table == TABLE
}
