//! How a table is made, from what the kernel has already; and how it is removed, or handed over to another program.

use ipvs::Family;
use netlink::{Errno, Socket, if_exists};

use super::{
    client::commit,
    observed::{Elements, ObservedTable, known_elements, named_chains},
    open_socket,
    ruleset::{OF_NEW_FLOWS, input_of_open_flows},
    transaction::{self, Request, Transaction},
};
use crate::{
    Element, Error, Feature, Operation, Policy, Ruleset,
    nft::{
        TABLE,
        message::{delete_table, has_table},
    },
};

/// Our table of one family in each of its shapes.
#[derive(Debug)]
pub(super) struct Shapes {
    usual: Stages,
    direct_return: Stages,
}

impl Shapes {
    /// The shapes that the kernel supports. The table lacks `allowed-sources` without interval sets, its counters without
    /// counters, and the chain `untracked` where the kernel cannot leave packets out of conntrack.
    pub(super) fn new(policy: &Policy, family: Family, missing: &[Feature]) -> Self {
        let cannot_untrack = missing.contains(&Feature::Untracking);
        let untracked_pods = policy.untracked_pods.iter().filter(|_| !cannot_untrack).copied().collect();
        let policy = &Policy { untracked_pods, ..policy.clone() };
        let stages = |mut installed: Ruleset| {
            if missing.contains(&Feature::IntervalSets) {
                installed = installed.without(Element::ALLOWED_SOURCES);
            }
            if missing.contains(&Feature::Counters) {
                installed = installed.without_counters();
            }
            Stages { prepared: installed.prepared(), installed }
        };
        Self {
            usual: stages(Ruleset::new(policy, family)),
            direct_return: stages(Ruleset::with_direct_return(policy, family)),
        }
    }

    /// The shape with or without direct return.
    pub(super) fn with(&self, direct_return: bool) -> &Stages {
        if direct_return { &self.direct_return } else { &self.usual }
    }

    /// The names of all chains.
    pub(super) fn chain_names(&self) -> impl Iterator<Item = &'static str> {
        self.direct_return.installed.chain_names()
    }
}

/// Our table of one family before it takes flows from the destination NAT of others, and from then on.
#[derive(Debug)]
pub(super) struct Stages {
    pub(super) prepared: Ruleset,
    pub(super) installed: Ruleset,
}

impl Stages {
    /// Adds what makes the table.
    pub(super) fn install<'a>(
        &'a self,
        table: Table,
        transaction: &mut Transaction<'a>,
        current: &CurrentTable,
    ) {
        let takes_flows = current.table.as_ref().is_some_and(ObservedTable::takes_flows);
        let only_prepares = table == Table::Prepared && !takes_flows;
        let wanted = if only_prepares { &self.prepared } else { &self.installed };
        wanted.install(transaction, current.table.as_ref(), &current.elements);
    }
}

/// The part of the work for one family that depends on the content of its table.
pub(super) struct Task {
    pub(super) family: Family,
    /// How to make the table, if it is to be made.
    pub(super) table: Option<Table>,
    /// Whether it is to have direct return, if that is to change.
    pub(super) direct_return: Option<bool>,
    pub(super) deletes_intervals: bool,
}

/// How a table is to be made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Table {
    /// Without the rules that take flows from others, which a new table lacks, and one that was
    /// [handed over](hand_over()). One that has some of them is made whole.
    Prepared,
    Installed,
}

impl Task {
    pub(super) fn for_family(operations: &[Operation], family: Family) -> Option<Self> {
        let contains = |operation| operations.contains(&operation);
        let direct_return = if contains(Operation::AddDirectReturn(family)) {
            Some(true)
        } else {
            contains(Operation::RemoveDirectReturn(family)).then_some(false)
        };
        let table = if contains(Operation::InstallTable(family)) {
            Some(Table::Installed)
        } else {
            // A table that takes flows keeps doing so.
            let is_made = contains(Operation::PrepareTable(family)) || direct_return.is_some();
            is_made.then_some(Table::Prepared)
        };
        let deletes_intervals = transaction::deletes_intervals(operations, family);
        let task = Self { family, table, direct_return, deletes_intervals };
        (table.is_some() || deletes_intervals).then_some(task)
    }
}

/// The table of one family in the kernel, as far as a task depends on it.
pub(super) struct CurrentTable {
    pub(super) table: Option<ObservedTable>,
    pub(super) elements: Elements,
}

impl CurrentTable {
    pub(super) fn read(socket: &mut Socket, shapes: &Shapes, task: &Task) -> Result<Self, netlink::Error> {
        let table = ObservedTable::read(socket, task.family, shapes.chain_names())?;
        let is_prepared = |table| [false, true].iter().any(|with| shapes.with(*with).prepared.is_in(table));
        let is_prepared = table.as_ref().is_some_and(is_prepared);
        let elements = match &table {
            // Its sets stay as they are.
            Some(_) if is_prepared && !task.deletes_intervals => Elements::default(),
            Some(table) => {
                known_elements(socket, task.family, table, |set| task.table.is_some() || set.intervals)?
            }
            None => Elements::default(),
        };
        Ok(Self { table, elements })
    }

    /// Whether the table has direct return.
    pub(super) fn has_direct_return(&self, family: Family) -> bool {
        self.table.as_ref().is_some_and(|table| Ruleset::has_direct_return(family, table))
    }
}

/// Deletes our table of a family, with everything in it. Returns whether it existed.
pub fn uninstall(family: Family) -> Result<bool, Error> {
    delete_table(&mut open_socket()?, family, TABLE)
        .map_err(|source| Error::new("delete our nf_tables table", source))
}

/// Whether [`uninstall`] would delete a table. Writes nothing.
pub fn is_installed(family: Family) -> Result<bool, Error> {
    has_table(&mut open_socket()?, family, TABLE)
        .map_err(|source| Error::new("read our nf_tables table", source))
}

/// Removes from our table of a family, in one transaction, the rules that apply to new flows to Services:
/// these go where another program's destination NAT sends them, and our source ranges and the policy Local,
/// which no longer follow the Services, are not enforced. What was handed over before stays so.
///
/// What open flows need stays: NAT was decided with their first packets. A new flow to a port of a VIP that
/// no Service has, and that no other program redirects, is still rejected. The daemon makes the table whole
/// again when it next starts, and once more takes flows from others last of all.
pub fn hand_over(family: Family) -> Result<(), Error> {
    let mut socket = open_socket()?;
    let input = input_of_open_flows();
    let names = OF_NEW_FLOWS.into_iter().chain([input.name]);
    // Without nf_tables the kernel has no handler for the message (`nfnetlink_rcv_msg`).
    let there = if_exists(named_chains(&mut socket, family, names), &[Errno::EINVAL])
        .map_err(|source| Error::new("read our nf_tables table", source))?
        .unwrap_or_default();
    let has = |name: &str| there.iter().any(|chain| *chain.name == *name);
    let mut transaction = Transaction::default();
    for name in OF_NEW_FLOWS.into_iter().filter(|name| has(name)) {
        transaction.push(Request::FlushChain(family, name));
        transaction.push(Request::DeleteChain(family, name.into()));
    }
    if transaction.is_empty() {
        return Ok(());
    }
    if has(input.name) {
        transaction.push(Request::FlushChain(family, input.name));
        for rule in &input.rules {
            transaction.push(Request::AddRule(family, input.name, rule));
        }
    }
    commit(&mut socket, &transaction, None)
}
