//! Carrying out a plan.

use std::{borrow::Cow, collections::HashSet, sync::Arc, time::Instant};

use ipvs::{Command, FailedRequest};
use netfilter::Operation::AddDirectReturn;
use netlink::Errno;
use service::one_line;
use tracing::{Level, debug, enabled, trace_span};
use watcher::{Batch, Kernel, Operation, Plan, connections_cut_off};

use super::{
    Reconciler,
    pace::{Pace, Work},
    pass::Pass,
    transactions::{Transaction, bisect, next_transaction, restricts},
};
use crate::{
    FailureKind, PLAN_LOG, Subsystem, SyncReport,
    follow::{Unrepaired, schedulers::assigned_scheduler},
};

impl Reconciler {
    /// Logs the operations and carries them out in order, in as few exchanges with the kernel as possible, and
    /// keeps the image in step.
    ///
    /// A failed operation does not stop the others, except those that depend on it
    /// ([`Failed`](super::outcome::Failed)): a virtual server whose elements in our tables are wrong, its real
    /// servers, a VIP without any virtual server, and the removal of elements that something still in place
    /// needs.
    ///
    /// It ends early where the slice of time is over, after one exchange at least. What was not reached is in the
    /// outcome.
    pub(super) fn apply(&mut self, plan: &Plan, pass: &mut Pass<'_>) {
        if enabled!(target: PLAN_LOG, Level::DEBUG) {
            plan.operations().for_each(|operation| debug!(target: PLAN_LOG, "{operation}"));
        }
        let failures_before = pass.outcome.failures.len();
        let Self { kernel, pace, unrepaired, .. } = self;
        let mut executor = Executor { kernel, pace, unrepaired, done_before: pass.outcome.done(), pass };
        for batch in &plan.batches {
            match batch {
                Batch::Ipvs(commands) => {
                    trace_span!("ipvs", operations = commands.len())
                        .in_scope(|| executor.in_exchanges(commands, work, Executor::ipvs));
                }
                Batch::Netfilter(changes) => {
                    trace_span!("nf_tables", operations = changes.len())
                        .in_scope(|| executor.netfilter(changes));
                }
                Batch::DummyInterface(changes) => {
                    trace_span!("links", operations = changes.len()).in_scope(|| {
                        executor.in_exchanges(changes, |_| Work::Links, Executor::dummy_interface);
                    });
                }
            }
        }
        pass.note(plan, failures_before);
    }
}

/// The answers of a kernel without a kind of device, or without the family.
const NO_SUCH_DEVICES: [Errno; 2] = [Errno::EOPNOTSUPP, Errno::EAFNOSUPPORT];

struct Executor<'a, 'b> {
    kernel: &'a mut Kernel,
    pace: &'a mut Pace,
    unrepaired: &'a Unrepaired,
    /// How many operations of earlier plans were carried out.
    done_before: usize,
    pass: &'a mut Pass<'b>,
}

impl Executor<'_, '_> {
    /// Carries out a batch, in exchanges that do not take long.
    fn in_exchanges<T: Clone + Into<Operation>>(
        &mut self,
        batch: &[T],
        work: fn(&T) -> Work,
        exchange: fn(&mut Self, &[T]),
    ) {
        let mut rest = batch;
        while !rest.is_empty() {
            if self.leaves(rest) {
                return;
            }
            let (operations, kind) = self.pace.next_exchange(rest, work);
            let (now, later) = rest.split_at(operations);
            self.timed(kind, operations, |executor| exchange(executor, now));
            rest = later;
        }
    }

    /// Updates the pace with the duration of an exchange. An exchange with failed operations does not measure
    /// the kernel.
    fn timed(&mut self, work: Work, operations: usize, exchange: impl FnOnce(&mut Self)) {
        let (begin, failures) = (Instant::now(), self.pass.outcome.failures.len());
        exchange(self);
        if self.pass.outcome.failures.len() == failures {
            self.pace.update(work, operations, begin.elapsed());
        }
    }

    /// Leaves operations to the next sync if the slice is over, and returns whether it is. Something of each
    /// plan that is begun is done first.
    fn leaves<T: Clone + Into<Operation>>(&mut self, batch: &[T]) -> bool {
        let leaves = self.pass.outcome.done() > self.done_before && self.pass.slice.is_over();
        if leaves {
            self.pass
                .outcome
                .unreached
                .extend(batch.iter().cloned().map(Into::into).filter_map(|it| it.key()));
        }
        leaves
    }

    fn ipvs(&mut self, commands: &[Command]) {
        let commands = self.permitted(commands);
        match self.kernel.ipvs.apply(&commands) {
            Ok(failed) => {
                self.pass.outcome.doubtful |= contradicts_image(&commands, &failed);
                let lacking = failed.iter().filter(|failure| failure.error.errno() == Errno::ENOENT as i32);
                let lacking = lacking.filter_map(|failure| assigned_scheduler(commands.get(failure.index)?));
                self.pass.outcome.lacking.extend(lacking);
                self.settle(&commands, failed.into_iter().map(|it| (it.index, it.error.to_string())));
            }
            Err(error) => self.give_up(&commands, &error),
        }
    }

    fn dummy_interface(&mut self, changes: &[dummy_interface::Operation]) {
        let changes = self.permitted(changes);
        match self.kernel.dummy_interface.apply(&changes) {
            Ok(failed) => {
                self.pass.outcome.doubtful |=
                    failed.iter().any(|failure| failure.error.errno == Errno::ENODEV);
                let lacking = failed.iter().filter(|failure| NO_SUCH_DEVICES.contains(&failure.error.errno));
                self.pass.outcome.lacking_tunnels.extend(lacking.filter_map(|failure| {
                    match changes.get(failure.index)? {
                        dummy_interface::Operation::EnsureTunnel(family) => Some(*family),
                        _ => None,
                    }
                }));
                self.settle(&changes, failed.into_iter().map(|it| (it.index, it.error.to_string())));
            }
            Err(error) => self.give_up(&changes, &error),
        }
    }

    fn netfilter(&mut self, changes: &[netfilter::Operation]) {
        for part in changes.chunk_by(|one, next| adds_direct_return(one) == adds_direct_return(next)) {
            if part.first().is_some_and(adds_direct_return) {
                // The kernel may lack what direct return needs, and nothing else: so this is tried apart.
                part.chunks(1).for_each(|one| self.transaction(one));
            } else {
                self.in_transactions(part);
            }
        }
    }

    fn in_transactions(&mut self, changes: &[netfilter::Operation]) {
        let mut rest = Cow::Borrowed(changes);
        while !rest.is_empty() && !self.leaves(&rest) {
            let (Transaction { changes, work }, later) = next_transaction(&rest, *self.pace);
            self.timed(work, changes.len(), |executor| executor.transaction(&changes));
            rest = Cow::Owned(later);
        }
    }

    /// Carries out one transaction. If it is refused its halves are tried, so that one bad element hardly
    /// affects the others.
    fn transaction(&mut self, changes: &[netfilter::Operation]) {
        let changes = self.permitted(changes);
        if changes.is_empty() {
            return;
        }
        match self.kernel.netfilter.apply(&changes) {
            Ok(()) => self.settle(&changes, []),
            Err(error @ netfilter::Error::RolledBack { .. }) if changes.iter().all(adds_direct_return) => {
                self.pass.outcome.lacking_tunnels.extend(changes.iter().map(netfilter::Operation::family));
                self.refuse(changes.to_vec(), &one_line(&error).into());
            }
            Err(error @ netfilter::Error::RolledBack { .. }) if errno(&error) != Some(Errno::ENOENT) => {
                if let Some([left, right]) = bisect(&changes) {
                    self.transaction(&left);
                    self.transaction(&right);
                    return;
                }
                // The address has clients in the kernel that the image lacks, and that are in the way.
                self.pass.outcome.doubtful |= errno(&error) == Some(Errno::EEXIST);
                let cause: Arc<str> = one_line(&error).into();
                let (restrictions, rest): (Vec<netfilter::Operation>, Vec<_>) =
                    changes.iter().partition(|change| restricts(change));
                let (refused, still) =
                    if rest.is_empty() { (restrictions, rest) } else { (rest, restrictions) };
                self.refuse(refused, &cause);
                // Even if the kernel refuses the clients that an address lets in, the address must be
                // restricted.
                self.transaction(&still);
            }
            // For example, the table is missing (ENOENT): then the image is wrong, and trying the halves does
            // not help.
            Err(error) => self.give_up(&changes, &error),
        }
    }

    /// Returns the operations of a batch that may be carried out: nearly always all of them. The rest is put
    /// off.
    fn permitted<'b, T: Clone + Into<Operation>>(&mut self, batch: &'b [T]) -> Cow<'b, [T]> {
        if self.pass.failed.is_empty() {
            return Cow::Borrowed(batch);
        }
        let put_off = |executor: &Self, one: &T| {
            executor.pass.failed.puts_off(&one.clone().into(), &executor.pass.image)
        };
        let Some(first) = batch.iter().position(|one| put_off(self, one).is_some()) else {
            return Cow::Borrowed(batch);
        };
        let (permitted, rest) = batch.split_at(first);
        let mut permitted = permitted.to_vec();
        for one in rest {
            match put_off(self, one) {
                Some(cause) => self.fail(&one.clone().into(), FailureKind::PutOff, cause.into()),
                None => permitted.push(one.clone()),
            }
        }
        Cow::Owned(permitted)
    }

    /// Records a batch of which some operations failed: positions in order, with the cause.
    fn settle<T: Clone + Into<Operation>>(
        &mut self,
        batch: &[T],
        failed: impl IntoIterator<Item = (usize, String)>,
    ) {
        let mut failed = failed.into_iter().peekable();
        for (index, operation) in batch.iter().cloned().map(Into::into).enumerate() {
            match failed.next_if(|(failed, _)| *failed == index) {
                Some((_, cause)) => {
                    // Most of them fail alike.
                    let cause = match self.pass.outcome.failures.last() {
                        Some((_, last)) if **last == *cause => last.clone(),
                        _ => cause.into(),
                    };
                    self.fail(&operation, FailureKind::Refused, cause);
                }
                None => {
                    let cut_off = match &operation {
                        Operation::Ipvs(command) => connections_cut_off(command, &self.pass.image),
                        Operation::Netfilter(_) | Operation::DummyInterface(_) => None,
                    };
                    if let Some(connections) = cut_off {
                        self.pass.outcome.cut_off.push((operation.clone(), connections));
                    }
                    self.pass.outcome.rerouted.record(&operation);
                    // What a repair brings with it is not counted once more.
                    let key = operation.key().filter(|_| !self.pass.is_recheck);
                    let is_repair = key.is_some_and(|key| self.unrepaired.contains(&key));
                    if is_repair {
                        self.pass.outcome.add_repair(&operation);
                    }
                    let Pass { outcome, image, .. } = &mut *self.pass;
                    outcome.service_operations.record(
                        &operation,
                        image,
                        is_repair,
                        cut_off.unwrap_or_default(),
                    );
                    image.carried_out(&operation);
                    *outcome.done.entry(operation.kind()).or_default() += 1;
                    outcome.touched.extend(operation.key().and_then(|key| key.belongs_to()));
                    if self.pass.outcome.first_done.len() < SyncReport::MOST_DONE {
                        self.pass.outcome.first_done.push(operation.to_string());
                    }
                }
            }
        }
    }

    /// Records changes of a transaction that was rolled back.
    fn refuse(&mut self, changes: Vec<netfilter::Operation>, cause: &Arc<str>) {
        for change in changes {
            self.fail(&change.into(), FailureKind::Refused, cause.clone());
        }
    }

    /// Records a batch of which nothing is known to have been done.
    fn give_up<T: Clone + Into<Operation>>(
        &mut self,
        batch: &[T],
        error: &(dyn std::error::Error + 'static),
    ) {
        self.pass.outcome.doubtful = true;
        let cause: Arc<str> = one_line(error).into();
        for operation in batch.iter().cloned().map(Into::into) {
            // The operation may have been done, and the next full reading would not show that it was.
            self.pass.outcome.rerouted.record(&operation);
            self.fail(&operation, FailureKind::InDoubt, cause.clone());
        }
    }

    fn fail(&mut self, operation: &Operation, how: FailureKind, cause: Arc<str>) {
        // What is there without them is not known.
        self.pass.outcome.doubtful |= operation.is_foundation();
        self.pass.failed.add(operation, &self.pass.image);
        self.pass.outcome.count_failure(Subsystem::from_operation(operation), how);
        self.pass.outcome.failures.push((operation.clone(), cause));
    }
}

/// Whether a virtual server is missing (ESRCH) that should be there: the image has it, or it was just added,
/// and another program has removed it. Behind an addition that the kernel refuses, the real servers are
/// refused too, and the image is right.
fn contradicts_image(commands: &[Command], failed: &[FailedRequest]) -> bool {
    let command = |failure: &FailedRequest| commands.get(failure.index);
    let is_addition = |command: &&Command| matches!(command, Command::AddVirtualServer(_));
    let not_added: HashSet<_> =
        failed.iter().filter_map(command).filter(is_addition).map(Command::virtual_server).collect();
    let orphans = failed.iter().filter(|failure| failure.error.errno() == Errno::ESRCH as i32);
    orphans.filter_map(command).any(|command| !not_added.contains(&command.virtual_server()))
}

fn work(command: &Command) -> Work {
    if matches!(command, Command::AddRealServer(..)) { Work::RealServers } else { Work::Others }
}

fn adds_direct_return(change: &netfilter::Operation) -> bool {
    matches!(change, AddDirectReturn(_))
}

fn errno(error: &netfilter::Error) -> Option<Errno> {
    match error {
        netfilter::Error::RolledBack { source, .. } => source.errno(),
        netfilter::Error::Operation(_) => None,
    }
}

#[cfg(test)]
mod tests;
