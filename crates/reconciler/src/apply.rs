//! Carrying out a plan.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
};

use ipvs::{Command, Id, Protocol, Scheduler, ServiceAddress};
use netfilter::{
    Change::{self, AddElement, DeleteElement, InstallTable, PrepareTable},
    Element,
};
use netlink::Errno;
use tracing::debug_span;
use watcher::{Batch, Kernel, Observed, Operation, OperationKind, Plan, ReadError, one_line};

use crate::{Failure, Report, Seam, closed::Closed, schedulers::scheduler, stale_flows::StaleFlows};

/// What came of a plan.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// How many operations were carried out, by kind.
    pub(crate) done: BTreeMap<OperationKind, usize>,
    /// The first of them, in words.
    pub(crate) first_done: Vec<String>,
    /// The operations that were not, with the cause, in words.
    pub(crate) failures: Vec<(Operation, String)>,
    /// The same in numbers, and what could not be read.
    pub(crate) failed: BTreeMap<(Seam, Failure), usize>,
    /// TCP real servers removed although they had connections, and how many.
    pub(crate) cut_off: Vec<(Operation, u64)>,
    /// UDP flows that conntrack may still hold to a way that is not right any more.
    pub(crate) stale_flows: StaleFlows,
    /// Schedulers that the kernel does not have, of virtual servers that were to get them.
    pub(crate) lacking: BTreeSet<Scheduler>,
    /// Why the kernel could not be read, if that is what happened.
    pub(crate) unread: Option<String>,
    /// An answer of the kernel was lost, or contradicts the image of it: it must be read anew.
    pub(crate) doubtful: bool,
}

impl Outcome {
    /// Adds what came of a second plan.
    pub(crate) fn extend(&mut self, other: Self) {
        for (kind, count) in other.done {
            *self.done.entry(kind).or_default() += count;
        }
        let room = Report::MOST_DONE.saturating_sub(self.first_done.len());
        self.first_done.extend(other.first_done.into_iter().take(room));
        self.failures.extend(other.failures);
        for (kind, count) in other.failed {
            *self.failed.entry(kind).or_default() += count;
        }
        self.cut_off.extend(other.cut_off);
        self.stale_flows.extend(other.stale_flows);
        self.lacking.extend(other.lacking);
        self.unread = self.unread.take().or(other.unread);
        self.doubtful |= other.doubtful;
    }

    /// Whether what all the rest is built on could not be made.
    pub(crate) fn lacks_foundation(&self) -> bool {
        self.failures.iter().any(|(operation, _)| operation.is_foundation())
    }

    /// Nothing was done, because the kernel could not be read.
    pub(crate) fn unread(error: &ReadError) -> Self {
        let failed = BTreeMap::from([((Seam::unread(error), Failure::Unread), 1)]);
        Self { unread: Some(one_line(error)), doubtful: true, failed, ..Self::default() }
    }
}

/// Carries out the operations in order, in as few exchanges with the kernel as possible, and keeps
/// `observed` in step.
///
/// A failed operation does not stop the others, except those that would be wrong without it ([`Closed`]): a
/// virtual server whose elements in our tables are not as they should be, its real servers, a VIP with nothing
/// behind it, and the elements of what could not be removed.
pub(crate) fn apply(plan: &Plan, kernel: &mut Kernel, observed: &mut Observed, closed: Closed) -> Outcome {
    let mut run = Run { kernel, observed, outcome: Outcome::default(), closed };
    for batch in &plan.batches {
        match batch {
            Batch::Ipvs(commands) => {
                debug_span!("ipvs", operations = commands.len()).in_scope(|| run.ipvs(commands));
            }
            Batch::Netfilter(changes) => {
                debug_span!("nf_tables", operations = changes.len()).in_scope(|| run.netfilter(changes));
            }
            Batch::Link(changes) => {
                debug_span!("links", operations = changes.len()).in_scope(|| run.links(changes));
            }
        }
    }
    run.outcome
}

struct Run<'a> {
    kernel: &'a mut Kernel,
    observed: &'a mut Observed,
    outcome: Outcome,
    closed: Closed,
}

impl Run<'_> {
    fn ipvs(&mut self, commands: &[Command]) {
        let commands = self.permitted(commands);
        match self.kernel.ipvs.apply(&commands) {
            Ok(failed) => {
                // Of a virtual server that the image has: somebody else removed it.
                self.outcome.doubtful |= failed.iter().any(|failure| failure.refusal.errno == Errno::ESRCH);
                let lacking = failed.iter().filter(|failure| failure.refusal.errno == Errno::ENOENT);
                let lacking = lacking.filter_map(|failure| scheduler(commands.get(failure.index)?));
                self.outcome.lacking.extend(lacking);
                self.settle(&commands, failed);
            }
            Err(error) => self.give_up(&commands, &error),
        }
    }

    fn links(&mut self, changes: &[dummy_interface::Change]) {
        let changes = self.permitted(changes);
        match self.kernel.links.apply(&changes) {
            Ok(failed) => {
                self.outcome.doubtful |= failed.iter().any(|failure| failure.refusal.errno == Errno::ENODEV);
                self.settle(&changes, failed);
            }
            Err(error) => self.give_up(&changes, &error),
        }
    }

    /// One transaction; if it is refused, its halves, so that one bad element costs little but itself.
    fn netfilter(&mut self, changes: &[Change]) {
        let changes = self.permitted(changes);
        if changes.is_empty() {
            return;
        }
        match self.kernel.netfilter.apply(&changes) {
            Ok(()) => self.settle(&changes, Vec::new()),
            Err(error @ netfilter::Error::RolledBack { .. }) if errno(&error) != Some(Errno::ENOENT) => {
                if let Some([left, right]) = halves(&changes) {
                    self.netfilter(&left);
                    self.netfilter(&right);
                    return;
                }
                // Clients of one address that the image does not have are in the way of others.
                self.outcome.doubtful |= errno(&error) == Some(Errno::EEXIST);
                let cause = one_line(&error);
                let (restrictions, rest): (Vec<Change>, Vec<_>) =
                    changes.iter().partition(|change| restricts(change));
                let (refused, still) =
                    if rest.is_empty() { (restrictions, rest) } else { (rest, restrictions) };
                for change in refused {
                    self.fail(&change.into(), Failure::Refused, cause.clone());
                }
                // Whom an address lets in may be unknown to the kernel; that it is not everybody still holds.
                self.netfilter(&still);
            }
            // Among others where the table that all of it builds on is not there: then the image is wrong, and
            // trying the parts will not help.
            Err(error) => self.give_up(&changes, &error),
        }
    }

    /// What of a batch may be done: nearly always all of it. The rest is put off.
    fn permitted<'b, T: Clone + Into<Operation>>(&mut self, batch: &'b [T]) -> Cow<'b, [T]> {
        let objection = |run: &Self, one: &T| run.closed.objection(&one.clone().into(), run.observed);
        let Some(first) = batch.iter().position(|one| objection(self, one).is_some()) else {
            return Cow::Borrowed(batch);
        };
        let (permitted, rest) = batch.split_at(first);
        let mut permitted = permitted.to_vec();
        for one in rest {
            match objection(self, one) {
                Some(cause) => self.fail(&one.clone().into(), Failure::PutOff, cause.to_owned()),
                None => permitted.push(one.clone()),
            }
        }
        Cow::Owned(permitted)
    }

    /// Records a batch of which some operations failed, by position.
    fn settle<T: Clone + Into<Operation>>(&mut self, batch: &[T], failed: Vec<netlink::Failure>) {
        let mut failed = failed.into_iter().peekable();
        for (index, operation) in batch.iter().cloned().map(Into::into).enumerate() {
            match failed.next_if(|failed| failed.index == index) {
                Some(failed) => self.fail(&operation, Failure::Refused, failed.refusal.to_string()),
                None => {
                    self.outcome.cut_off.extend(cut_off(&operation, self.observed));
                    self.outcome.stale_flows.take(&operation, self.observed);
                    self.observed.carried_out(&operation);
                    *self.outcome.done.entry(operation.kind()).or_default() += 1;
                    if self.outcome.first_done.len() < Report::MOST_DONE {
                        self.outcome.first_done.push(operation.to_string());
                    }
                }
            }
        }
    }

    /// Records a batch of which nothing is known to have been done.
    fn give_up<T: Clone + Into<Operation>>(
        &mut self,
        batch: &[T],
        error: &(dyn std::error::Error + 'static),
    ) {
        self.outcome.doubtful = true;
        let cause = one_line(error);
        for operation in batch.iter().cloned().map(Into::into) {
            // It may have been done. The next full reading would not show that it was.
            self.outcome.stale_flows.take(&operation, self.observed);
            self.fail(&operation, Failure::InDoubt, cause.clone());
        }
    }

    fn fail(&mut self, operation: &Operation, how: Failure, cause: String) {
        // No key stands for a device or a table: only a look at everything finds it missing.
        self.outcome.doubtful |= matches!(
            operation,
            Operation::Link(dummy_interface::Change::EnsureDevice)
                | Operation::Netfilter(PrepareTable(_) | InstallTable(_))
        );
        self.closed.without(operation, self.observed);
        *self.outcome.failed.entry((Seam::of(operation), how)).or_default() += 1;
        self.outcome.failures.push((operation.clone(), cause));
    }
}

fn restricts(change: &Change) -> bool {
    matches!(change, AddElement(Element::Restricted(_)))
}

/// What belongs together in a transaction.
#[derive(PartialEq, Eq, Hash)]
enum Part {
    /// The elements of one virtual server. Some of them without the others would let in whom they should not, or
    /// keep out whom they should let in.
    VirtualServer(ServiceAddress),
    /// A table, or an element of no virtual server.
    Change(Change),
}

/// The halves of a transaction, each in the order of the whole; `None` if it is a single part.
fn halves(changes: &[Change]) -> Option<[Vec<Change>; 2]> {
    let mut parts = HashMap::new();
    let mut number = |change: &Change| {
        let of = match change {
            AddElement(element) | DeleteElement(element) => element.virtual_server(),
            PrepareTable(_) | InstallTable(_) => None,
        };
        let part = of.map_or(Part::Change(*change), |of| Part::VirtualServer(*of));
        let next = parts.len();
        *parts.entry(part).or_insert(next)
    };
    let numbered: Vec<_> = changes.iter().map(|change| (number(change), *change)).collect();
    let middle = parts.len() / 2;
    let (left, right): (Vec<_>, Vec<_>) = numbered.into_iter().partition(|(part, _)| *part < middle);
    let halves = [left, right].map(|half| half.into_iter().map(|(_, change)| change).collect());
    (middle > 0).then_some(halves)
}

/// The connections that a TCP real server has when it is removed, if it has any.
fn cut_off(operation: &Operation, observed: &Observed) -> Option<(Operation, u64)> {
    let Operation::Ipvs(Command::DeleteRealServer(Id::Address(of), server)) = operation else { return None };
    let connections = observed.virtual_servers.get(of)?.real_servers.get(server)?.connections;
    (of.protocol == Protocol::Tcp && connections > 0).then(|| (operation.clone(), connections))
}

fn errno(error: &netfilter::Error) -> Option<Errno> {
    match error {
        netfilter::Error::RolledBack { source, .. } => source.errno(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use ipvs::{RealServer, Scheduler, VirtualServer};
    use testkit::FakeKernel;
    use watcher::{RealServerImage, VirtualServerImage};

    use super::*;

    /// Removes a real server with three connections.
    fn removal(protocol: Protocol) -> Outcome {
        let of = ServiceAddress { protocol, ip: [10, 96, 0, 1].into(), port: 80 };
        let config = RealServer::masquerade([10, 244, 0, 1].into(), 8080);
        let server = RealServerImage { config, connections: 3, expired: true };
        let image = VirtualServerImage {
            config: VirtualServer::new(of, Scheduler::RR),
            real_servers: [server].into_iter().collect(),
        };
        let mut observed =
            Observed { virtual_servers: [(of, image)].into_iter().collect(), ..Observed::default() };
        let (ipvs, netfilter, links) = FakeKernel::new().seams();
        let plan = [Command::DeleteRealServer(of.into(), config.address).into()].into_iter().collect();
        apply(&plan, &mut Kernel { ipvs, netfilter, links }, &mut observed, Closed::new(true))
    }

    #[test]
    fn who_is_cut_off_is_counted() {
        let outcome = removal(Protocol::Tcp);
        let told: Vec<_> = outcome.cut_off.iter().map(|(what, count)| (what.to_string(), *count)).collect();
        assert_eq!(told, [("delete real server TCP 10.96.0.1:80 -> 10.244.0.1:8080".to_owned(), 3)]);
        assert_eq!(removal(Protocol::Udp).cut_off, [], "UDP has nothing to be cut off");
    }
}
