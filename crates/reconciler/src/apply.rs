//! Carrying out a plan.

use std::{collections::HashSet, net::IpAddr, ops::Range};

use ipvs::{Command, Family, Id, Protocol, ServiceAddress, VirtualServer};
use netfilter::Element;
use netlink::{Errno, Refusal};
use watcher::{Kernel, Observed, Operation, Plan, ReadError, one_line};

/// What came of a plan.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// How many operations were carried out.
    pub(crate) done: usize,
    /// The operations that were not, with the cause, in words.
    pub(crate) failures: Vec<(Operation, String)>,
    /// TCP real servers removed although they had connections, and how many.
    pub(crate) cut_off: Vec<(Operation, u64)>,
    /// Why the kernel could not be read, if that is what happened.
    pub(crate) unread: Option<String>,
    /// An answer of the kernel was lost, or contradicts the image of it: it must be read anew.
    pub(crate) doubtful: bool,
}

impl Outcome {
    /// Adds what came of a second plan.
    pub(crate) fn extend(&mut self, other: Self) {
        self.done += other.done;
        self.failures.extend(other.failures);
        self.cut_off.extend(other.cut_off);
        self.unread = self.unread.take().or(other.unread);
        self.doubtful |= other.doubtful;
    }

    /// Nothing was done, because the kernel could not be read.
    pub(crate) fn unread(error: &ReadError) -> Self {
        Self { unread: Some(one_line(error)), doubtful: true, ..Self::default() }
    }
}

/// Carries out the operations in order, in as few exchanges with the kernel as possible, and keeps
/// `observed` in step.
///
/// A failed operation does not stop the others, except those that would be wrong without it: the
/// virtual server whose elements are missing in our tables, its real servers, and a VIP with nothing behind it.
pub(crate) fn apply(plan: &Plan, kernel: &mut Kernel, observed: &mut Observed) -> Outcome {
    let mut run = Run { kernel, observed, outcome: Outcome::default(), closed: Closed::default() };
    let operations = plan.operations.as_slice();
    let mut rest = 0..operations.len();
    while let Some(batch) = next_batch(operations, &mut rest) {
        match batch.first() {
            Some(Operation::Ipvs(_)) => run.ipvs(batch),
            Some(Operation::Netfilter(_)) => run.netfilter(&batch.iter().collect::<Vec<_>>()),
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
    /// Without their table.
    families: HashSet<Family>,
    /// Without an element that says whose flows are masqueraded, or let in.
    unguarded: HashSet<ServiceAddress>,
    /// Open on ports that nobody serves.
    unguarded_vips: HashSet<IpAddr>,
    /// Not there, so nothing can be added to them.
    missing: HashSet<ServiceAddress>,
    /// With a virtual server that is not there.
    vips: HashSet<IpAddr>,
}

struct Run<'a> {
    kernel: &'a mut Kernel,
    observed: &'a mut Observed,
    outcome: Outcome,
    closed: Closed,
}

impl Run<'_> {
    fn ipvs(&mut self, batch: &[Operation]) {
        let (commands, kept) = self.permitted(batch.iter(), |operation, run| match operation {
            Operation::Ipvs(Command::AddVirtualServer(VirtualServer {
                id: Id::Address(address), ..
            })) if run.closed.unguarded.contains(address)
                || run.closed.families.contains(&Family::of(address.ip)) =>
            {
                Err("put off: its element in our tables is missing")
            }
            Operation::Ipvs(
                Command::AddRealServer(Id::Address(of), _) | Command::EditRealServer(Id::Address(of), _),
            ) if run.closed.missing.contains(of) => Err("put off: its virtual server is missing"),
            // It may be on another node, and would answer past this one.
            Operation::Ipvs(Command::AddRealServer(Id::Address(of), _))
                if run.closed.unguarded.contains(of) =>
            {
                Err("put off: an element of its virtual server is missing in our tables")
            }
            Operation::Ipvs(command) => Ok(command.clone()),
            _ => Err("not an IPVS command"),
        });
        match self.kernel.ipvs.apply(&commands) {
            Ok(failed) => {
                // Of a virtual server that the image has: somebody else removed it.
                self.outcome.doubtful |= failed.iter().any(|failure| failure.errno == Errno::ESRCH);
                let failed = failed.into_iter().map(|failure| {
                    let refusal = Refusal { errno: failure.errno, message: failure.reason };
                    (failure.index, refusal.to_string())
                });
                self.settle(&kept, failed);
            }
            Err(error) => self.give_up(&kept, &error),
        }
    }

    fn links(&mut self, batch: &[Operation]) {
        let (changes, kept) = self.permitted(batch.iter(), |operation, run| match operation {
            Operation::Link(dummy_interface::Change::Bind(vip)) if run.is_closed(vip) => {
                Err("put off: none of its virtual servers is there")
            }
            Operation::Link(dummy_interface::Change::Bind(vip))
                if run.closed.unguarded_vips.contains(vip) =>
            {
                Err("put off: its element in our tables is missing")
            }
            Operation::Link(change) => Ok(*change),
            _ => Err("not a change to kube-ipvs0"),
        });
        match self.kernel.links.apply(&changes) {
            Ok(failed) => {
                self.outcome.doubtful |= failed.iter().any(|failure| failure.errno == Errno::ENODEV);
                self.settle(&kept, failed.into_iter().map(|f| (f.index, Refusal::new(f.errno).to_string())));
            }
            Err(error) => self.give_up(&kept, &error),
        }
    }

    /// Whether a VIP would lead nowhere but to this node's own programs.
    fn is_closed(&self, vip: &IpAddr) -> bool {
        self.closed.vips.contains(vip)
            && !self.observed.virtual_servers.keys().any(|address| address.ip == *vip)
    }

    /// One transaction; if it is refused, its halves, so that one bad element costs only itself.
    fn netfilter(&mut self, batch: &[&Operation]) {
        let (changes, kept) = self.permitted(batch.iter().copied(), |operation, run| match operation {
            Operation::Netfilter(
                change @ (netfilter::Change::AddElement(_) | netfilter::Change::DeleteElement(_)),
            ) if run.closed.families.contains(&change.family()) => Err("put off: its table is missing"),
            Operation::Netfilter(change) => Ok(*change),
            _ => Err("not a change to our tables"),
        });
        if changes.is_empty() {
            return;
        }
        match self.kernel.netfilter.apply(&changes) {
            Ok(()) => self.settle(&kept, std::iter::empty()),
            Err(error @ netfilter::Error::RolledBack { .. }) if contradicts_image(&error) => {
                self.give_up(&kept, &error);
            }
            Err(netfilter::Error::RolledBack { .. }) if kept.len() > 1 => {
                let (left, right) = kept.split_at(kept.len() / 2);
                self.netfilter(left);
                self.netfilter(right);
            }
            Err(error @ netfilter::Error::RolledBack { .. }) => {
                let cause = one_line(&error);
                for operation in kept {
                    self.fail(operation, cause.clone());
                }
            }
            Err(error) => self.give_up(&kept, &error),
        }
    }

    /// Separates what may be done from what must be put off.
    fn permitted<'o, T>(
        &mut self,
        batch: impl ExactSizeIterator<Item = &'o Operation>,
        permit: impl Fn(&Operation, &Self) -> Result<T, &'static str>,
    ) -> (Vec<T>, Vec<&'o Operation>) {
        let mut permitted = Vec::with_capacity(batch.len());
        let mut kept = Vec::with_capacity(batch.len());
        for operation in batch {
            match permit(operation, self) {
                Ok(value) => {
                    permitted.push(value);
                    kept.push(operation);
                }
                Err(cause) => self.fail(operation, cause.to_owned()),
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
                    self.outcome.cut_off.extend(cut_off(operation, self.observed));
                    self.observed.carried_out(operation);
                    self.outcome.done += 1;
                }
            }
        }
    }

    /// Records a batch of which nothing is known to have been done.
    fn give_up(&mut self, batch: &[&Operation], error: &(dyn std::error::Error + 'static)) {
        self.outcome.doubtful = true;
        let cause = one_line(error);
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
                self.closed.unguarded.extend(element.virtual_server());
                if let Element::Vip(vip) = element {
                    self.closed.unguarded_vips.insert(*vip);
                }
            }
            Operation::Ipvs(Command::AddVirtualServer(server)) => {
                if let Id::Address(address) = server.id {
                    self.closed.missing.insert(address);
                    self.closed.vips.insert(address.ip);
                }
            }
            _ => {}
        }
        self.outcome.failures.push((operation.clone(), cause));
    }
}

/// The connections that a TCP real server has when it is removed, if it has any.
fn cut_off(operation: &Operation, observed: &Observed) -> Option<(Operation, u64)> {
    let Operation::Ipvs(Command::DeleteRealServer(Id::Address(of), server)) = operation else { return None };
    let connections = observed.virtual_servers.get(of)?.real_servers.get(server)?.connections;
    (of.protocol == Protocol::Tcp && connections > 0).then(|| (operation.clone(), connections))
}

/// Whether the table, or something else that the transaction builds on, is not there: the image is wrong,
/// and trying the transaction's parts will not help.
fn contradicts_image(error: &netfilter::Error) -> bool {
    matches!(error, netfilter::Error::RolledBack { source, .. } if source.errno() == Some(Errno::ENOENT))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ipvs::{RealServer, Scheduler};
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
            real_servers: BTreeMap::from([(config.address, server)]),
        };
        let mut observed =
            Observed { virtual_servers: [(of, image)].into_iter().collect(), ..Observed::default() };
        let (ipvs, netfilter, links) = FakeKernel::new().seams();
        let plan = Plan { operations: vec![Command::DeleteRealServer(of.into(), config.address).into()] };
        apply(&plan, &mut Kernel { ipvs, netfilter, links }, &mut observed)
    }

    #[test]
    fn who_is_cut_off_is_counted() {
        let outcome = removal(Protocol::Tcp);
        let told: Vec<_> = outcome.cut_off.iter().map(|(what, count)| (what.to_string(), *count)).collect();
        assert_eq!(told, [("delete real server TCP 10.96.0.1:80 -> 10.244.0.1:8080".to_owned(), 3)]);
        assert_eq!(removal(Protocol::Udp).cut_off, [], "UDP has nothing to be cut off");
    }
}
