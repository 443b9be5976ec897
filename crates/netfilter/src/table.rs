//! The one table per family that kube-ipvs owns: what is in it, how it comes into the kernel, and reading it
//! back.

mod client;
mod generation;
mod installation;
pub(crate) mod key;
mod monitor;
mod observed;
mod probe;
mod ruleset;
mod transaction;

use std::{collections::BTreeSet, net::IpAddr};

use ipvs::{Family, ServiceAddress};
use netlink::{OperationError, Protocol, Socket};
use rustc_hash::FxHashSet;

use crate::{Element, Operation};

pub use client::KernelNetfilter;
#[cfg(feature = "wire")]
pub use client::wire;
pub use generation::Generation;
pub use installation::{hand_over, is_installed, uninstall};
pub use monitor::{Changed, Monitor};
pub use observed::{elements, packet_counts};
pub use probe::Feature;
pub use ruleset::{ACCEPT_MARK_PRIORITIES, Ruleset};

/// Our nf_tables tables in one network namespace. No other table is read or written.
pub trait Netfilter {
    /// Reads our tables.
    fn observe(&mut self) -> Result<Observed, Error>;

    /// Whether our tables may differ from what was observed, beyond what [`apply`](Self::apply) has successfully changed
    /// since. This costs far less than to observe them again.
    fn may_differ(&mut self, observed: &Observed) -> Result<bool, Error>;

    /// Applies the changes in one atomic transaction; on `Err` nothing took effect, unless the answer
    /// was lost ([`netlink::Error::StateUnknown`], [`netlink::Error::TimedOut`]).
    ///
    /// Tables are made first, with or without direct return, then elements change in the order given, except
    /// that all intervals are deleted before others are added. Deleting an element that does not exist, or
    /// adding one that does, is not an error; changing an element of a table that does not exist is.
    fn apply(&mut self, operations: &[Operation]) -> Result<(), Error>;
}

/// Why a read or a transaction failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The exchange with the kernel failed.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// The transaction was rolled back because of this object; nothing of it took effect.
    #[error("nf_tables transaction rolled back: cannot {operation}")]
    RolledBack {
        /// The failed request, in nft's syntax.
        operation: String,
        /// The kernel's answer.
        source: netlink::Error,
    },
}

impl Error {
    pub(crate) fn new(operation: &'static str, source: netlink::Error) -> Self {
        OperationError::new("nf_tables", operation, source).into()
    }
}

pub(crate) fn open_socket() -> Result<Socket, Error> {
    Socket::open(Protocol::Netfilter).map_err(|source| Error::new("open a socket to nf_tables", source))
}

/// Our tables as the kernel shows them.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// The families whose table exists with exactly our sets, chains and rules.
    pub installed: BTreeSet<Family>,
    /// The families whose table only lacks the rules that take new flows from the destination NAT of others.
    pub prepared: BTreeSet<Family>,
    /// The families whose table has the sets of direct return.
    pub direct_return: BTreeSet<Family>,
    /// The elements in our sets.
    pub elements: ElementSet,
    /// When they were read; `None` if another program changed nf_tables meanwhile.
    pub generation: Option<Generation>,
}

/// Compares what is there, whenever it was read.
impl PartialEq for Observed {
    fn eq(&self, other: &Self) -> bool {
        let Self { installed, prepared, direct_return, elements, generation: _ } = self;
        (installed, prepared, direct_return, elements)
            == (&other.installed, &other.prepared, &other.direct_return, &other.elements)
    }
}

impl Eq for Observed {}

/// Elements, each once, in no particular order.
///
/// Nearly all are VIPs and ClusterIPs. By themselves they take less than half the memory of an [`Element`],
/// which has room for the clients of a load balancer too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElementSet {
    vips: FxHashSet<IpAddr>,
    cluster_ips: FxHashSet<ServiceAddress>,
    others: FxHashSet<Element>,
}

impl ElementSet {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.vips.len() + self.cluster_ips.len() + self.others.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it has this element.
    pub fn contains(&self, element: &Element) -> bool {
        match element {
            Element::Vip(ip) => self.vips.contains(ip),
            Element::ClusterIp(address) => self.cluster_ips.contains(address),
            other => self.others.contains(other),
        }
    }

    /// Adds an element. Returns whether it is new.
    pub fn insert(&mut self, element: Element) -> bool {
        match element {
            Element::Vip(ip) => self.vips.insert(ip),
            Element::ClusterIp(address) => self.cluster_ips.insert(address),
            other => self.others.insert(other),
        }
    }

    /// Removes an element. Returns whether it was there.
    pub fn remove(&mut self, element: &Element) -> bool {
        match element {
            Element::Vip(ip) => self.vips.remove(ip),
            Element::ClusterIp(address) => self.cluster_ips.remove(address),
            other => self.others.remove(other),
        }
    }

    /// Removes the elements that are not to be kept.
    pub fn retain(&mut self, mut keep: impl FnMut(&Element) -> bool) {
        self.vips.retain(|ip| keep(&Element::Vip(*ip)));
        self.cluster_ips.retain(|address| keep(&Element::ClusterIp(*address)));
        self.others.retain(keep);
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = Element> {
        let vips = self.vips.iter().copied().map(Element::Vip);
        let cluster_ips = self.cluster_ips.iter().copied().map(Element::ClusterIp);
        vips.chain(cluster_ips).chain(self.others.iter().copied())
    }
}

impl Extend<Element> for ElementSet {
    fn extend<I: IntoIterator<Item = Element>>(&mut self, elements: I) {
        elements.into_iter().for_each(|element| _ = self.insert(element));
    }
}

impl FromIterator<Element> for ElementSet {
    fn from_iter<I: IntoIterator<Item = Element>>(elements: I) -> Self {
        let mut set = Self::default();
        set.extend(elements);
        set
    }
}
