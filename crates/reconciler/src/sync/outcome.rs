//! The outcome of a sync: what was done, what failed, and what must be put off because of that.

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
use rustc_hash::FxHashSet;
use service::{Dirty, Key, ObjectName, State, in_turn, one_line};
use watcher::{Observed, Operation, OperationKind, ReadError};

use super::ServiceOperations;
use crate::{
    FailureKind, FirstNamed, RepairKind, Subsystem, SyncReport, SyncStats, follow::stale_flows::Rerouted,
};

/// The outcome of the plans of one sync.
#[derive(Debug, Default)]
pub(crate) struct PlanOutcome {
    /// How many operations were carried out, by kind.
    pub(crate) done: BTreeMap<OperationKind, usize>,
    /// The first operations that were carried out, as text.
    pub(crate) first_done: Vec<String>,
    /// The virtual servers to which they belong.
    pub(crate) touched: FxHashSet<ServiceAddress>,
    /// The operations that failed or were put off, each with its cause as text. There can be very many, with
    /// few causes.
    pub(crate) failures: Vec<(Operation, Arc<str>)>,
    /// The removals of TCP real servers that had connections, and how many they had.
    pub(crate) cut_off: Vec<(Operation, u64)>,
    /// The keys of the operations that were not reached in time. The end of the sync adds those of the portions that
    /// were put off, and moves all to the next one.
    pub(crate) unreached: Dirty,
    /// How many these were, at the end of the sync.
    pub(crate) left: usize,
    /// The first operations that repaired what another program had changed, as text.
    pub(crate) first_repairs: Vec<String>,
    /// How many failed, and how many repaired something, by kind; at the end of the sync, everything that is counted.
    pub(crate) stats: SyncStats,
    /// What was done to the virtual servers and VIPs of Services.
    pub(crate) service_operations: ServiceOperations,
    /// The changes that make UDP flows stale.
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

/// The keys of operations that have failed.
pub(super) fn keys(failures: &[(Operation, Arc<str>)]) -> impl Iterator<Item = Key> {
    failures.iter().filter_map(|(failed, _)| failed.key())
}

impl PlanOutcome {
    /// Puts the failures in turn by the namespaces whose virtual servers they are about: where the first are
    /// named, one namespace cannot hide the others.
    pub(crate) fn name_in_turn(&mut self, state: &State) {
        let namespace = |(operation, _): &(Operation, Arc<str>)| {
            Some(state.owner(&operation.key()?.belongs_to()?)?.namespace())
        };
        self.failures = in_turn(mem::take(&mut self.failures), usize::MAX, namespace);
    }

    /// The Services that the operations were for, as far as they still exist.
    pub(crate) fn services(&self, state: &State) -> FirstNamed<ObjectName> {
        self.touched.iter().filter_map(|at| state.owner(at)).collect()
    }

    /// How many operations were carried out.
    pub(crate) fn done(&self) -> usize {
        self.done.values().sum()
    }

    /// Whether any operation was carried out.
    pub(crate) fn has_done_something(&self) -> bool {
        !self.done.is_empty()
    }

    /// Whether there was nothing to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.done.is_empty() && self.failures.is_empty() && self.unreached.is_empty() && self.unread.is_none()
    }

    /// Whether an operation failed on which all others depend.
    pub(crate) fn lacks_foundation(&self) -> bool {
        self.failures.iter().any(|(operation, _)| operation.is_foundation())
    }

    /// Records that the kernel could not be read.
    pub(crate) fn fail_to_read(&mut self, error: &ReadError) {
        self.unread = Some(one_line(error));
        self.doubtful = true;
        self.count_failure(Subsystem::from_read_error(error), FailureKind::Unread);
    }

    /// Counts a failed operation or reading.
    pub(crate) fn count_failure(&mut self, of: Subsystem, how: FailureKind) {
        *self.stats.failures.entry((of, how)).or_default() += 1;
    }

    /// Counts a repair.
    pub(crate) fn add_repair(&mut self, operation: &Operation) {
        *self.stats.repairs.entry(RepairKind::from_operation(operation)).or_default() += 1;
        if self.first_repairs.len() < SyncReport::MOST_REPAIRS {
            self.first_repairs.push(operation.to_string());
        }
    }
}

/// The parts that are wrong because operations failed, and the operations that must be put off for that.
#[derive(Debug, Default)]
pub(crate) struct Failed {
    parts: HashSet<Part>,
    /// Whether a new table takes no flows from the rules of other programs while an addition to its family
    /// fails.
    defers_rules: bool,
}

/// A part of the kernel's state on which operations depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Part {
    /// The table of a family.
    Table(Family),
    /// The part of a table for direct return.
    DirectReturn(Family),
    /// All additions to a family.
    Additions(Family),
    /// The elements of a virtual server. With a wrong one it would let in clients that must stay out, or
    /// leave flows without masquerade.
    Elements(ServiceAddress),
    /// The elements of an address. With a wrong one it would lead to a virtual server whose elements are
    /// wrong, or to this node's own programs.
    ElementsOfVip(IpAddr),
    /// A virtual server that is to be added.
    NewServer(ServiceAddress),
    /// The virtual servers that are to be added to an address.
    NewServersOf(IpAddr),
    /// A virtual server that is to be deleted.
    OldServer(ServiceAddress),
    /// An address that is to be unbound.
    OldVip(IpAddr),
}

impl Failed {
    /// Starts a sync. With `defers_rules` a new table takes no flows from the rules of other programs while
    /// an addition to its family fails.
    pub(crate) fn new(defers_rules: bool) -> Self {
        Self { defers_rules, ..Self::default() }
    }

    /// Whether nothing must be put off.
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Records that an operation was not carried out, as far as is known. `observed` is the image before it.
    pub(crate) fn add(&mut self, operation: &Operation, observed: &Observed) {
        let counts = |part: &Part| self.defers_rules || !matches!(part, Part::Additions(_));
        self.parts.extend(gives(operation, observed).into_iter().filter(counts));
    }

    /// Why an operation must be put off, if it must.
    pub(crate) fn puts_off(&self, operation: &Operation, observed: &Observed) -> Option<&'static str> {
        let mut needs = needs(operation).into_iter();
        needs.find(|(part, _)| self.contains(part, observed)).map(|(_, cause)| cause)
    }

    fn contains(&self, part: &Part, observed: &Observed) -> bool {
        let has_server = |ip: &IpAddr| observed.virtual_servers.keys().any(|at| at.ip == *ip);
        self.parts.contains(part) && !matches!(part, Part::NewServersOf(ip) if has_server(ip))
    }
}

/// The parts that an operation makes right. Without the others, what is already there goes on serving, or the
/// rules of another program do.
fn gives(operation: &Operation, observed: &Observed) -> Vec<Part> {
    match operation {
        Operation::Netfilter(PrepareTable(family)) => vec![Part::Table(*family)],
        Operation::Netfilter(AddDirectReturn(family)) => vec![Part::DirectReturn(*family)],
        Operation::Netfilter(AddElement(element)) if element.is_for_unpacking() => Vec::new(),
        Operation::Netfilter(AddElement(element)) => {
            let mut parts = elements_of(element, observed);
            parts.push(Part::Additions(element.family()));
            parts
        }
        Operation::Netfilter(DeleteElement(Element::Vip(_))) => Vec::new(),
        Operation::Netfilter(DeleteElement(element)) => elements_of(element, observed),
        Operation::Ipvs(command) => match (command, command.address()) {
            (Command::AddVirtualServer(_), Some(at)) => {
                vec![Part::NewServer(at), Part::NewServersOf(at.ip), Part::Additions(at.ip.into())]
            }
            (Command::DeleteVirtualServer(_), Some(at)) => vec![Part::OldServer(at)],
            _ => Vec::new(),
        },
        Operation::DummyInterface(Bind(vip)) => vec![Part::Additions((*vip).into())],
        Operation::DummyInterface(Unbind(vip)) => vec![Part::OldVip(*vip)],
        Operation::Netfilter(_) | Operation::DummyInterface(_) => Vec::new(),
    }
}

/// The parts to which an element belongs.
fn elements_of(element: &Element, observed: &Observed) -> Vec<Part> {
    match (element, element.virtual_server()) {
        (Element::Vip(vip), _) => vec![Part::ElementsOfVip(*vip)],
        (_, Some(of)) if observed.virtual_servers.contains_key(of) => {
            vec![Part::Elements(*of), Part::ElementsOfVip(of.ip)]
        }
        (_, Some(of)) => vec![Part::Elements(*of)],
        (_, None) => Vec::new(),
    }
}

/// The parts that must be right before an operation, each with the cause to name while it is not.
fn needs(operation: &Operation) -> Vec<(Part, &'static str)> {
    const WRONG_ELEMENT: &str = "deferred: one of its elements in our tables is wrong";
    match operation {
        Operation::Netfilter(change) => {
            let mut needs = vec![(Part::Table(change.family()), "deferred: its table is missing")];
            match change {
                InstallTable(family) => needs.push((
                    Part::Additions(*family),
                    "deferred: the virtual servers or elements for the traffic that it takes over are not complete",
                )),
                AddElement(element) if element.is_of_direct_return() => {
                    let set = Part::DirectReturn(element.family());
                    needs.push((set, "deferred: its table has no direct return"));
                }
                DeleteElement(Element::Vip(vip)) => {
                    needs.push((Part::OldVip(*vip), "deferred: it is still bound"));
                }
                DeleteElement(element) => needs.extend(element.virtual_server().into_iter().flat_map(|of| {
                    [
                        (Part::OldServer(*of), "deferred: its virtual server is still there"),
                        (Part::Elements(*of), "deferred: another element of its virtual server is wrong"),
                    ]
                })),
                _ => {}
            }
            needs
        }
        Operation::Ipvs(command) => match (command, command.address()) {
            (Command::AddVirtualServer(_), Some(at)) => {
                vec![(Part::Elements(at), WRONG_ELEMENT), (Part::Table(at.ip.into()), WRONG_ELEMENT)]
            }
            (Command::AddRealServer(_, server) | Command::EditRealServer(_, server), Some(of)) => {
                let missing = (Part::NewServer(of), "deferred: its virtual server is missing");
                // It may be on another node, and would answer its clients past this one; and it may be meant
                // for other clients.
                let cause = "deferred: an element of its virtual server in our tables is wrong";
                let takes_connections = server.weight != 0;
                [missing]
                    .into_iter()
                    .chain(takes_connections.then_some((Part::Elements(of), cause)))
                    .collect()
            }
            _ => Vec::new(),
        },
        Operation::DummyInterface(Bind(vip)) => vec![
            (Part::NewServersOf(*vip), "deferred: all its virtual servers are missing"),
            (Part::ElementsOfVip(*vip), WRONG_ELEMENT),
        ],
        Operation::DummyInterface(_) => Vec::new(),
    }
}
