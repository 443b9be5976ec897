//! Making a table: what is to be made, and what is there already.

use ipvs::Family;
use netlink::Socket;

use super::{
    intervals,
    observed::{self, Elements, ObservedTable},
    transaction::Transaction,
};
use crate::{Operation, Ruleset, nft::set::Set};

/// Our table of one family before it takes flows from the destination NAT of others, and from then on.
#[derive(Debug)]
pub(super) struct Stages {
    pub(super) prepared: Ruleset,
    pub(super) installed: Ruleset,
}

impl Stages {
    /// Adds what makes the table.
    pub(super) fn install<'a>(&'a self, table: Table, transaction: &mut Transaction<'a>, there: &There) {
        let takes_flows = there.table.as_ref().is_some_and(|table| self.installed.takes_flows(table));
        let only_prepares = table == Table::Prepared && !takes_flows;
        let wanted = if only_prepares { &self.prepared } else { &self.installed };
        wanted.install(transaction, there.table.as_ref(), &there.elements);
    }
}

/// What must be done for one family that depends on what its table holds.
pub(super) struct Task {
    pub(super) family: Family,
    /// How to make the table, if it is to be made.
    pub(super) table: Option<Table>,
    pub(super) deletes_intervals: bool,
}

/// How a table is to be made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Table {
    /// Without the rules that take flows from others, which a new table lacks, and one that was
    /// [handed over](super::hand_over()). One that has some of them is made whole.
    Prepared,
    Installed,
}

impl Task {
    pub(super) fn for_family(operations: &[Operation], family: Family) -> Option<Self> {
        let table = if operations.contains(&Operation::InstallTable(family)) {
            Some(Table::Installed)
        } else {
            operations.contains(&Operation::PrepareTable(family)).then_some(Table::Prepared)
        };
        let deletes_intervals = intervals::are_deleted(operations, family);
        (table.is_some() || deletes_intervals).then_some(Self { family, table, deletes_intervals })
    }
}

/// What the table of one family holds now, as far as a task depends on it.
pub(super) struct There {
    pub(super) table: Option<ObservedTable>,
    pub(super) elements: Elements,
}

pub(super) fn look(socket: &mut Socket, stages: &Stages, task: &Task) -> Result<There, netlink::Error> {
    let table = ObservedTable::read(socket, task.family, stages.installed.chain_names())?;
    let is_prepared = table.as_ref().is_some_and(|table| stages.prepared.is_in(table));
    let elements = match &table {
        // Its sets stay as they are.
        Some(_) if is_prepared && !task.deletes_intervals => Elements::default(),
        Some(table) => {
            known_elements(socket, task.family, table, |set| task.table.is_some() || set.intervals)?
        }
        None => Elements::default(),
    };
    Ok(There { table, elements })
}

/// The elements of interest, set by set, in the sets that have our names and types.
pub(super) fn known_elements(
    socket: &mut Socket,
    family: Family,
    table: &ObservedTable,
    of_interest: impl Fn(&Set) -> bool,
) -> Result<Elements, netlink::Error> {
    let mut elements = Elements::default();
    for set in Ruleset::known_sets().iter().filter(|set| of_interest(set)) {
        if table.sets.iter().any(|observed| set.is(family, observed)) {
            observed::read_elements(socket, family, set.name, &mut elements)?;
        }
    }
    Ok(elements)
}
