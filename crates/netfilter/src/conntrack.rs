//! UDP flows that conntrack holds to a way which is no longer right.
//!
//! Conntrack remembers for each flow who answers it, from the first packet on. A UDP flow has no end, and its
//! entry lives as long as somebody goes on sending: whoever asks again and again from the same port is never
//! looked at anew. IPVS deletes the entries of a real server that is removed, but only those that it has made
//! itself, and only in conntrack's default zone (`ip_vs_conn_drop_conntrack` in
//! net/netfilter/ipvs/ip_vs_nfct.c). These it leaves, and then their senders get no answer, or talk to a pod
//! that is gone:
//!
//! - entries in a zone, which some networks give their pods;
//! - entries from before there was a virtual server: they lead to the address itself, and IPVS does not change
//!   the entry of a flow that is known (`ip_vs_update_conntrack`);
//! - entries that another proxy has made, with its own address translation: IPVS never sees those packets.
//!
//! An entry is named by its whole original tuple, its zone and its number, so that nothing but the entry that
//! was seen is deleted: not one with the same port at an address of somebody else, nor one that has taken its
//! place meanwhile.

mod entry;
mod kernel;

use std::collections::BTreeSet;

use ipvs::{Family, RealServerAddress, ServiceAddress};

pub use kernel::{Error, KernelConntrack};

/// The flows to one address that are answered by one other, whoever sends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StaleFlow {
    /// Where they were sent to. The protocol is UDP: flows of any other are never deleted.
    pub to: ServiceAddress,
    /// Who answers them: a real server, or the address itself if nothing was translated.
    pub answered_by: RealServerAddress,
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
    pub fn of(self, family: Family) -> usize {
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

/// The seam to conntrack in one network namespace.
pub trait Conntrack: Send {
    /// Deletes the entries of these flows, and says how many there were in each family.
    ///
    /// An entry that is gone by itself meanwhile is no error. On `Err` some may have been deleted: what is asked
    /// for can be asked for again.
    fn delete(&mut self, flows: &BTreeSet<StaleFlow>) -> Result<Deleted, Error>;
}
