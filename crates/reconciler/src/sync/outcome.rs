//! The outcome of a plan: what was done, what failed, and what must be put off because of that.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    mem,
    net::IpAddr,
    sync::Arc,
};

use dummy_interface::Operation::{Bind, Unbind};
use ipvs::{Command, Family, Scheduler, ServiceAddress};
use netfilter::{
    Element,
    Operation::{AddDirectReturn, AddElement, DeleteElement, InstallTable, PrepareTable},
};
use service::{Dirty, Key, State, in_turn, one_line};
use watcher::{Observed, Operation, OperationKind, ReadError};

use crate::{
    FailureKind, RepairKind, Subsystem, SyncReport,
    follow::stale_flows::Rerouted,
    report::{add_counts, add_first},
};

/// The outcome of a plan.
#[derive(Debug, Default)]
pub(crate) struct PlanOutcome {
    /// How many operations were carried out, by kind.
    pub(crate) done: BTreeMap<OperationKind, usize>,
    /// The first operations that were carried out, in words.
    pub(crate) first_done: Vec<String>,
    /// The operations that failed or were put off, each with its cause in words. There can be very many, with few causes.
    pub(crate) failures: Vec<(Operation, Arc<str>)>,
    /// How many operations and readings failed, by kind.
    pub(crate) failure_counts: BTreeMap<(Subsystem, FailureKind), usize>,
    /// The removals of TCP real servers that had connections, and how many they had.
    pub(crate) cut_off: Vec<(Operation, u64)>,
    /// The keys of the operations that were not reached in time.
    pub(crate) left: Dirty,
    /// The operations that repaired what another program had changed.
    pub(crate) repairs: RepairSummary,
    /// What makes UDP flows stale.
    pub(crate) rerouted: Rerouted,
    /// Schedulers that operations asked for and the kernel does not have.
    pub(crate) lacking: BTreeSet<Scheduler>,
    /// The families in which a tunnel device was asked for and the kernel has none.
    pub(crate) lacking_tunnels: BTreeSet<Family>,
    /// Why the kernel could not be read, if it could not.
    pub(crate) unread: Option<String>,
    /// Whether an answer of the kernel was lost, or contradicts the image: then everything must be read anew.
    pub(crate) doubtful: bool,
}

impl PlanOutcome {
    /// Adds the outcome of another plan.
    pub(crate) fn extend(&mut self, other: Self) {
        add_counts(&mut self.done, other.done);
        add_first(&mut self.first_done, other.first_done, SyncReport::MOST_DONE);
        self.failures.extend(other.failures);
        add_counts(&mut self.failure_counts, other.failure_counts);
        self.cut_off.extend(other.cut_off);
        self.left.merge(other.left);
        self.repairs.extend(other.repairs);
        self.rerouted.extend(other.rerouted);
        self.lacking.extend(other.lacking);
        self.lacking_tunnels.extend(other.lacking_tunnels);
        self.unread = self.unread.take().or(other.unread);
        self.doubtful |= other.doubtful;
    }

    /// Puts the failures in turn by the namespaces whose virtual servers they are about: where the first are named, one
    /// namespace cannot hide the others.
    pub(crate) fn name_in_turn(&mut self, state: &State) {
        let namespace = |(operation, _): &(Operation, Arc<str>)| {
            let at = match operation.key()? {
                Key::VirtualServer(address) => address,
                Key::Element(element) => *element.virtual_server()?,
                Key::Device | Key::Table(_) | Key::Rules(_) | Key::Tunnel(_) | Key::Vip(_) => return None,
            };
            Some(state.owner(&at)?.namespace())
        };
        self.failures = in_turn(mem::take(&mut self.failures), usize::MAX, namespace);
    }

    /// The keys that must be looked at again: of the operations that failed, and of those that were not reached.
    pub(crate) fn dirty(&self) -> Dirty {
        let mut dirty = self.left.clone();
        dirty.extend(self.failures.iter().filter_map(|(operation, _)| operation.key()));
        dirty
    }

    /// Whether any operation was carried out.
    pub(crate) fn has_done_something(&self) -> bool {
        !self.done.is_empty()
    }

    /// Whether an operation failed on which all others depend.
    pub(crate) fn lacks_foundation(&self) -> bool {
        self.failures.iter().any(|(operation, _)| operation.is_foundation())
    }

    /// The outcome where the kernel could not be read, so that nothing was done.
    pub(crate) fn unread(error: &ReadError) -> Self {
        let failure_counts = BTreeMap::from([((Subsystem::from_read_error(error), FailureKind::Unread), 1)]);
        Self { unread: Some(one_line(error)), doubtful: true, failure_counts, ..Self::default() }
    }
}

/// The repairs of one sync.
#[derive(Debug, Default)]
pub(crate) struct RepairSummary {
    /// The first repairs, as text.
    pub(crate) first: Vec<String>,
    pub(crate) counts: BTreeMap<RepairKind, usize>,
}

impl RepairSummary {
    /// Counts a repair.
    pub(crate) fn add(&mut self, operation: &Operation) {
        *self.counts.entry(RepairKind::from_operation(operation)).or_default() += 1;
        if self.first.len() < SyncReport::MOST_REPAIRS {
            self.first.push(operation.to_string());
        }
    }

    /// Adds the repairs of another plan.
    pub(crate) fn extend(&mut self, other: Self) {
        add_counts(&mut self.counts, other.counts);
        add_first(&mut self.first, other.first, SyncReport::MOST_REPAIRS);
    }
}

/// Remembers which operations of a plan failed, and which others they block.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Blocked {
    /// Families whose table is missing.
    families: HashSet<Family>,
    /// Families whose table could not be given direct return.
    without_direct_return: HashSet<Family>,
    /// Virtual servers with a wrong element: they would let in clients that must stay out, or leave flows without
    /// masquerade.
    unguarded: HashSet<ServiceAddress>,
    /// Addresses that would lead to an unguarded virtual server, or to this node's own programs.
    unguarded_vips: HashSet<IpAddr>,
    /// Virtual servers that could not be added, so that they can get no real servers.
    missing: HashSet<ServiceAddress>,
    /// Addresses of the missing virtual servers.
    vips_of_missing: HashSet<IpAddr>,
    /// Virtual servers that should be gone, and may live on.
    lingering: HashSet<ServiceAddress>,
    /// Addresses that should be unbound, and may still be bound.
    lingering_vips: HashSet<IpAddr>,
    /// Families with a failed add. `None`: a new table does not wait for them.
    families_with_failed_add: Option<HashSet<Family>>,
}

impl Blocked {
    /// Starts a plan. With `defers_install` a new table takes no flows from the rules of other programs while an add
    /// of its family fails.
    pub(crate) fn new(defers_install: bool) -> Self {
        Self { families_with_failed_add: defers_install.then(HashSet::new), ..Self::default() }
    }

    /// Whether nothing is blocked: no operation has failed yet.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::new(self.families_with_failed_add.is_some())
    }

    /// Records that an operation was not carried out, as far as is known. `observed` is the image before it.
    pub(crate) fn record_failure(&mut self, operation: &Operation, observed: &Observed) {
        if let (Some(families), Some(family)) = (&mut self.families_with_failed_add, adds_to(operation)) {
            families.insert(family);
        }
        match operation {
            Operation::Netfilter(PrepareTable(family)) => {
                self.families.insert(*family);
            }
            Operation::Netfilter(AddDirectReturn(family)) => {
                self.without_direct_return.insert(*family);
            }
            Operation::Netfilter(AddElement(Element::Vip(vip))) => {
                self.unguarded_vips.insert(*vip);
            }
            // Nobody comes in by these who should not.
            Operation::Netfilter(AddElement(element)) if element.is_for_unpacking() => {}
            Operation::Netfilter(AddElement(element) | DeleteElement(element)) => {
                if let Some(of) = element.virtual_server() {
                    self.unguarded.insert(*of);
                    if observed.virtual_servers.contains_key(of) {
                        self.unguarded_vips.insert(of.ip);
                    }
                }
            }
            Operation::Ipvs(command @ Command::AddVirtualServer(_)) => {
                self.missing.extend(command.address());
                self.vips_of_missing.extend(command.address().map(|at| at.ip));
            }
            Operation::Ipvs(command @ Command::DeleteVirtualServer(_)) => {
                self.lingering.extend(command.address());
            }
            Operation::DummyInterface(Unbind(vip)) => {
                self.lingering_vips.insert(*vip);
            }
            // Without these, what is already there goes on serving, or the rules of another program do.
            Operation::Netfilter(_) | Operation::Ipvs(_) | Operation::DummyInterface(_) => {}
        }
    }

    /// Why an operation must be put off, if it must.
    pub(crate) fn blocked_by(&self, operation: &Operation, observed: &Observed) -> Option<&'static str> {
        match operation {
            Operation::Netfilter(change) if self.families.contains(&change.family()) => {
                Some("put off: its table is missing")
            }
            Operation::Netfilter(InstallTable(family))
                if self
                    .families_with_failed_add
                    .as_ref()
                    .is_some_and(|families| families.contains(family)) =>
            {
                Some("put off: not all is there yet that serves what it takes from the rules of others")
            }
            Operation::Netfilter(AddElement(element))
                if element.is_of_direct_return()
                    && self.without_direct_return.contains(&element.family()) =>
            {
                Some("put off: its table has no direct return")
            }
            Operation::Netfilter(DeleteElement(element)) => self.still_needed(element),
            Operation::Ipvs(command) => self.command_blocked_by(command),
            Operation::DummyInterface(Bind(vip)) if self.leads_nowhere(vip, observed) => {
                Some("put off: none of its virtual servers is there")
            }
            Operation::DummyInterface(Bind(vip)) if self.unguarded_vips.contains(vip) => {
                Some("put off: an element of it in our tables is not as it should be")
            }
            Operation::Netfilter(_) | Operation::DummyInterface(_) => None,
        }
    }

    fn command_blocked_by(&self, command: &Command) -> Option<&'static str> {
        let of = command.address()?;
        match command {
            Command::AddVirtualServer(_)
                if self.unguarded.contains(&of) || self.families.contains(&Family::from(of.ip)) =>
            {
                Some("put off: an element of it in our tables is not as it should be")
            }
            Command::AddRealServer(..) | Command::EditRealServer(..) if self.missing.contains(&of) => {
                Some("put off: its virtual server is missing")
            }
            // It may be on another node, and would answer its clients past this one; and it may be meant for
            // other clients.
            Command::AddRealServer(_, server) | Command::EditRealServer(_, server)
                if self.unguarded.contains(&of) && server.weight != 0 =>
            {
                Some("put off: an element of its virtual server in our tables is not as it should be")
            }
            _ => None,
        }
    }

    /// Why an element must stay, if it must.
    fn still_needed(&self, element: &Element) -> Option<&'static str> {
        match (element, element.virtual_server()) {
            (Element::Vip(vip), _) if self.lingering_vips.contains(vip) => Some("put off: it is still bound"),
            (_, Some(of)) if self.lingering.contains(of) => {
                Some("put off: its virtual server is still there")
            }
            (_, Some(of)) if self.unguarded.contains(of) => {
                Some("put off: another element of its virtual server is not as it should be")
            }
            _ => None,
        }
    }

    /// Whether a VIP would lead to nothing but this node's own programs.
    fn leads_nowhere(&self, vip: &IpAddr, observed: &Observed) -> bool {
        self.vips_of_missing.contains(vip)
            && !observed.virtual_servers.keys().any(|address| address.ip == *vip)
    }
}

/// The family of an operation that adds something; `None` for others.
fn adds_to(operation: &Operation) -> Option<Family> {
    match operation {
        Operation::Netfilter(AddElement(element)) if !element.is_for_unpacking() => Some(element.family()),
        Operation::Ipvs(command @ Command::AddVirtualServer(_)) => {
            command.address().map(|at| Family::from(at.ip))
        }
        Operation::DummyInterface(Bind(vip)) => Some(Family::from(*vip)),
        Operation::Netfilter(_) | Operation::Ipvs(_) | Operation::DummyInterface(_) => None,
    }
}
