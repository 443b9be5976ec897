//! Reports: what a sync did, and how things stand.

pub(crate) mod history;
pub(crate) mod holder;
pub(crate) mod in_use;
pub(crate) mod journal;
pub(crate) mod notice;
pub(crate) mod observer;
pub(crate) mod owners;
pub(crate) mod problems;
pub(crate) mod standing;
pub(crate) mod tally;
mod told;

use std::{collections::BTreeMap, time::Duration};

use ipvs::{RealServerAddress, ServiceAddress};
use serde::{Deserialize, Serialize};
use service::ObjectName;
use watcher::{OperationKind, seconds};

use crate::{Standing, sync::Outcome};

/// Why a sync ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trigger {
    /// Both lists had arrived: the first sync.
    Start,
    /// The API server or the directory told of a change.
    Change,
    /// The sync period was over.
    Period,
    /// The kernel told that kube-ipvs0, its addresses or our routes changed.
    KernelEvent,
    /// The kernel told that somebody else changed our nf_tables tables.
    TablesChanged,
    /// The kernel told that an address of the node itself came or went, or one that went did not come again in time.
    NodeAddresses,
    /// An earlier sync had failed in part.
    Retry,
    /// An operator asked for it.
    Forced,
    /// Real servers are draining and it was time to look at them.
    Drain,
    /// The sync before put off changes of schedulers.
    Continue,
}

/// What one sync did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Why it ran.
    pub trigger: Trigger,
    /// Whether it looked at the whole kernel, by reading it or by making sure that it is as it was known to
    /// be.
    pub full: bool,
    /// How many operations the kernel carried out.
    pub done: usize,
    /// How many operations of each kind the kernel carried out.
    pub done_by_kind: BTreeMap<OperationKind, usize>,
    /// The first operations that were carried out, one line each; at most [`Report::MOST_DONE`] of them.
    pub first_done: Vec<String>,
    /// The first operations that repaired what something else had changed, one line each; at most
    /// [`Report::MOST_REPAIRS`] of them.
    pub repairs: Vec<String>,
    /// The operations that failed or were put off, each with its cause, one line each; at most
    /// [`Report::MOST_FAILURES`] of them.
    pub failures: Vec<String>,
    /// How many operations failed or were put off, also those not listed.
    pub failed: usize,
    /// How long it took; in JSON, seconds.
    #[serde(with = "seconds")]
    pub took: Duration,
}

impl Trigger {
    /// Whether the kernel's whole state is read anew for it. For the period the image is compared with the
    /// kernel; the other reasons trust the image.
    pub(crate) fn reads_everything(self) -> bool {
        matches!(self, Self::Start | Self::Forced)
    }

    /// Whether the kernel told of a change by itself.
    pub(crate) fn is_told_by_kernel(self) -> bool {
        matches!(self, Self::KernelEvent | Self::TablesChanged | Self::NodeAddresses)
    }
}

impl Report {
    /// Reports a sync.
    pub(crate) fn new(
        trigger: Trigger,
        full: bool,
        outcome: &Outcome,
        repairs: Vec<String>,
        took: Duration,
    ) -> Self {
        let failures = outcome.failures.iter().map(|(operation, cause)| format!("{operation}: {cause}"));
        Self {
            trigger,
            full,
            done: outcome.done.values().sum(),
            done_by_kind: outcome.done.clone(),
            first_done: outcome.first_done.clone(),
            repairs,
            failures: outcome.unread.iter().cloned().chain(failures).take(Self::MOST_FAILURES).collect(),
            failed: outcome.failures.len() + outcome.unread.iter().len(),
            took,
        }
    }

    /// Whether the kernel told of something that was as wanted: an echo of our own work, or a renewed lease.
    pub fn is_no_news(&self) -> bool {
        self.trigger.is_told_by_kernel() && !self.full && self.done == 0 && self.failed == 0
    }

    /// The report of a sync that read, did and repaired nothing.
    pub fn of_nothing(trigger: Trigger) -> Self {
        Self {
            trigger,
            full: false,
            done: 0,
            done_by_kind: BTreeMap::new(),
            first_done: Vec::new(),
            repairs: Vec::new(),
            failures: Vec::new(),
            failed: 0,
            took: Duration::ZERO,
        }
    }

    /// The answer to an operator who asks for a sync before there is anything to sync to.
    pub(crate) fn not_ready() -> Self {
        Self {
            failures: vec!["not yet: the lists of Services and EndpointSlices have not arrived".into()],
            failed: 1,
            ..Self::of_nothing(Trigger::Forced)
        }
    }

    /// The first repair, if there was one.
    pub fn first_repair(&self) -> Option<&str> {
        self.repairs.first().map(String::as_str)
    }

    /// How many failures are listed; a missing scheduler fails ten thousand operations alike.
    pub const MOST_FAILURES: usize = 20;

    /// How many of the operations that were carried out are listed; the first sync has ten thousands.
    pub const MOST_DONE: usize = 20;

    /// How many repairs are listed.
    pub const MOST_REPAIRS: usize = 20;
}

/// How things stand. The default is the status before anything is wanted or known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Whether [`Status::standing`] is [`Standing::Synced`].
    pub synced: bool,
    /// Whether what is wanted is programmed, and if not, why.
    pub standing: Standing,
    /// For how long the standing has been the same, as far as the kernel has been looked at; in JSON,
    /// seconds. A change that is served at once does not begin that time anew, and a repair does.
    #[serde(with = "seconds")]
    pub standing_for: Duration,
    /// How many virtual servers are wanted.
    pub virtual_servers: usize,
    /// How many real servers are wanted.
    pub real_servers: usize,
    /// How many VIPs are wanted on this node.
    pub vips: usize,
    /// How many real servers drain: they get no new connections, and are removed when their last one ends.
    pub draining: usize,
    /// For how long the first of these has been draining, as far as is known: a restart forgets it. 0 without
    /// any; in JSON, seconds.
    #[serde(with = "seconds")]
    pub longest_drain: Duration,
    /// The real servers that have been draining longest, longest first; at most [`Status::MOST_DRAINS`] of
    /// them.
    pub drains: Vec<Drain>,
    /// How many virtual servers keep their scheduler for now: each sync changes a few.
    pub scheduler_changes: usize,
    /// The problems of Services and EndpointSlices, one line each; at most [`Status::MOST_PROBLEMS`] of them.
    /// The rest of these objects is served all the same.
    pub problems: Vec<String>,
    /// The last sync, if there was one.
    pub last_sync: Option<LastSync>,
    /// The last sync that changed something.
    pub last_change: Option<LastSync>,
    /// The last sync that repaired what something else had changed.
    pub last_repair: Option<LastSync>,
    /// How many operations have repaired something, in all syncs.
    pub repaired: usize,
    /// The last sync that looked at the whole kernel. What something else has changed since is not known.
    pub last_full_sync: Option<LastSync>,
}

impl Status {
    /// How many draining real servers are listed.
    pub const MOST_DRAINS: usize = 20;

    /// How many problems are listed.
    pub const MOST_PROBLEMS: usize = 20;
}

/// A sync that has ended, and how long ago.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastSync {
    /// What the sync did.
    pub report: Report,
    /// How long ago it ended; in JSON, seconds.
    #[serde(with = "seconds")]
    pub age: Duration,
}

/// A real server that gets no new connections and is removed when its last one ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// The Service that has the virtual server's address, if one still has it.
    pub service: Option<ObjectName>,
    /// The virtual server.
    pub virtual_server: ServiceAddress,
    /// The real server.
    pub real_server: RealServerAddress,
    /// For how long it has been draining, as far as is known: a restart forgets it. In JSON, seconds.
    #[serde(with = "seconds")]
    pub age: Duration,
}
