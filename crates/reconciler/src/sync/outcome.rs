//! The outcome of a plan.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use ipvs::{Family, Scheduler};
use service::{State, in_turn, one_line};
use watcher::{Operation, OperationKind, ReadError};

use super::DiffKey;
use crate::{FailureKind, Subsystem, SyncReport, follow::stale_flows::Rerouted};

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
    /// Adds the outcome of a second plan.
    pub(crate) fn extend(&mut self, other: Self) {
        for (kind, count) in other.done {
            *self.done.entry(kind).or_default() += count;
        }
        let room = SyncReport::MOST_DONE.saturating_sub(self.first_done.len());
        self.first_done.extend(other.first_done.into_iter().take(room));
        self.failures.extend(other.failures);
        for (kind, count) in other.failure_counts {
            *self.failure_counts.entry(kind).or_default() += count;
        }
        self.cut_off.extend(other.cut_off);
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
            let at = match DiffKey::from_operation(operation)? {
                DiffKey::VirtualServer(address) => address,
                DiffKey::Element(element) => *element.virtual_server()?,
                DiffKey::Vip(_) | DiffKey::Tunnel(_) => return None,
            };
            Some(state.owner(&at)?.namespace())
        };
        self.failures = in_turn(mem::take(&mut self.failures), usize::MAX, namespace);
    }

    /// What is left of it if what failed is tried again at once.
    pub(crate) fn without_failures(self) -> Self {
        Self {
            done: self.done,
            first_done: self.first_done,
            cut_off: self.cut_off,
            rerouted: self.rerouted,
            ..Self::default()
        }
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
