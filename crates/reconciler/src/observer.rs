//! Observers hear what the writer thread does: health checks and metrics are made of it.

use std::{fmt, time::SystemTime};

use service::{Change, State};

use crate::{SyncReport, SyncStats};

/// Hears what the writer thread does. The thread calls it in the middle of its work: it must not block.
pub trait Observer: Send {
    /// Called when news from the API server or the directory was taken in.
    fn on_change_applied(&mut self, news: ChangeEvent);

    /// Called when a sync has ended.
    fn on_sync(&mut self, sync: &SyncEvent<'_>);
}

/// News that was taken in, without the objects themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeEvent {
    /// The kind of objects that the news is of.
    pub subject: ObjectKind,
    /// The number of objects. A list is one piece of news; but the first list comes in parts, and its end has
    /// no objects.
    pub objects: usize,
    /// How many pieces the source told, of which only the last counts: several of one object that wait are
    /// put together.
    pub pieces: usize,
    /// Whether the next sync has to act on it: both lists are here, and the news changes what is wanted or
    /// completes the lists.
    pub waits: bool,
}

/// The kind of objects that news is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// Services.
    Services,
    /// EndpointSlices.
    EndpointSlices,
    /// This node.
    Node,
}

impl ObjectKind {
    /// The kind of objects in a change, and their number.
    pub(crate) fn of(change: &Change) -> (Self, usize) {
        match change {
            Change::ReplaceServices(services) | Change::InitApplyServices(services) => {
                (Self::Services, services.len())
            }
            Change::InitDoneServices(_) => (Self::Services, 0),
            Change::ApplyService(_) | Change::DeleteService(_) => (Self::Services, 1),
            Change::ReplaceSlices(slices) | Change::InitApplySlices(slices) => {
                (Self::EndpointSlices, slices.len())
            }
            Change::InitDoneSlices(_) => (Self::EndpointSlices, 0),
            Change::ApplySlice(_) | Change::DeleteSlice(_) => (Self::EndpointSlices, 1),
            Change::ApplyNode(_)
            | Change::DeleteNode
            | Change::NodeAddresses { .. }
            | Change::MissingSchedulers(_) => (Self::Node, 1),
        }
    }
}

/// A sync that has ended, for observers.
#[derive(Clone, Copy)]
pub struct SyncEvent<'a> {
    /// What it did.
    pub report: &'a SyncReport,
    /// The same in numbers.
    pub stats: &'a SyncStats,
    /// Whether the kernel could be read, and has kube-ipvs0 and our tables. Otherwise nothing was done, or
    /// nothing that is of use. Even of a complete sync, single operations may have been refused.
    pub complete: bool,
    /// The desired state.
    pub state: &'a State,
    /// [`EndpointSlice::triggered_at`](service::EndpointSlice::triggered_at) of the EndpointSlices that
    /// changed something since the last complete sync, without those that came in a list. Empty unless the
    /// sync is complete.
    pub triggered_at: &'a [SystemTime],
}

impl fmt::Debug for SyncEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyncEvent").field("report", self.report).finish_non_exhaustive()
    }
}
