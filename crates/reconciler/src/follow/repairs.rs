//! Repairs: operations on keys without a known change, which another program must have changed.

use std::{
    collections::{BTreeMap, HashSet},
    hash::{BuildHasher as _, RandomState},
    mem,
    sync::Arc,
};

use service::Touched;
use watcher::{Operation, Plan};

use crate::{RepairKind, SyncReport, sync::DiffKey};

/// The repairs of one sync.
#[derive(Debug, Default)]
pub(crate) struct RepairSummary {
    /// The first repairs, in words.
    pub(crate) first: Vec<String>,
    pub(crate) counts: BTreeMap<RepairKind, usize>,
}

/// Repairs that failed, and our own failed work, which must not be counted as a repair.
#[derive(Debug, Default)]
pub(crate) struct Unrepaired {
    /// Whether the kernel was read before. The first reading finds what an earlier daemon left, which is no repair.
    adopted: bool,
    /// The digests of repairs that failed. When they succeed, their keys are touched ones, because the key of each failed
    /// operation is compared again.
    foreign: HashSet<u64>,
    digests: RandomState,
    /// Our failed creations of tables and kube-ipvs0. These have no key by which they would be known to be missing.
    foundations: HashSet<Operation>,
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

    /// Returns the plan's operations that repaired something, and remembers the repairs that failed.
    pub(crate) fn split_repairs(
        &mut self,
        plan: &Plan,
        touched: &Touched,
        failures: &[(Operation, Arc<str>)],
    ) -> RepairSummary {
        let failed: HashSet<_> = failures.iter().map(|(operation, _)| operation).collect();
        let (foreign, foundations) = (mem::take(&mut self.foreign), mem::take(&mut self.foundations));
        let mut repairs = RepairSummary::default();
        // At the start there is nothing to repair, and the plan is the largest of all.
        if !self.adopted && foreign.is_empty() && failures.is_empty() {
            return repairs;
        }
        for operation in plan.operations() {
            let is_touched = DiffKey::from_operation(&operation).is_some_and(|key| key.is_touched(touched));
            let unexpected = self.adopted && !is_touched && !foundations.contains(&operation);
            let digest = self.digests.hash_one(&operation);
            let is_repair = unexpected || foreign.contains(&digest);
            match (is_repair, failed.contains(&operation)) {
                (true, false) => repairs.add(&operation),
                (true, true) => _ = self.foreign.insert(digest),
                (false, true) if operation.is_foundation() => _ = self.foundations.insert(operation),
                (false, _) => {}
            }
        }
        repairs
    }
}

impl RepairSummary {
    fn add(&mut self, operation: &Operation) {
        *self.counts.entry(RepairKind::from_operation(operation)).or_default() += 1;
        if self.first.len() < SyncReport::MOST_REPAIRS {
            self.first.push(operation.to_string());
        }
    }
}
