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

use std::collections::{BTreeMap, BTreeSet, btree_map};

use ipvs::{Family, RealServerAddress, ServiceAddress};
use netlink::{Batch, Errno, FailedRequest, KernelError, OperationError, Protocol, Socket};

use entry::Entry;

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

/// A flow as conntrack shows it.
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
                btree_map::Entry::Vacant(entry) => drop(entry.insert(exempt)),
                btree_map::Entry::Occupied(mut entry) => {
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

/// Why entries could not be deleted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The exchange with the kernel failed.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// The kernel does not know the request: the module is missing.
    #[error("the kernel cannot list conntrack's entries: the module nf_conntrack_netlink is missing")]
    NotSupported,
    /// The kernel refused to delete some entries.
    #[error("{failed} of {found} stale conntrack entries could not be deleted")]
    NotDeleted {
        /// How many.
        failed: usize,
        /// Of how many that were found.
        found: usize,
        /// The kernel's answer to the first.
        source: KernelError,
    },
}

impl Error {
    fn new(operation: &'static str, source: netlink::Error) -> Self {
        OperationError::new("conntrack", operation, source).into()
    }
}

/// The real kernel, in the network namespace of the thread that opened it.
///
/// Each call reads the whole table once, for any number of flows: a million entries take about a second, but
/// a packet waits at most for the part that fits one message.
#[derive(Debug)]
pub struct KernelConntrack {
    socket: Socket,
}

impl KernelConntrack {
    /// Opens a netlink socket. Nothing is read or written.
    pub fn open() -> Result<Self, Error> {
        let socket = Socket::open(Protocol::Netfilter)
            .map_err(|source| Error::new("open a socket to conntrack", source))?;
        Ok(Self { socket })
    }

    /// Requests to delete each entry of these flows, and the family of each.
    ///
    /// The table is read once, whether or not others change it meanwhile, which they always do. Some entries
    /// may be listed twice or not at all; deleting those that are is still right, and a flow that continues
    /// is found the next time.
    fn find(&mut self, flows: &StaleFlows) -> Result<(Batch, Vec<Family>), Error> {
        let (mut deletions, mut families) = (Batch::default(), Vec::new());
        let listed = self.socket.dump_once(&mut entry::list(), |reply| {
            if let Some(entry) = Entry::read(reply).filter(|entry| flows.contains(&entry.flow)) {
                entry.delete(&mut deletions);
                families.push(Family::from(entry.flow.to.ip));
            }
            Ok(None::<()>)
        });
        listed.map_err(not_listed)?;
        Ok((deletions, families))
    }
}

impl Conntrack for KernelConntrack {
    fn delete(&mut self, flows: &StaleFlows) -> Result<Deleted, Error> {
        if flows.is_empty() {
            return Ok(Deleted::default());
        }
        let (mut deletions, families) = self.find(flows)?;
        let failures = self.socket.pipeline(&mut deletions);
        let failures = failures.map_err(|source| Error::new("delete conntrack entries", source))?;
        deleted(&families, failures)
    }
}

fn not_listed(error: netlink::Error) -> Error {
    match error.errno() {
        // A request that names no attributes can only be refused because its type is unknown.
        Some(Errno::EINVAL) => Error::NotSupported,
        _ => Error::new("list conntrack's entries", error),
    }
}

/// Counts the deleted entries by family. Entries that no longer exist have ended by themselves, or were
/// listed twice.
fn deleted(found: &[Family], failures: Vec<FailedRequest>) -> Result<Deleted, Error> {
    let failed: BTreeSet<_> = failures.iter().map(|failure| failure.index).collect();
    let mut refused = failures.into_iter().filter(|failure| failure.error.errno != Errno::ENOENT);
    if let Some(first) = refused.next() {
        let (failed, found) = (1 + refused.count(), found.len());
        return Err(Error::NotDeleted { failed, found, source: first.error });
    }
    let mut deleted = Deleted::default();
    for (_, family) in found.iter().enumerate().filter(|(index, _)| !failed.contains(index)) {
        match family {
            Family::V4 => deleted.ipv4 += 1,
            Family::V6 => deleted.ipv6 += 1,
        }
    }
    Ok(deleted)
}

#[cfg(test)]
mod tests {
    use netlink::{Reply, Transcript};

    use super::{entry::tests::masqueraded, *};

    /// A message of a listing, or a verdict.
    fn message(kind: u16, flags: u16, sequence: u32, content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(16 + content.len()).unwrap().to_ne_bytes();
        let header =
            [&length[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &sequence.to_ne_bytes(), &[0; 4]];
        [&header.concat()[..], content].concat()
    }

    #[test]
    fn a_listing_that_was_disturbed_is_used_as_far_as_it_came_and_not_begun_anew() {
        const NEW_ENTRY: u16 = 1 << 8;
        const DONE: u16 = 3;
        const VERDICT: u16 = 2;
        const MULTI: u16 = 2;
        const DISTURBED: u16 = 0x10;
        const UDP: u8 = 17;
        let shown = masqueraded(UDP);
        let flow = Entry::read(&Reply { payload: &shown, ..Reply::default() }).unwrap().flow;

        let kernel = Transcript::default();
        kernel.push(&message(NEW_ENTRY, MULTI | DISTURBED, 1, &shown));
        kernel.push(&message(DONE, MULTI | DISTURBED, 1, &[0; 4]));
        // That the second request, to delete it, is carried out.
        kernel.push(&message(VERDICT, 0, 2, &[0; 20]));
        let mut conntrack = kernel.replay(KernelConntrack::open).unwrap();
        let all = StaleFlows::from_iter([(flow.to, BTreeSet::new())]);
        assert_eq!(conntrack.delete(&all).unwrap(), Deleted { ipv4: 1, ipv6: 0 });
        assert!(kernel.encode().is_empty());
    }

    #[test]
    fn a_listing_that_failed_is_an_error_that_says_what_is_missing() {
        let error = |errno| not_listed(KernelError::new(errno).into()).to_string();
        assert!(error(Errno::EINVAL).contains("nf_conntrack_netlink"));
        assert!(error(Errno::EPERM).contains("CAP_NET_ADMIN"));
        assert_eq!(error(Errno::ENOMEM), "cannot list conntrack's entries");
    }

    fn failure(index: usize, errno: Errno) -> FailedRequest {
        FailedRequest { index, error: KernelError::new(errno) }
    }

    #[test]
    fn entries_that_have_ended_meanwhile_are_not_counted_and_no_error() {
        let found = [Family::V4, Family::V6, Family::V4, Family::V6, Family::V6];
        let deleted = deleted(&found, vec![failure(1, Errno::ENOENT), failure(4, Errno::ENOENT)]).unwrap();
        assert_eq!(deleted, Deleted { ipv4: 2, ipv6: 1 });
    }

    #[test]
    fn entries_that_the_kernel_keeps_are_an_error() {
        let failures = vec![failure(0, Errno::ENOENT), failure(1, Errno::EBUSY), failure(2, Errno::EBUSY)];
        let error = deleted(&[Family::V4; 5], failures).unwrap_err();
        assert_eq!(error.to_string(), "2 of 5 stale conntrack entries could not be deleted");
        assert!(matches!(error, Error::NotDeleted { source, .. } if source.errno == Errno::EBUSY));
    }
}
