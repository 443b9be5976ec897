//! Stale UDP flows: conntrack sends them where they no longer belong.
//!
//! From the first packet on, conntrack remembers for each flow which server answers it. A UDP flow has no
//! end, and its entry lives as long as the client keeps sending: a client that always uses the same port is
//! never routed anew. IPVS deletes the entries of a removed real server, but only those that it has made
//! itself, and only in conntrack's default zone (`ip_vs_conn_drop_conntrack` in
//! net/netfilter/ipvs/ip_vs_nfct.c). It leaves the following entries, whose senders then get no answer, or
//! send to a removed pod:
//!
//! - entries in a zone, which some networks give their pods;
//! - entries older than the virtual server: they lead to the address itself, and IPVS does not change the
//!   entry of a known flow (`ip_vs_update_conntrack`);
//! - entries that another proxy has made, with its own address translation: IPVS never sees those packets.
//!
//! An entry is identified by its complete original tuple, its zone and its id, so that exactly the entry that
//! was seen is deleted: not one with the same port at another address, nor one that has replaced it
//! meanwhile.

mod entry;
mod kernel;

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use ipvs::{Family, RealServerAddress, ServiceAddress};

pub use kernel::{Error, KernelConntrack};

/// The stale flows to some addresses, of all clients.
///
/// The protocol of the addresses is UDP: flows of any other are never deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StaleFlows(BTreeMap<ServiceAddress, Exempt>);

/// The flows to an address that are not stale.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Exempt {
    /// They are answered by one of these.
    servers: BTreeSet<RealServerAddress>,
    /// They must be masqueraded. If false, both kinds are exempt.
    masqueraded: bool,
}

/// A flow as conntrack knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Where it was sent to.
    pub to: ServiceAddress,
    /// The server that answers it: the address itself if nothing was translated.
    pub answered_by: RealServerAddress,
    /// Whether it goes on from another IP than it was sent from.
    pub masqueraded: bool,
}

impl StaleFlows {
    /// All flows to these addresses that are not masqueraded, and of those that are, all but those that these
    /// real servers answer.
    pub fn unless_masqueraded(
        addresses: impl IntoIterator<Item = (ServiceAddress, BTreeSet<RealServerAddress>)>,
    ) -> Self {
        let exempt = |(to, servers)| (to, Exempt { servers, masqueraded: true });
        Self(addresses.into_iter().map(exempt).collect())
    }

    /// Adds the flows of another one. Of an address that both have, only those flows stay that both leave.
    pub fn merge(&mut self, other: Self) {
        for (to, exempt) in other.0 {
            match self.0.entry(to) {
                Entry::Vacant(entry) => drop(entry.insert(exempt)),
                Entry::Occupied(mut entry) => {
                    let both = entry.get_mut();
                    both.servers.retain(|server| exempt.servers.contains(server));
                    both.masqueraded |= exempt.masqueraded;
                }
            }
        }
    }

    /// Whether this is a flow to delete.
    pub fn contains(&self, flow: &Flow) -> bool {
        self.0.get(&flow.to).is_some_and(|exempt| {
            !exempt.servers.contains(&flow.answered_by) || exempt.masqueraded && !flow.masqueraded
        })
    }

    /// The addresses to which flows may be stale.
    pub fn addresses(&self) -> impl ExactSizeIterator<Item = &ServiceAddress> {
        self.0.keys()
    }

    /// Whether there are no addresses.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Addresses, each with the real servers whose flows stay.
impl FromIterator<(ServiceAddress, BTreeSet<RealServerAddress>)> for StaleFlows {
    fn from_iter<I: IntoIterator<Item = (ServiceAddress, BTreeSet<RealServerAddress>)>>(iter: I) -> Self {
        let exempt = |(to, servers)| (to, Exempt { servers, masqueraded: false });
        Self(iter.into_iter().map(exempt).collect())
    }
}

/// How many entries were deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Those to IPv4 addresses.
    pub ipv4: usize,
    /// Those to IPv6 addresses.
    pub ipv6: usize,
}

impl Deleted {
    /// Those to addresses of one family.
    pub fn count(self, family: Family) -> usize {
        match family {
            Family::V4 => self.ipv4,
            Family::V6 => self.ipv6,
        }
    }

    /// All of them.
    pub fn total(self) -> usize {
        self.ipv4 + self.ipv6
    }
}

/// Conntrack in one network namespace.
pub trait Conntrack: Send {
    /// Deletes the entries of these flows, and returns how many it deleted in each family.
    ///
    /// An entry that has ended by itself meanwhile is not an error. On `Err` some may have been deleted; the
    /// call can be repeated.
    fn delete(&mut self, flows: &StaleFlows) -> Result<Deleted, Error>;
}
