//! What something else had changed: operations about nothing that is known to have changed.

use std::{
    collections::{BTreeMap, HashSet},
    mem,
};

use service::Touched;
use watcher::{Operation, Plan};

use crate::{Repaired, Report, about::is_about};

/// What of it is as it should be again.
#[derive(Debug, Default)]
pub(crate) struct Repairs {
    /// The first ones, in words.
    pub(crate) first: Vec<String>,
    pub(crate) counts: BTreeMap<Repaired, usize>,
}

/// What of it is not yet, and what is not to be taken for it.
#[derive(Debug, Default)]
pub(crate) struct Unrepaired {
    /// Whether the kernel was read before: what the first reading finds is what an earlier daemon left.
    adopted: bool,
    /// What could not be put right. By the time it can, it is known to have changed: whatever fails is compared again.
    foreign: HashSet<Operation>,
    /// Tables and kube-ipvs0 that we could not make: there is no key by which they would be known to be missing.
    foundations: HashSet<Operation>,
}

impl Unrepaired {
    /// The kernel was read: what is found from now on was changed since.
    pub(crate) fn adopted(&mut self) {
        self.adopted = true;
    }

    /// Whether it was.
    pub(crate) fn has_adopted(&self) -> bool {
        self.adopted
    }

    /// Takes in what came of a plan, but for what failed all of it: what it repaired.
    pub(crate) fn settle(
        &mut self,
        plan: &Plan,
        touched: &Touched,
        failures: &[(Operation, String)],
    ) -> Repairs {
        let failed: HashSet<_> = failures.iter().map(|(operation, _)| operation).collect();
        let (foreign, foundations) = (mem::take(&mut self.foreign), mem::take(&mut self.foundations));
        let mut repairs = Repairs::default();
        for operation in plan.operations() {
            let unexpected =
                self.adopted && !is_about(&operation, touched) && !foundations.contains(&operation);
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

impl Repairs {
    fn add(&mut self, operation: &Operation) {
        *self.counts.entry(Repaired::by(operation)).or_default() += 1;
        if self.first.len() < Report::MOST_REPAIRS {
            self.first.push(operation.to_string());
        }
    }
}
