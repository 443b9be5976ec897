//! Carrying out a plan.

use std::{collections::HashSet, net::IpAddr, ops::Range};

use ipvs::{Command, Family, Id, ServiceAddress};
use netlink::Errno;
use watcher::{Kernel, Observed, Operation, Plan, ReadError};

/// What came of a plan.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// How many operations were carried out.
    pub(crate) done: usize,
    /// The operations that were not, with the cause, in words.
    pub(crate) failures: Vec<(Operation, String)>,
    /// Why the kernel could not be read, if that is what happened.
    pub(crate) unread: Option<String>,
    /// An answer of the kernel was lost: what it did must be read back.
    pub(crate) doubtful: bool,
}

impl Outcome {
    /// Nothing was done, because the kernel could not be read.
    pub(crate) fn unread(error: &ReadError) -> Self {
        Self { unread: Some(chain(error)), doubtful: true, ..Self::default() }
    }
}

/// Carries out the operations in order, in as few exchanges with the kernel as possible, and keeps
/// `observed` in step.
///
/// A failed operation does not stop the others, except those that would be wrong without it: the
/// real servers of a virtual server that is missing, and a VIP whose masquerade rule is missing.
pub(crate) fn apply(plan: &Plan, kernel: &mut Kernel, observed: &mut Observed) -> Outcome {
    let mut run = Run { kernel, observed, outcome: Outcome::default(), closed: Closed::default() };
    let operations = plan.operations.as_slice();
    let mut rest = 0..operations.len();
    while let Some(batch) = next_batch(operations, &mut rest) {
        match batch.first() {
            Some(Operation::Ipvs(_)) => run.ipvs(batch),
            Some(Operation::Netfilter(_)) => run.netfilter(batch),
            Some(Operation::Link(_)) => run.links(batch),
            None => {}
        }
    }
    run.outcome
}

/// The longest run of operations on one seam that `rest` starts with.
fn next_batch<'a>(operations: &'a [Operation], rest: &mut Range<usize>) -> Option<&'a [Operation]> {
    let left = operations.get(rest.clone())?;
    let seam = std::mem::discriminant(left.first()?);
    let length = left.iter().take_while(|operation| std::mem::discriminant(*operation) == seam).count();
    rest.start += length;
    left.get(..length)
}

/// What must not be opened because something that it rests on failed.
#[derive(Default)]
struct Closed {
    families: HashSet<Family>,
    vips: HashSet<IpAddr>,
    virtual_servers: HashSet<ServiceAddress>,
}

struct Run<'a> {
    kernel: &'a mut Kernel,
    observed: &'a mut Observed,
    outcome: Outcome,
    closed: Closed,
}

impl Run<'_> {
    fn ipvs(&mut self, batch: &[Operation]) {
        let (commands, kept) = self.permitted(batch, |operation, closed| match operation {
            Operation::Ipvs(
                command @ (Command::AddRealServer(Id::Address(of), _)
                | Command::EditRealServer(Id::Address(of), _)),
            ) => match closed.virtual_servers.contains(of) {
                true => Err("its virtual server is missing"),
                false => Ok(command.clone()),
            },
            Operation::Ipvs(command) => Ok(command.clone()),
            _ => Err("not an IPVS command"),
        });
        match self.kernel.ipvs.apply(&commands) {
            Ok(failed) => {
                let failed = failed.into_iter().map(|failure| {
                    let reason = failure.reason.map_or(String::new(), |reason| format!(": {reason}"));
                    (failure.index, format!("{}{reason}", errno_text(failure.errno)))
                });
                self.settle(&kept, failed);
            }
            Err(error) => self.give_up(&kept, &error),
        }
    }

    fn links(&mut self, batch: &[Operation]) {
        let (changes, kept) = self.permitted(batch, |operation, closed| match operation {
            Operation::Link(dummy_interface::Change::Bind(vip))
                if closed.vips.contains(vip) || closed.families.contains(&Family::of(*vip)) =>
            {
                Err("put off: it would be served without its masquerade rule or virtual server")
            }
            Operation::Link(change) => Ok(*change),
            _ => Err("not a change to kube-ipvs0"),
        });
        match self.kernel.links.apply(&changes) {
            Ok(failed) => {
                self.settle(&kept, failed.into_iter().map(|f| (f.index, errno_text(f.errno))));
            }
            Err(error) => self.give_up(&kept, &error),
        }
    }

    /// One transaction; if it is refused, its halves, so that one bad element costs only itself.
    fn netfilter(&mut self, batch: &[Operation]) {
        let (changes, kept) = self.permitted(batch, |operation, _| match operation {
            Operation::Netfilter(change) => Ok(*change),
            _ => Err("not a change to our tables"),
        });
        match self.kernel.netfilter.apply(&changes) {
            Ok(()) => self.settle(&kept, std::iter::empty()),
            Err(netfilter::Error::RolledBack { .. }) if batch.len() > 1 => {
                let (left, right) = batch.split_at(batch.len() / 2);
                self.netfilter(left);
                self.netfilter(right);
            }
            Err(error) => self.give_up(&kept, &error),
        }
    }

    /// Separates what may be done from what must be put off.
    fn permitted<'o, T>(
        &mut self,
        batch: &'o [Operation],
        permit: impl Fn(&Operation, &Closed) -> Result<T, &'static str>,
    ) -> (Vec<T>, Vec<&'o Operation>) {
        let mut permitted = Vec::with_capacity(batch.len());
        let mut kept = Vec::with_capacity(batch.len());
        for operation in batch {
            match permit(operation, &self.closed) {
                Ok(value) => {
                    permitted.push(value);
                    kept.push(operation);
                }
                Err(cause) => self.outcome.failures.push((operation.clone(), cause.to_owned())),
            }
        }
        (permitted, kept)
    }

    /// Records a batch of which some operations failed, by position.
    fn settle(&mut self, batch: &[&Operation], failed: impl IntoIterator<Item = (usize, String)>) {
        let mut failed = failed.into_iter().peekable();
        for (index, operation) in batch.iter().enumerate() {
            match failed.next_if(|(position, _)| *position == index) {
                Some((_, cause)) => self.fail(operation, cause),
                None => {
                    self.observed.carried_out(operation);
                    self.outcome.done += 1;
                }
            }
        }
    }

    /// Records a batch of which nothing is known to have been done.
    fn give_up(&mut self, batch: &[&Operation], error: &dyn std::error::Error) {
        self.outcome.doubtful = true;
        let cause = chain(error);
        for operation in batch {
            self.fail(operation, cause.clone());
        }
    }

    fn fail(&mut self, operation: &Operation, cause: String) {
        match operation {
            // Only a full read finds a device or a table missing.
            Operation::Link(dummy_interface::Change::EnsureDevice) => self.outcome.doubtful = true,
            Operation::Netfilter(netfilter::Change::InstallTable(family)) => {
                self.outcome.doubtful = true;
                self.closed.families.insert(*family);
            }
            Operation::Netfilter(netfilter::Change::AddElement(element)) => {
                self.closed.vips.insert(element.ip());
            }
            Operation::Ipvs(Command::AddVirtualServer(server)) => {
                if let Id::Address(address) = server.id {
                    self.closed.virtual_servers.insert(address);
                    self.closed.vips.insert(address.ip);
                }
            }
            _ => {}
        }
        self.outcome.failures.push((operation.clone(), cause));
    }
}

fn errno_text(errno: Errno) -> String {
    format!("{errno:?} ({})", errno.desc())
}

/// An error with its causes, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
