//! Tracks the progress of the writer thread.

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::answer::GoTime;

/// The last sync, and since when a change waits.
///
/// Before the first sync has ended nothing counts as waiting, however long the API server takes for its lists and the
/// kernel for ten thousand Services: a proxy killed for being slow begins again, and is slow again. From then on a
/// sync that could not even read the kernel counts as waiting, the first one too.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Whether a sync has ended, with any result.
    started: bool,
    /// Whether a sync has ended after which nothing was left to be tried again.
    programmed: bool,
    /// Whether the kernel lacks virtual servers that it had, until syncs have added all of them again.
    lost: bool,
    updated: Option<Timestamp>,
    /// The oldest change taken in and not synced, or the sync that could not be carried out.
    unsynced_since: Option<Instant>,
    /// The changes sent to the thread and not taken in.
    in_transit: usize,
    /// Since when the thread takes nothing in. It does not while it syncs: this notices a sync that hangs in the
    /// kernel.
    stalled_since: Option<Instant>,
}

impl Progress {
    /// A change was sent to the thread.
    pub(super) fn sent(&mut self, now: Instant) {
        if self.in_transit == 0 {
            self.stalled_since = Some(now);
        }
        self.in_transit += 1;
    }

    /// The thread took in so many changes. `waits` says whether the next sync has to act on them.
    pub(super) fn taken_in(&mut self, changes: usize, waits: bool, now: Instant) {
        self.in_transit = self.in_transit.saturating_sub(changes);
        self.restart_stall_clock(now);
        if waits {
            self.unsynced_since.get_or_insert(now);
        }
    }

    /// The kernel lacks virtual servers that it had.
    pub(super) fn lost(&mut self) {
        self.lost = true;
    }

    /// A sync has ended, and this many operations were refused or are left for the next one. `lost`: virtual servers
    /// that the kernel had are missing still.
    pub(super) fn synced(
        &mut self,
        complete: bool,
        undone: usize,
        lost: bool,
        now: Instant,
        time: Timestamp,
    ) {
        // Changes before the first sync were part of it.
        if !self.started {
            self.unsynced_since = None;
        }
        self.started = true;
        self.lost = lost;
        self.restart_stall_clock(now);
        if complete {
            self.programmed |= undone == 0;
            self.updated = Some(time);
            self.unsynced_since = None;
        } else {
            self.unsynced_since.get_or_insert(now);
        }
    }

    fn restart_stall_clock(&mut self, now: Instant) {
        self.stalled_since = (self.in_transit > 0).then_some(now);
    }

    /// Since when a change waits.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        [self.unsynced_since, self.stalled_since].into_iter().flatten().min().filter(|_| self.started)
    }

    /// Whether the desired state has been in the kernel once, and no virtual server has been lost since and is missing
    /// still.
    pub(super) fn has_programmed(&self) -> bool {
        self.programmed && !self.lost
    }

    /// The end of the last complete sync, once any sync has ended.
    pub(super) fn updated(&self) -> Option<GoTime> {
        self.started.then_some(GoTime(self.updated))
    }
}
