//! How far the writer thread has come.

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::answer::GoTime;

/// What has been done, and since when something waits to be done.
///
/// Before the first sync has ended nothing counts as waiting, however long the API server takes for its lists and the
/// kernel for ten thousand Services: a proxy that is killed for being slow begins again, and is slow again. From then
/// on a sync that could not even read the kernel is something that waits, the first one too.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Whether a sync has ended, in whatever way.
    started: bool,
    updated: Option<Timestamp>,
    /// The oldest news that the thread has taken in and not acted on, or the sync that it could not carry out.
    unsynced_since: Option<Instant>,
    /// How much news is on its way to the thread.
    in_transit: usize,
    /// Since when the thread takes nothing of it in. It does not while it syncs: one that hangs in a call into the
    /// kernel is noticed by this.
    stalled_since: Option<Instant>,
}

impl Progress {
    /// News was sent to the thread.
    pub(super) fn sent(&mut self, now: Instant) {
        if self.in_transit == 0 {
            self.stalled_since = Some(now);
        }
        self.in_transit += 1;
    }

    /// So many pieces of news have arrived there. Whether the next sync has to act on them.
    pub(super) fn taken_in(&mut self, pieces: usize, waits: bool, now: Instant) {
        self.in_transit = self.in_transit.saturating_sub(pieces);
        self.restart_stall_clock(now);
        if waits {
            self.unsynced_since.get_or_insert(now);
        }
    }

    /// A sync has ended.
    pub(super) fn synced(&mut self, complete: bool, now: Instant, time: Timestamp) {
        // News that came before the first sync was part of it.
        if !self.started {
            self.unsynced_since = None;
        }
        self.started = true;
        self.restart_stall_clock(now);
        if complete {
            self.updated = Some(time);
            self.unsynced_since = None;
        } else {
            self.unsynced_since.get_or_insert(now);
        }
    }

    fn restart_stall_clock(&mut self, now: Instant) {
        self.stalled_since = (self.in_transit > 0).then_some(now);
    }

    /// Since when something waits.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        [self.unsynced_since, self.stalled_since].into_iter().flatten().min().filter(|_| self.started)
    }

    /// Whether a sync could once be compared and carried out.
    pub(super) fn has_completed(&self) -> bool {
        self.updated.is_some()
    }

    /// When a sync last could be compared, if any has ended at all.
    pub(super) fn updated(&self) -> Option<GoTime> {
        self.started.then_some(GoTime(self.updated))
    }
}
