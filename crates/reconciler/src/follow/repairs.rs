//! Repairs: operations on keys that differ without a known change, because another program must have changed them.

use std::collections::BTreeMap;

use service::{Dirty, Key};
use watcher::Operation;

use crate::{
    RepairKind, SyncReport,
    report::{add_counts, add_first},
};

/// The repairs of one sync.
#[derive(Debug, Default)]
pub(crate) struct RepairSummary {
    /// The first repairs, as text.
    pub(crate) first: Vec<String>,
    pub(crate) counts: BTreeMap<RepairKind, usize>,
}

/// What another program has changed and is not repaired.
#[derive(Debug, Default)]
pub(crate) struct Unrepaired {
    /// Whether the kernel was read before. The first reading finds what an earlier daemon left, which is no repair.
    adopted: bool,
    keys: Dirty,
}

impl Unrepaired {
    /// Records that the kernel was read: later differences are changes since then.
    pub(crate) fn mark_adopted(&mut self) {
        self.adopted = true;
    }

    /// Whether the kernel was read before.
    pub(crate) fn has_adopted(&self) -> bool {
        self.adopted
    }

    /// Records what differs from the image, and is not among the keys that change anyway.
    pub(crate) fn add(&mut self, drift: &Dirty, expected: &Dirty) {
        if self.adopted {
            self.keys.extend(drift.keys().filter(|key| !expected.contains(key)));
        }
    }

    /// Whether an operation on this key repairs something.
    pub(crate) fn contains(&self, key: &Key) -> bool {
        self.keys.contains(key)
    }

    /// Records what remains to be looked at after a sync: the rest is as desired.
    pub(crate) fn retain(&mut self, remaining: &Dirty) {
        if !self.keys.is_empty() {
            self.keys = self.keys.keys().filter(|key| remaining.contains(key)).collect();
        }
    }
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
