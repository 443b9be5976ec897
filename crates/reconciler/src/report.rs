//! Reports: what a sync did, the status, the log and the statistics.

pub(crate) mod history;
pub(crate) mod journal;
pub(crate) mod service_notices;
pub(crate) mod status;
pub(crate) mod sync_log;
pub(crate) mod sync_stats;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use ipvs::ServiceAddress;
use serde::{Deserialize, Serialize};
use service::{ObjectName, seconds};
use watcher::OperationKind;

use crate::{Trigger, sync::PlanOutcome};

/// The result of one sync.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncReport {
    /// Why it ran.
    pub trigger: Trigger,
    /// Whether it checked the whole kernel, by reading it or by comparing it with the image.
    pub full: bool,
    /// How many operations the kernel carried out.
    pub done: usize,
    /// How many operations of each kind the kernel carried out.
    pub done_by_kind: BTreeMap<OperationKind, usize>,
    /// The Services whose virtual servers, real servers or elements they changed. Services that are gone are left out.
    // A daemon of an earlier release may be asked.
    #[serde(default)]
    pub services: FirstNamed<ObjectName>,
    /// The first operations that were carried out, one line each; at most [`SyncReport::MOST_DONE`] of them.
    pub first_done: Vec<String>,
    /// The first operations that repaired what another program had changed, one line each; at most
    /// [`SyncReport::MOST_REPAIRS`] of them.
    pub repairs: Vec<String>,
    /// The foreign virtual servers that were removed: no Service made them.
    pub removed_foreign: ForeignVirtualServers,
    /// The operations that failed or were put off, each with its cause, one line each, in turn by namespaces;
    /// at most [`SyncReport::MOST_FAILURES`] of them.
    pub failures: Vec<String>,
    /// How many operations failed or were put off, also those not listed.
    pub failed: usize,
    /// How many virtual servers, VIPs and elements did not fit into this sync; the next one continues with them
    /// at once.
    // A daemon of an earlier release may be asked.
    #[serde(default)]
    pub left: usize,
    /// How long it took; in JSON, seconds.
    #[serde(with = "seconds")]
    pub took: Duration,
}

impl SyncReport {
    /// Creates the report of a sync.
    pub(crate) fn new(
        trigger: Trigger,
        full: bool,
        outcome: &PlanOutcome,
        services: FirstNamed<ObjectName>,
        removed_foreign: ForeignVirtualServers,
        took: Duration,
    ) -> Self {
        let failures = outcome.failures.iter().map(|(operation, cause)| format!("{operation}: {cause}"));
        Self {
            trigger,
            full,
            done: outcome.done(),
            done_by_kind: outcome.done.clone(),
            services,
            first_done: outcome.first_done.clone(),
            repairs: outcome.first_repairs.clone(),
            removed_foreign,
            failures: outcome.unread.iter().cloned().chain(failures).take(Self::MOST_FAILURES).collect(),
            failed: outcome.failures.len() + outcome.unread.iter().len(),
            left: outcome.left,
            took,
        }
    }

    /// Whether the kernel reported something that was as desired: an echo of our own work, or a renewed
    /// lease.
    pub fn is_echo(&self) -> bool {
        self.trigger.is_from_kernel() && !self.full && self.done == 0 && self.failed == 0
    }

    /// Adds what the next sync did, which went on with what this one had left.
    pub(crate) fn extend(&mut self, next: Self) {
        self.full |= next.full;
        self.done += next.done;
        add_counts(&mut self.done_by_kind, next.done_by_kind);
        self.services.extend(&next.services);
        add_first(&mut self.first_done, next.first_done, Self::MOST_DONE);
        add_first(&mut self.repairs, next.repairs, Self::MOST_REPAIRS);
        self.removed_foreign.extend(&next.removed_foreign);
        // What failed before was tried again.
        (self.failures, self.failed, self.left) = (next.failures, next.failed, next.left);
        self.took += next.took;
    }

    /// The report of a sync that did nothing.
    pub fn empty(trigger: Trigger) -> Self {
        let (services, removed_foreign) = (FirstNamed::default(), FirstNamed::default());
        Self::new(trigger, false, &PlanOutcome::default(), services, removed_foreign, Duration::ZERO)
    }

    /// The answer to an operator who asks for a sync before there is anything to sync to.
    pub(crate) fn not_ready() -> Self {
        Self {
            failures: vec!["not synced: the lists of Services and EndpointSlices have not arrived".into()],
            failed: 1,
            ..Self::empty(Trigger::Forced)
        }
    }

    /// The first repair, if there was one.
    pub fn first_repair(&self) -> Option<&str> {
        self.repairs.first().map(String::as_str)
    }

    /// How many failures are listed; a missing scheduler fails ten thousand operations alike.
    pub const MOST_FAILURES: usize = 20;

    /// How many of the operations that were carried out are listed; the first sync has ten thousands.
    pub const MOST_DONE: usize = 20;

    /// How many repairs are listed.
    pub const MOST_REPAIRS: usize = 20;
}

/// Adds counts by kind.
fn add_counts<K: Ord>(counts: &mut BTreeMap<K, usize>, more: BTreeMap<K, usize>) {
    for (kind, count) in more {
        *counts.entry(kind).or_default() += count;
    }
}

/// Adds to the first ones, of which at most this many are kept.
fn add_first<T>(first: &mut Vec<T>, more: impl IntoIterator<Item = T>, most: usize) {
    let room = most.saturating_sub(first.len());
    first.extend(more.into_iter().take(room));
}

/// A number of things, of which the first are named. `Display` names these, and counts the rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstNamed<T> {
    /// How many.
    pub count: usize,
    /// The first of them; at most [`FirstNamed::MOST_NAMED`].
    pub first: Vec<T>,
}

/// Virtual servers that no Service made.
pub type ForeignVirtualServers = FirstNamed<ServiceAddress>;

impl<T> FirstNamed<T> {
    /// How many are named.
    pub const MOST_NAMED: usize = 5;
}

impl<T: Clone> FirstNamed<T> {
    /// Adds more of them.
    pub(crate) fn extend(&mut self, more: &Self) {
        self.count += more.count;
        add_first(&mut self.first, more.first.iter().cloned(), Self::MOST_NAMED);
    }
}

impl<T> Default for FirstNamed<T> {
    fn default() -> Self {
        Self { count: 0, first: Vec::new() }
    }
}

/// Names the first in their order, and counts each once.
impl<'a, T: Clone + Ord> FromIterator<&'a T> for FirstNamed<T> {
    fn from_iter<I: IntoIterator<Item = &'a T>>(all: I) -> Self {
        let all: BTreeSet<_> = all.into_iter().collect();
        Self { count: all.len(), first: all.into_iter().take(Self::MOST_NAMED).cloned().collect() }
    }
}

impl<T: fmt::Display> fmt::Display for FirstNamed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named: Vec<_> = self.first.iter().map(ToString::to_string).collect();
        f.write_str(&named.join(", "))?;
        match self.count.saturating_sub(named.len()) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use ipvs::Protocol;

    use super::*;

    fn at(port: u16) -> ServiceAddress {
        ServiceAddress { protocol: Protocol::Tcp, ip: [192, 0, 2, 7].into(), port }
    }

    #[test]
    fn the_first_are_named_and_the_rest_is_counted() {
        let mut found: ForeignVirtualServers = [at(2), at(1)].iter().collect();
        assert_eq!(found.to_string(), "TCP 192.0.2.7:1, TCP 192.0.2.7:2");
        found.extend(&(3..10).map(at).collect::<Vec<_>>().iter().collect());
        assert_eq!((found.count, found.first.len()), (9, 5));
        assert!(found.to_string().ends_with("TCP 192.0.2.7:5 and 4 more"), "{found}");
    }
}
