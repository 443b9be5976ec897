//! Our tables in the real kernel.

use std::{borrow::Cow, collections::BTreeMap};

use ipvs::Family;
use netlink::{Errno, KernelError, OperationError, Socket};

use super::{
    generation::{Generation, OwnGenerations},
    installation::{CurrentTable, Shapes, Task},
    observed::{ObservedTable, known_elements},
    probe,
    transaction::{Transaction, settle_intervals},
};
use crate::{Element, Error, Feature, Netfilter, Observed, Operation, Policy, Ruleset, nft::message};

/// How often a read, or a transaction that builds on one, is tried if others change nf_tables meanwhile.
const ATTEMPTS: u32 = 5;

/// The real kernel, in the network namespace of the thread that opened it.
///
/// The cost of a transaction is that of its changes. Reading back costs more than the elements it returns:
/// for each 32 KiB of a dump the kernel walks the set from its beginning (`nf_tables_dump_set`), so that
/// 100,000 elements take longer to read than to write.
#[derive(Debug)]
pub struct KernelNetfilter {
    socket: Socket,
    /// The generations that are known to differ only by our own transactions.
    own: Option<OwnGenerations>,
    shapes: BTreeMap<Family, Shapes>,
    missing: BTreeMap<Family, Vec<Feature>>,
}

impl KernelNetfilter {
    /// Opens a netlink socket and probes what the kernel supports. Nothing is changed.
    pub fn open(policy: &Policy) -> Result<Self, Error> {
        let mut socket = super::open_socket()?;
        let mut missing = BTreeMap::new();
        for family in Family::BOTH {
            let lacks = probe::missing_features(&mut socket, policy, family)
                .map_err(|source| Error::new("probe what nf_tables supports", source))?;
            missing.insert(family, lacks);
        }
        Ok(Self::with(socket, policy, missing))
    }

    /// Opens a netlink socket for reading alone: nothing is probed, which would load modules. `missing` is
    /// what the kernel is known to lack, as of [`KernelNetfilter::missing_features`].
    pub fn open_unprobed(policy: &Policy, missing: BTreeMap<Family, Vec<Feature>>) -> Result<Self, Error> {
        Ok(Self::with(super::open_socket()?, policy, missing))
    }

    fn with(socket: Socket, policy: &Policy, missing: BTreeMap<Family, Vec<Feature>>) -> Self {
        let lacks = |family| missing.get(&family).map_or(&[][..], Vec::as_slice);
        let shapes = |family| (family, Shapes::new(policy, family, lacks(family)));
        let shapes = Family::BOTH.into_iter().map(shapes).collect();
        Self { socket, own: None, shapes, missing }
    }

    /// The features for the table of a family that the kernel lacked when this was opened. Without an essential one,
    /// installing the table fails. Without interval sets the table has no `allowed-sources`: no client reaches a
    /// restricted address, and adding an allowed source fails. Without counters no packet is counted.
    pub fn missing_features(&self, family: Family) -> &[Feature] {
        self.missing.get(&family).map_or(&[], Vec::as_slice)
    }

    /// The port of the socket, by which a [`Monitor`](crate::Monitor) recognises our own changes.
    pub fn port(&self) -> u32 {
        self.socket.port()
    }

    /// Reads our tables once.
    fn read(&mut self) -> Result<Observed, netlink::Error> {
        let mut observed = Observed::default();
        for (&family, shapes) in &self.shapes {
            let Some(table) = ObservedTable::read(&mut self.socket, family, shapes.chain_names())? else {
                continue;
            };
            let has_direct_return = Ruleset::has_direct_return(family, &table);
            if has_direct_return {
                observed.direct_return.insert(family);
            }
            let stages = shapes.with(has_direct_return);
            let elements = known_elements(&mut self.socket, family, &table, |_| true)?;
            if stages.installed.is_in(&table) && !elements.has_foreign {
                observed.installed.insert(family);
            } else if stages.prepared.is_in(&table) && !elements.has_foreign {
                observed.prepared.insert(family);
            }
            observed.elements.extend(elements.ours.into_iter().flatten());
        }
        Ok(observed)
    }

    /// One attempt to apply all changes. Unless `whatever_others_do`, the kernel refuses it if anybody has
    /// changed nf_tables since the tables were read.
    fn write(&mut self, operations: &[Operation], whatever_others_do: bool) -> Result<(), Error> {
        refuse_unsupported(operations, &self.missing)?;
        let tasks: Vec<_> =
            self.shapes.keys().filter_map(|family| Task::for_family(operations, *family)).collect();
        let makes_tables = tasks.iter().any(|task| task.table.is_some());
        let before = self.generation().map_err(not_read)?;
        let checked = (!tasks.is_empty() && !whatever_others_do).then_some(before);
        let mut transaction = Transaction::default();
        let mut operations = Cow::Borrowed(operations);
        for task in tasks {
            let Some(shapes) = self.shapes.get(&task.family) else { continue };
            let current = CurrentTable::read(&mut self.socket, shapes, &task).map_err(not_read)?;
            if let Some(table) = task.table {
                let direct_return = task.direct_return.unwrap_or(current.has_direct_return(task.family));
                shapes.with(direct_return).install(table, &mut transaction, &current);
            }
            if task.deletes_intervals {
                let there = current.elements.ours.into_iter().flatten().collect();
                operations = Cow::Owned(settle_intervals(&operations, task.family, &there));
            }
        }
        change_elements(&mut transaction, &operations);
        commit(&mut self.socket, &transaction, checked.map(|Generation(number)| number))?;
        // If this fails, the tables are only read once more. They also are after they were made: they may still have
        // what other programs have added.
        let now = self.generation().ok().filter(|_| !makes_tables);
        self.own = now.map(|now| OwnGenerations::committed(self.own, before, now));
        Ok(())
    }

    fn generation(&mut self) -> Result<Generation, netlink::Error> {
        message::generation(&mut self.socket).map(Generation)
    }
}

fn not_observed(source: netlink::Error) -> Error {
    Error::new("read our nf_tables tables", source)
}

fn not_read(source: netlink::Error) -> Error {
    Error::new("read our nf_tables table", source)
}

/// Sends the transaction. The error of a refused one names the request that failed.
pub(super) fn commit(
    socket: &mut Socket,
    transaction: &Transaction<'_>,
    generation: Option<u32>,
) -> Result<(), Error> {
    if transaction.is_empty() {
        return Ok(());
    }
    tracing::trace!(%transaction, "nf_tables transaction");
    socket.transact(&mut transaction.encode(generation)).map_err(|source| match source {
        netlink::Error::RolledBack(ref failure) if failure.error.errno != Errno::EPERM => {
            Error::RolledBack { operation: transaction.describe(failure.index), source }
        }
        source => Error::new("commit an nf_tables transaction", source),
    })
}

impl Netfilter for KernelNetfilter {
    fn observe(&mut self) -> Result<Observed, Error> {
        let before = self.generation().map_err(not_observed)?;
        let observed = self.read();
        if self.generation().map_err(not_observed)? == before {
            self.own = Some(OwnGenerations::observed(self.own, before));
            return Ok(Observed { generation: Some(before), ..observed.map_err(not_observed)? });
        }
        // Other programs keep changing nf_tables, mostly their own tables. That must not keep us from reading
        // ours: if ours is changed, a notification says so and it is read again.
        self.read().map_err(not_observed)
    }

    fn may_differ(&mut self, observed: &Observed) -> Result<bool, Error> {
        let now = self.generation().map_err(not_observed)?;
        let known = observed.generation.zip(self.own);
        Ok(known.is_none_or(|(then, own)| !own.lead(then, now)))
    }

    fn apply(&mut self, operations: &[Operation]) -> Result<(), Error> {
        for _ in 1..ATTEMPTS {
            match self.write(operations, false) {
                Err(error) if is_stale(&error) => {}
                outcome => return outcome,
            }
        }
        // Other programs commit all the time, but hardly to our table: the monitor would report it. What we
        // write is still right, or the kernel refuses it.
        self.write(operations, true)
    }
}

/// Refuses an element of a set that this kernel does not support, before it is sent.
fn refuse_unsupported(
    operations: &[Operation],
    missing: &BTreeMap<Family, Vec<Feature>>,
) -> Result<(), Error> {
    let lacks = |family| missing.get(&family).is_some_and(|lacks| lacks.contains(&Feature::IntervalSets));
    let unsupported = |operation: &&Operation| {
        let added = operation.element().filter(|(is_added, _)| *is_added);
        added.is_some_and(|(_, element)| element.is_interval() && lacks(element.family()))
    };
    let Some(operation) = operations.iter().find(unsupported) else { return Ok(()) };
    let message = format!("the kernel lacks {}", Feature::IntervalSets);
    let error = KernelError { errno: Errno::EOPNOTSUPP, message: Some(message.into()) };
    Err(Error::RolledBack { operation: operation.to_string(), source: error.into() })
}

/// Whether the table changed between reading it and the transaction that builds on that: ERESTART by
/// the generation check, ENOENT or an interruption while reading.
fn is_stale(error: &Error) -> bool {
    match error {
        Error::RolledBack { source, .. } => source.errno() == Some(Errno::ERESTART),
        Error::Operation(OperationError::Failed {
            source: netlink::Error::DumpInterrupted { .. }, ..
        }) => true,
        Error::Operation(error) => error.errno() == Some(Errno::ENOENT),
    }
}

/// Combines neighbouring changes of the same kind to the same set into one request.
fn change_elements(transaction: &mut Transaction<'_>, operations: &[Operation]) {
    let kind = |operation: &Operation| {
        operation.element().map(|(is_added, element)| (is_added, element.family(), element.set()))
    };
    for run in operations.chunk_by(|one, next| kind(one) == kind(next)) {
        let elements: Vec<Element> =
            run.iter().filter_map(Operation::element).map(|(_, element)| *element).collect();
        match run.first().and_then(Operation::element) {
            Some((true, _)) => transaction.add_elements(&elements),
            Some((false, _)) => transaction.delete_elements(&elements),
            None => {}
        }
    }
}

/// What goes over the wire. No part of the public API: it is for the tests, benches and fuzzers of the
/// workspace.
#[cfg(feature = "wire")]
pub mod wire {
    use netlink::Batch;

    use super::{Operation, Transaction, change_elements};

    /// Encodes the transaction that [`apply`](crate::Netfilter::apply) sends for operations on elements.
    /// Intervals that are deleted must exist.
    pub fn encode(operations: &[Operation]) -> Batch {
        let mut transaction = Transaction::default();
        change_elements(&mut transaction, operations);
        transaction.encode(None)
    }
}

#[cfg(test)]
mod tests {
    use ipvs::ServiceAddress;

    use super::*;
    use crate::AllowedSource;

    #[test]
    fn allowed_source_is_refused_with_the_reason_where_sets_of_intervals_are_missing() {
        let to = ServiceAddress { protocol: ipvs::Protocol::Tcp, ip: [192, 0, 2, 1].into(), port: 443 };
        let (first, last) = ([10, 0, 0, 0].into(), [10, 0, 0, 255].into());
        let allowed = Element::AllowedSource(AllowedSource { to, first, last });
        let operations = [Operation::AddElement(Element::Restricted(to)), Operation::AddElement(allowed)];
        let lacking = |family| BTreeMap::from([(family, vec![Feature::IntervalSets])]);

        let error = refuse_unsupported(&operations, &lacking(Family::V4)).unwrap_err();
        let Error::RolledBack { operation, source } = error else { panic!("{error:?}") };
        assert_eq!(operation, operations[1].to_string());
        assert!(
            source.to_string().ends_with(
                "the kernel lacks sets of intervals of concatenations (nft_set_pipapo, Linux 5.6)"
            ),
            "{source}"
        );

        let rest = [operations[0], Operation::DeleteElement(allowed)];
        assert!(
            refuse_unsupported(&rest, &lacking(Family::V4)).is_ok(),
            "what closes an address is not refused"
        );
        assert!(refuse_unsupported(&operations, &lacking(Family::V6)).is_ok(), "another family's lack");
    }
}
