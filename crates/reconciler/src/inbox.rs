//! How the other threads reach the writer thread: an inbox, which it empties between syncs, and questions. Only what
//! the writer has to know is kept in the inbox, so that a slow kernel costs no memory.

mod pending_changes;

use std::{
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
};

use dummy_interface::Changed;
use ipvs::{Scheduler, SchedulerSupport, ServiceAddress};
use service::{AddressExplanation, AddressQuery, Answers, Change, Client, Explanation, ObjectName, one_line};
use watcher::Plan;

pub(crate) use self::pending_changes::{PendingChange, PendingChanges};

use crate::{JournalPage, NodeUsage, SyncReport, SyncStatus, VirtualServerOwner, writer::Writer};

/// A message to the writer thread.
pub(crate) enum Input {
    /// The inbox is not empty.
    Pending,
    /// A question, which the writer thread answers between two syncs.
    Ask(Box<dyn FnOnce(&mut Writer) + Send>),
    /// Stop after the sync that is running. The kernel's state stays, so that traffic goes on.
    Stop,
}

/// The writer thread has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the reconciler has stopped")]
pub struct Stopped;

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// The lists are not complete: nothing is known, and nothing is written either.
    #[error("Services and EndpointSlices are not listed yet")]
    NotListed,
    /// The kernel could not be read, so there is nothing to compare with. The cause as text.
    #[error("{0}")]
    Unread(String),
    /// The writer thread has ended.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// The way to the writer thread. Clones are cheap. Methods block only where they say so.
#[derive(Clone, Debug)]
pub struct Handle {
    inputs: Sender<Input>,
    inbox: Inbox,
}

/// What the writer has to know of the answers of endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WantedAnswers {
    /// Nothing: no endpoint would be ejected.
    #[default]
    None,
    /// All of them once an endpoint fails.
    OnceOneFails,
    /// All of them: an endpoint is ejected, or on trial.
    All,
}

impl Handle {
    pub(crate) fn new() -> (Self, Receiver<Input>, Inbox) {
        let (inputs, receiver) = channel();
        let inbox = Inbox::default();
        (Self { inputs, inbox: inbox.clone() }, receiver, inbox)
    }

    /// Sends a change from the API server or the directory. Only the last change of each object is kept, so
    /// that pending changes take no more memory than there are objects. After the end of the writer thread it
    /// is lost.
    pub fn change(&self, change: Change) {
        self.post(|pending| pending.changes.push(change));
    }

    /// Sends the kernel's notification of a change, so that what is not as desired is repaired.
    pub fn kernel_changed(&self, changed: Changed) {
        self.post(|pending| pending.add_links(changed));
    }

    /// What the writer has to know of the answers of endpoints.
    pub fn wanted_answers(&self) -> WantedAnswers {
        self.inbox.open().wanted_answers
    }

    /// Sends what endpoints answer, which determines who is ejected.
    pub fn answers(&self, answers: Answers) {
        self.post(|pending| pending.answers = Some(answers));
    }

    /// Sends the kernel's notification that another program has changed our nf_tables tables, so that they
    /// are read and repaired.
    pub fn tables_changed(&self) {
        self.post(|pending| pending.tables = true);
    }

    /// Reads the kernel's whole state, repairs it, and returns what was done. Blocks meanwhile.
    pub fn resync(&self) -> Result<SyncReport, Stopped> {
        self.ask_later(Writer::resync)
    }

    /// Reads the kernel's whole state, and returns what differs from the desired one, as what would be done
    /// about it. Blocks meanwhile, and keeps the writer from its work for as long as the reading takes.
    pub fn compare(&self) -> Result<Plan, Unanswered> {
        self.ask_later(Writer::compare)?
    }

    /// Explains why a Service is served on this node as it is, and what becomes of a client there. Blocks while a sync
    /// is running.
    pub fn explain(&self, service: ObjectName, client: Option<Client>) -> Result<Explanation, Unanswered> {
        self.ask(move |writer| {
            writer.listed().map(|it| it.ownership.explain(&it.state, &service, client.as_ref()))
        })?
    }

    /// Explains the owner of an address or port on this node, and what is done with it. Blocks while a sync is running.
    pub fn explain_address(
        &self,
        query: AddressQuery,
        client: Option<Client>,
    ) -> Result<AddressExplanation, Unanswered> {
        self.ask(move |writer| {
            writer.listed().map(|it| it.ownership.explain_address(&it.state, &query, client.as_ref()))
        })?
    }

    /// The entries of the journal after a number, of one Service or of all. Blocks while a sync is running.
    pub fn journal(&self, of: Option<ObjectName>, after: u64) -> Result<JournalPage, Stopped> {
        self.ask(move |writer| writer.journal.page(of.as_ref(), after))
    }

    /// Whether the desired state is programmed, and what was done for it. Blocks while a sync is running.
    pub fn status(&self) -> Result<SyncStatus, Stopped> {
        self.ask(Writer::status)
    }

    /// The status, for which the kernel's whole state is read and compared. Blocks meanwhile, as
    /// [`compare`](Self::compare) does.
    pub fn checked_status(&self) -> Result<SyncStatus, Unanswered> {
        self.ask(Writer::checked_status)?
    }

    /// The use that Services make of the node itself. Blocks until the first sync has ended, and while one is running.
    pub fn node_usage(&self) -> Result<NodeUsage, Stopped> {
        self.ask_later(Writer::node_usage)
    }

    /// The desired virtual servers with their owners, in no particular order. Blocks while a sync
    /// is running.
    pub fn virtual_server_owners(&self) -> Result<Vec<VirtualServerOwner>, Stopped> {
        self.ask(|writer| VirtualServerOwner::list(&writer.reconciler.state))
    }

    /// The Services that own these virtual servers, in this order; `None` for one that no Service owns. Blocks while a
    /// sync is running.
    pub fn owners(&self, of: Vec<ServiceAddress>) -> Result<Vec<Option<ObjectName>>, Stopped> {
        self.ask(move |writer| of.iter().map(|at| writer.reconciler.state.owner(at).cloned()).collect())
    }

    /// Whether the kernel has a scheduler, which is tried unless it is in use. Blocks while a sync is
    /// running, and while the kernel loads a module.
    pub fn probe_scheduler(&self, scheduler: Scheduler) -> Result<SchedulerSupport, Unanswered> {
        self.ask(move |writer| {
            let probed = writer.reconciler.probe_scheduler(scheduler);
            probed.map_err(|error| Unanswered::Unread(one_line(&error)))
        })?
    }

    /// Stops the writer thread after the sync that is running.
    pub fn stop(&self) -> Result<(), Stopped> {
        self.send(Input::Stop)
    }

    /// Puts something into the inbox. After the end of the writer thread no message can be sent, and the
    /// inbox stays empty.
    fn post(&self, put: impl FnOnce(&mut Pending)) {
        let mut pending = self.inbox.open();
        // Sent under the lock: inputs that are sent later come after the inbox.
        if !pending.is_empty() || self.send(Input::Pending).is_ok() {
            put(&mut pending);
        }
    }

    /// Asks, and waits for the answer.
    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Writer) -> T + Send + 'static,
    ) -> Result<T, Stopped> {
        // The caller may have gone.
        self.ask_later(|writer, answer| drop(answer.send(question(writer))))
    }

    /// Asks what the writer may answer later, and waits for the answer.
    fn ask_later<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Writer, Sender<T>) + Send + 'static,
    ) -> Result<T, Stopped> {
        let (answer, answered) = channel();
        self.send(Input::Ask(Box::new(|writer| question(writer, answer))))?;
        answered.recv().map_err(|_| Stopped)
    }

    fn send(&self, input: Input) -> Result<(), Stopped> {
        self.inputs.send(input).map_err(|_| Stopped)
    }
}

/// The inbox of the writer thread. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inbox(Arc<Mutex<Pending>>);

/// The changes and notifications since the writer thread last emptied its inbox.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// Changes from the API server or the directory.
    pub(crate) changes: PendingChanges,
    /// The kernel's notifications about kube-ipvs0 and addresses, perhaps of our own work.
    pub(crate) dummy_interface: Changed,
    /// Whether the kernel has notified of a change of our nf_tables tables by another program.
    pub(crate) tables: bool,
    /// What endpoints answered at the last reading.
    pub(crate) answers: Option<Answers>,
    /// What the writer has to know of them.
    wanted_answers: WantedAnswers,
}

/// The number of VIPs that are kept one by one. Hardly more are bound, unless another program adds and
/// removes ever different ones; beyond it, kube-ipvs0 is read as a whole.
const MOST_VIPS: usize = 100_000;

impl Inbox {
    /// Takes everything that waits.
    pub(crate) fn take(&self) -> Pending {
        let mut pending = self.open();
        let wanted_answers = pending.wanted_answers;
        mem::replace(&mut *pending, Pending { wanted_answers, ..Pending::default() })
    }

    /// Says what the writer has to know of the answers of endpoints.
    pub(crate) fn want_answers(&self, wanted: WantedAnswers) {
        self.open().wanted_answers = wanted;
    }

    /// Whether anything waits.
    pub(crate) fn has_any(&self) -> bool {
        !self.open().is_empty()
    }

    /// Locks the inbox. Nothing that holds the lock can panic.
    fn open(&self) -> MutexGuard<'_, Pending> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.changes.is_empty()
            && self.dummy_interface == Changed::default()
            && !self.tables
            && self.answers.is_none()
    }

    /// Adds a notification about kube-ipvs0 and addresses. The last one of each address counts.
    fn add_links(&mut self, changed: Changed) {
        let Changed { everything, vips, node_addresses } = changed;
        let links = &mut self.dummy_interface;
        links.vips.extend(vips);
        links.node_addresses |= node_addresses;
        links.everything |= everything || links.vips.len() > MOST_VIPS;
        if links.everything {
            links.vips.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv6Addr};

    use super::*;

    #[test]
    fn notifications_while_the_writer_is_busy_are_one_message() {
        let (handle, inputs, inbox) = Handle::new();
        let vip: IpAddr = [10, 96, 0, 1].into();
        for number in 0..10_000 {
            let changed = Changed { vips: [(vip, number % 2 == 0)].into(), ..Changed::default() };
            handle.kernel_changed(changed);
            handle.tables_changed();
        }
        assert_eq!(inputs.try_iter().count(), 1);
        drop(inbox);
    }

    fn changed(vip: impl Into<IpAddr>, bound: bool) -> Changed {
        Changed { vips: [(vip.into(), bound)].into(), ..Changed::default() }
    }

    #[test]
    fn no_notification_is_lost_and_the_last_one_of_each_vip_counts() {
        let mut pending = Pending::default();
        pending.add_links(changed([10, 96, 0, 1], false));
        pending.add_links(changed([10, 96, 0, 2], true));
        pending.add_links(changed([10, 96, 0, 1], true));
        pending.add_links(Changed { node_addresses: true, ..Changed::default() });
        let vips = [([10, 96, 0, 1].into(), true), ([10, 96, 0, 2].into(), true)].into();
        assert_eq!(pending.dummy_interface, Changed { everything: false, vips, node_addresses: true });
        pending.add_links(Changed { everything: true, ..Changed::default() });
        pending.add_links(changed([10, 96, 0, 3], false));
        assert_eq!(pending.dummy_interface, Changed::everything(), "that includes all VIPs");
    }

    #[test]
    fn too_many_different_vips_become_everything_and_take_no_more_memory() {
        let mut pending = Pending::default();
        for number in 0..2 * MOST_VIPS as u128 {
            pending.add_links(changed(Ipv6Addr::from(number), true));
            assert!(pending.dummy_interface.vips.len() <= MOST_VIPS);
        }
        assert!(pending.dummy_interface.everything);
    }
}
