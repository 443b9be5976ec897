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
    unsynced: Option<Instant>,
    /// How much news is on its way to the thread.
    underway: usize,
    /// Since when the thread takes nothing of it in. It does not while it syncs: one that hangs in a call into the
    /// kernel is noticed by this.
    deaf: Option<Instant>,
}

impl Progress {
    /// News was sent to the thread.
    pub(super) fn sent(&mut self, now: Instant) {
        if self.underway == 0 {
            self.deaf = Some(now);
        }
        self.underway += 1;
    }

    /// So many pieces of news have arrived there. Whether the next sync has to act on them.
    pub(super) fn heard(&mut self, pieces: usize, waits: bool, now: Instant) {
        self.underway = self.underway.saturating_sub(pieces);
        self.listens(now);
        if waits {
            self.unsynced.get_or_insert(now);
        }
    }

    /// A sync has ended.
    pub(super) fn synced(&mut self, complete: bool, now: Instant, time: Timestamp) {
        // News that came before the first sync was part of it.
        if !self.started {
            self.unsynced = None;
        }
        self.started = true;
        self.listens(now);
        if complete {
            self.updated = Some(time);
            self.unsynced = None;
        } else {
            self.unsynced.get_or_insert(now);
        }
    }

    fn listens(&mut self, now: Instant) {
        self.deaf = (self.underway > 0).then_some(now);
    }

    /// Since when something waits.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        [self.unsynced, self.deaf].into_iter().flatten().min().filter(|_| self.started)
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
