//! The status of the reconciler.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use ipvs::{RealServerAddress, ServiceAddress};
use serde::{Deserialize, Serialize};
use service::{ObjectName, seconds};

use crate::{BusyWith, ForeignVirtualServers, SyncReport, SyncState};

/// The status of the reconciler. The default is the status before anything is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncStatus {
    /// Whether [`SyncStatus::sync_state`] is [`SyncState::Synced`].
    pub synced: bool,
    /// Whether the desired state is programmed, and if not, why.
    #[serde(rename = "standing")]
    pub sync_state: SyncState,
    /// How long the sync state has been the same, as far as the kernel has been checked; in JSON,
    /// seconds. A change that is served at once does not begin that time anew, and a repair does.
    #[serde(rename = "standing_for", with = "seconds")]
    pub sync_state_age: Duration,
    /// What takes so long that other Services are served in between, if anything does.
    // A daemon of an earlier release may be asked.
    #[serde(default)]
    pub busy: Option<BusyWith>,
    /// How many virtual servers are wanted.
    pub virtual_servers: usize,
    /// How many real servers are wanted.
    pub real_servers: usize,
    /// How many VIPs are wanted on this node.
    pub vips: usize,
    /// The external addresses at which Services are served and that are not bound, because another host has them.
    // A daemon of an earlier release may be asked.
    #[serde(default)]
    pub unbound: BTreeSet<IpAddr>,
    /// How many real servers drain: they get no new connections, and are removed when their last one ends.
    pub draining: usize,
    /// For how long the first of these has been draining, as far as is known: a restart forgets it. 0 without
    /// any; in JSON, seconds.
    #[serde(with = "seconds")]
    pub longest_drain: Duration,
    /// The real servers that have been draining longest, longest first; at most [`SyncStatus::MOST_DRAINS`] of them, in
    /// turn by namespaces.
    pub drains: Vec<Drain>,
    /// How many virtual servers keep their scheduler for now: each sync changes a few.
    pub scheduler_changes: usize,
    /// The foreign virtual servers that are left alone, as of the last full look: those that are kept, and those in
    /// excluded ranges.
    pub kept_foreign: ForeignVirtualServers,
    /// The foreign virtual servers that were removed, in all syncs.
    pub removed_foreign: ForeignVirtualServers,
    /// The problems of Services and EndpointSlices, one line each, in turn by namespaces; at most
    /// [`SyncStatus::MOST_PROBLEMS`] of them. The rest of these objects is served all the same.
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

impl SyncStatus {
    /// How many draining real servers are listed.
    pub const MOST_DRAINS: usize = 20;

    /// How many problems are listed.
    pub const MOST_PROBLEMS: usize = 20;
}

/// A sync that has ended, and how long ago.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastSync {
    /// What the sync did.
    pub report: SyncReport,
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
