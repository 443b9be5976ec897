//! What health checks and metrics are made of.

use std::{fmt, time::SystemTime};

use service::{Change, State};

use crate::{Report, Tally};

/// Hears what the writer thread does. The thread calls it in the middle of its work: it must not block.
pub trait Observer: Send {
    /// News from the API server or the directory was taken in.
    fn heard(&mut self, news: News);

    /// A sync has ended.
    fn synced(&mut self, sync: &Observation<'_>);
}

/// News that was taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct News {
    /// Of what.
    pub subject: Subject,
    /// Of how many objects. A list is one piece of news, but the first one comes in parts, and its end is of none.
    pub objects: usize,
    /// How many pieces the source told, of which only the last counts: what waits for a sync is put together.
    pub pieces: usize,
    /// Whether both lists are here and the news changes what is wanted, or completes them: the next sync has to act on
    /// it.
    pub waits: bool,
}

/// What news is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Services.
    Services,
    /// EndpointSlices.
    EndpointSlices,
    /// This node.
    Node,
}

impl Subject {
    /// What a change is of, and how many objects it has.
    pub(crate) fn of(change: &Change) -> (Self, usize) {
        match change {
            Change::ReplaceServices(services) | Change::ListServices(services) => {
                (Self::Services, services.len())
            }
            Change::KeepServices(_) => (Self::Services, 0),
            Change::ApplyService(_) | Change::DeleteService(_) => (Self::Services, 1),
            Change::ReplaceSlices(slices) | Change::ListSlices(slices) => {
                (Self::EndpointSlices, slices.len())
            }
            Change::KeepSlices(_) => (Self::EndpointSlices, 0),
            Change::ApplySlice(_) | Change::DeleteSlice(_) => (Self::EndpointSlices, 1),
            Change::ApplyNode(_)
            | Change::DeleteNode
            | Change::NodeAddresses(_)
            | Change::MissingSchedulers(_) => (Self::Node, 1),
        }
    }
}

/// A sync that has ended.
#[derive(Clone, Copy)]
pub struct Observation<'a> {
    /// What it did.
    pub report: &'a Report,
    /// The same in numbers.
    pub tally: &'a Tally,
    /// Whether the kernel could be read, and has kube-ipvs0 and our tables: otherwise nothing was done, or nothing of
    /// it is of use. Single operations may have been refused all the same.
    pub complete: bool,
    /// What was wanted.
    pub state: &'a State,
    /// Of the EndpointSlices that changed something since the last complete sync, those in a list left out:
    /// [`EndpointSlice::triggered_at`](service::EndpointSlice::triggered_at). Empty unless the sync is complete.
    pub triggered_at: &'a [SystemTime],
}

impl fmt::Debug for Observation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observation").field("report", self.report).finish_non_exhaustive()
    }
}
