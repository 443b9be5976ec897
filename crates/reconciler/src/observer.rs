//! The callbacks of the writer thread: observers after each change and each sync, such as health checks, metrics
//! and Events, and the receivers of notices and stale flows.

use std::{fmt, time::SystemTime};

use netfilter::conntrack::StaleFlows;
use service::State;

use crate::{NoticeCallback, SyncReport, SyncStats};

/// Receives the UDP flows that must be deleted from conntrack after a sync. The writer thread calls it: it
/// must not block.
pub type StaleFlowCallback = Box<dyn Fn(StaleFlows) + Send>;

/// The functions and observers that the writer thread calls. None of them may block.
pub struct Callbacks {
    /// Receives the notices for the owners of Services.
    pub notices: NoticeCallback,
    /// Receives the flows that must be deleted from conntrack.
    pub stale_flows: StaleFlowCallback,
    /// The observers, such as health checks and metrics, in the order in which they are called.
    pub observers: Vec<Box<dyn Observer>>,
}

impl Callbacks {
    /// Callbacks that do nothing.
    pub fn none() -> Self {
        Self { notices: Box::new(drop), stale_flows: Box::new(drop), observers: Vec::new() }
    }
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks").finish_non_exhaustive()
    }
}

/// Is called after each change and each sync. The writer thread calls it: it must not block.
pub trait Observer: Send {
    /// Called when a change from the API server or the directory was applied to the desired state. Most observers need
    /// only the syncs.
    fn on_change_applied(&mut self, change: ChangeEvent) {
        _ = change;
    }

    /// Called when the kernel lacks a virtual server that it had: perhaps it lacks all of them. Syncs follow, until
    /// [`SyncStats::lost_virtual_servers`] is 0. Most observers need only those.
    fn on_loss(&mut self) {}

    /// Called when a sync has ended.
    fn on_sync(&mut self, sync: &SyncEvent<'_>);
}

/// A change that was applied to the desired state, without the objects themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeEvent {
    /// The kind of objects that changed.
    pub kind: ObjectKind,
    /// The number of objects. A list is one change. The first list comes in parts, and its end has no
    /// objects.
    pub objects: usize,
    /// How many changes of the source this one stands for: changes of the same object that wait are merged
    /// into the last one.
    pub changes: usize,
    /// Whether the next sync has to act on it: both lists are here, and the change affects the desired state
    /// or completes the lists.
    pub waits: bool,
}

/// The kind of objects that a change is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    /// Services.
    Services,
    /// EndpointSlices.
    EndpointSlices,
    /// This node.
    Node,
    /// The other nodes of the cluster.
    Peers,
}

/// A sync that has ended.
#[derive(Clone, Copy)]
pub struct SyncEvent<'a> {
    /// The result of the sync, as text.
    pub report: &'a SyncReport,
    /// The result of the sync, as numbers.
    pub stats: &'a SyncStats,
    /// Whether the kernel could be read, and has kube-ipvs0 and our tables. Otherwise nothing useful was
    /// done. In a complete sync, single operations may still have been refused, or wait for the next sync
    /// ([`SyncReport::left`]).
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
