//! What was found of kube-proxy's, why some of it stays, and how an operator reads it.

use std::{borrow::Cow, fmt};

use ipvs::Family;
use netlink::OperationError;

use super::{
    chains::Plan,
    names::{NFTABLES_TABLE, SERVICES},
};
use crate::{Backend, LegacyError, host_firewall, legacy::stem};
use netfilter::nft::family_name;

/// Something of kube-proxy's. Its `Display` names it in a few words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leftover {
    /// Rules in a table of iptables.
    Rules(Rules),
    /// An ipset.
    Set(Box<str>),
    /// The table of the nftables mode, in this family.
    NftablesTable(Family),
}

/// What of kube-proxy's is in one table of iptables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Where iptables has the table.
    pub backend: Backend,
    /// The family.
    pub family: Family,
    /// The table.
    pub table: &'static str,
    /// How many rules of built-in chains lead to kube-proxy's.
    pub jumps: usize,
    /// Its chains, with their rules.
    pub chains: Vec<Box<str>>,
}

/// Something that could not be removed, or read.
#[derive(Debug)]
pub struct Stayed {
    /// Its description.
    pub what: String,
    /// The reason.
    pub why: Error,
}

/// Why something stayed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The exchange with the kernel failed.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// Rules of another program jump to it.
    #[error("{0} jumps to it")]
    Needed(Box<str>),
    /// The host forwards nothing else.
    #[error(
        "without it the host's chain FORWARD drops the answers of pods; it is removed at the next start once that \
         chain has our rules (--host-firewall) or your own (see docs/node.md)"
    )]
    Forwards,
    /// Some rule still uses the set.
    #[error("it is in use")]
    InUse,
    /// The old iptables has tables, and the programs to read them are not installed here.
    #[error(
        "its tables cannot be read because its programs are not installed here; if kube-proxy's rules are in them, \
         this removes them on the host: {by_hand}"
    )]
    NoPrograms {
        /// The command.
        by_hand: String,
    },
    /// The tables of the old iptables could not be read or changed.
    #[error(transparent)]
    Legacy(#[from] LegacyError),
    /// Whether the host forwards what pods answer is not known.
    #[error("cannot determine whether KUBE-FORWARD is needed")]
    HostFirewall(#[source] host_firewall::Error),
}

impl Error {
    pub(super) fn new(operation: impl Into<Cow<'static, str>>, source: netlink::Error) -> Self {
        OperationError::new("the kernel", operation, source).into()
    }
}

/// What was found, or removed, and what stays.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What was found, or removed.
    pub leftovers: Vec<Leftover>,
    /// What stays.
    pub stayed: Vec<Stayed>,
    /// What could not be read: whether something stays there is unknown.
    pub unknown: Vec<Stayed>,
}

impl Outcome {
    pub(super) fn take<R>(&mut self, backend: Backend, family: Family, table: &'static str, plan: Plan<R>) {
        let Plan { jumps, chains, kept, spared } = plan;
        let name = |chain| format!("chain {chain} in {}", name_of(backend, family, table));
        if let Some(chain) = spared {
            self.stays(name(chain), Error::Forwards);
        }
        for (chain, by) in kept {
            self.stays(name(chain), Error::Needed(by));
        }
        if !jumps.is_empty() || !chains.is_empty() {
            self.leftovers.push(Leftover::Rules(Rules {
                backend,
                family,
                table,
                jumps: jumps.len(),
                chains,
            }));
        }
    }

    pub(super) fn stays(&mut self, what: impl Into<String>, why: Error) {
        self.stayed.push(Stayed { what: what.into(), why });
    }

    /// Whether a kube-proxy is running, if this was found after everything had been removed. What the kubelet
    /// writes again by itself does not count: up to Kubernetes 1.26 KUBE-POSTROUTING and KUBE-MARK-MASQ
    /// (KEP-3178).
    pub fn shows_a_proxy(&self) -> bool {
        self.leftovers.iter().any(|leftover| match leftover {
            Leftover::Rules(rules) => rules.chains.iter().any(|chain| **chain == *SERVICES),
            Leftover::NftablesTable(_) => true,
            Leftover::Set(_) => false,
        })
    }
}

/// The name of a table of iptables for an operator.
pub(super) fn name_of(backend: Backend, family: Family, table: &str) -> String {
    let program = stem(family);
    match backend {
        Backend::Nft => format!("{program} table {table}"),
        Backend::Legacy => format!("{program}-legacy table {table}"),
    }
}

/// How many chains are named at most: in iptables mode there are some for each Service.
const NAMED: usize = 12;

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rules(rules) => rules.fmt(f),
            Self::Set(name) => write!(f, "ipset {name}"),
            Self::NftablesTable(family) => {
                write!(f, "nftables table {} {NFTABLES_TABLE}", family_name(*family))
            }
        }
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { backend, family, table, jumps, chains } = self;
        let noun = |count: usize, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
        write!(f, "{}: ", name_of(*backend, *family, table))?;
        write!(f, "{}, {}", noun(*jumps, "jump"), noun(chains.len(), "chain"))?;
        for (position, chain) in chains.iter().take(NAMED).enumerate() {
            write!(f, "{}{chain}", if position == 0 { ": " } else { ", " })?;
        }
        match chains.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

impl fmt::Display for Stayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(chains: &[&str]) -> Leftover {
        let chains = chains.iter().map(|&chain| chain.into()).collect();
        Leftover::Rules(Rules { backend: Backend::Nft, family: Family::V6, table: "nat", jumps: 1, chains })
    }

    #[test]
    fn what_is_found_is_named_in_one_line() {
        assert_eq!(
            rules(&["KUBE-SERVICES", "KUBE-POSTROUTING"]).to_string(),
            "ip6tables table nat: 1 jump, 2 chains: KUBE-SERVICES, KUBE-POSTROUTING"
        );
        assert_eq!(rules(&[]).to_string(), "ip6tables table nat: 1 jump, 0 chains");
        assert!(rules(&["KUBE-MARK-MASQ"; 15]).to_string().ends_with("KUBE-MARK-MASQ and 3 more"));
        assert_eq!(Leftover::NftablesTable(Family::V4).to_string(), "nftables table ip kube-proxy");
    }

    #[test]
    fn only_what_kube_proxy_alone_writes_shows_that_one_is_at_work() {
        let shows = |leftover| Outcome { leftovers: vec![leftover], ..Outcome::default() }.shows_a_proxy();
        assert!(shows(rules(&["KUBE-SERVICES", "KUBE-MARK-MASQ"])));
        assert!(shows(Leftover::NftablesTable(Family::V4)));
        assert!(!shows(rules(&["KUBE-POSTROUTING", "KUBE-MARK-MASQ"])), "a kubelet 1.26");
        assert!(!shows(Leftover::Set("KUBE-CLUSTER-IP".into())));
    }
}
