//! The outcome of a plan.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use ipvs::{Family, Scheduler};
use service::{Dirty, Key, State, in_turn, one_line};
use watcher::{Operation, OperationKind, ReadError};

use crate::{
    FailureKind, Subsystem, SyncReport,
    follow::{repairs::RepairSummary, stale_flows::Rerouted},
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
