//! Repairs: operations on keys that are not known to have changed, so that something else must have changed
//! them.

use std::{
    collections::{BTreeMap, HashSet},
    mem,
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

/// What could not be repaired yet, and our own failed work, which must not be counted as a repair.
#[derive(Debug, Default)]
pub(crate) struct Unrepaired {
    /// Whether the kernel was read before: the first reading finds what an earlier daemon left, which is no
    /// repair.
    adopted: bool,
    /// Repairs that failed. By the time they succeed, their keys are known to have changed: whatever fails is
    /// compared again.
    foreign: HashSet<Operation>,
    /// Tables and kube-ipvs0 that we could not make. No key stands for them by which they would be known to
    /// be missing.
    foundations: HashSet<Operation>,
}

impl Unrepaired {
    /// Takes in that the kernel was read: what is found from now on was changed since.
    pub(crate) fn adopted(&mut self) {
        self.adopted = true;
    }

    /// Whether the kernel was read before.
    pub(crate) fn has_adopted(&self) -> bool {
        self.adopted
    }

    /// Splits the plan's operations into repairs, which are returned, and repairs that failed, which are
    /// remembered.
    pub(crate) fn settle(
        &mut self,
        plan: &Plan,
        touched: &Touched,
        failures: &[(Operation, String)],
    ) -> RepairSummary {
        let failed: HashSet<_> = failures.iter().map(|(operation, _)| operation).collect();
        let (foreign, foundations) = (mem::take(&mut self.foreign), mem::take(&mut self.foundations));
        let mut repairs = RepairSummary::default();
        // At the start there is nothing to repair, and the plan is the largest of all.
        if !self.adopted && foreign.is_empty() && failures.is_empty() {
            return repairs;
        }
        for operation in plan.operations() {
            let is_touched = DiffKey::of(&operation).is_some_and(|key| key.is_in(touched));
            let unexpected = self.adopted && !is_touched && !foundations.contains(&operation);
            let is_repair = unexpected || foreign.contains(&operation);
            match (is_repair, failed.contains(&operation)) {
                (true, false) => repairs.add(&operation),
                (true, true) => _ = self.foreign.insert(operation),
                (false, true) if operation.is_foundation() => _ = self.foundations.insert(operation),
                (false, _) => {}
            }
        }
        repairs
    }
}

impl RepairSummary {
    fn add(&mut self, operation: &Operation) {
        *self.counts.entry(RepairKind::by(operation)).or_default() += 1;
        if self.first.len() < SyncReport::MOST_REPAIRS {
            self.first.push(operation.to_string());
        }
    }
}
