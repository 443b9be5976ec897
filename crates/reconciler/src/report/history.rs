//! The past syncs that `status` shows. Nothing here reads a clock: the caller passes the time.

use std::time::Instant;

use super::sync_state::{SyncState, SyncStateTracker};
use crate::{ForeignVirtualServers, LastSync, SyncReport, SyncStats, SyncStatus};

/// The past syncs that `status` shows, and the sync state.
#[derive(Debug)]
pub(crate) struct History {
    /// The last one that was not an echo.
    last: Option<PastSync>,
    last_change: Option<PastSync>,
    last_repair: Option<PastSync>,
    last_full: Option<PastSync>,
    /// How many operations have repaired something.
    repaired: usize,
    /// The foreign virtual servers that all syncs have removed.
    removed_foreign: ForeignVirtualServers,
    sync_state: SyncStateTracker,
}

/// A sync, and when it ended.
#[derive(Clone, Debug)]
struct PastSync {
    report: SyncReport,
    at: Instant,
}

impl History {
    /// Starts before the first sync.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            last: None,
            last_change: None,
            last_repair: None,
            last_full: None,
            repaired: 0,
            removed_foreign: ForeignVirtualServers::default(),
            sync_state: SyncStateTracker::new(now),
        }
    }

    /// Records whether anything waits for the next sync.
    pub(crate) fn set_behind(&mut self, anything: bool, now: Instant) {
        self.sync_state.set_behind(anything, now);
    }

    /// Adds a sync that has ended.
    pub(crate) fn add(&mut self, report: SyncReport, stats: &SyncStats, now: Instant) {
        let repairs = report.first_repair().is_some();
        self.sync_state.sync_ended(report.failed == 0, repairs, now);
        self.repaired += stats.repairs.values().sum::<usize>();
        self.removed_foreign.extend(&report.removed_foreign);
        let ended = PastSync { report, at: now };
        if ended.report.done > 0 {
            self.last_change = Some(ended.clone());
        }
        if repairs {
            self.last_repair = Some(ended.clone());
        }
        if ended.report.full {
            self.last_full = Some(ended.clone());
        }
        // An echo must not hide a sync that did something, but it must replace one that failed.
        if !ended.report.is_echo() || self.last.as_ref().is_none_or(|last| last.report.failed > 0) {
            self.last = Some(ended);
        }
    }

    /// Whether any sync has ended.
    pub(crate) fn has_synced(&self) -> bool {
        self.last.is_some()
    }

    /// Whether a sync has checked the whole kernel.
    pub(crate) fn has_full_sync(&self) -> bool {
        self.last_full.is_some()
    }

    /// Returns a status with what is remembered, and defaults for everything else.
    pub(crate) fn status(&self, now: Instant) -> SyncStatus {
        let (sync_state, sync_state_age) = self.sync_state.current(now);
        let last_sync = |PastSync { report, at }: &PastSync| LastSync {
            report: report.clone(),
            age: now.saturating_duration_since(*at),
        };
        SyncStatus {
            synced: sync_state == SyncState::Synced,
            sync_state,
            sync_state_age,
            last_sync: self.last.as_ref().map(last_sync),
            last_change: self.last_change.as_ref().map(last_sync),
            last_repair: self.last_repair.as_ref().map(last_sync),
            repaired: self.repaired,
            removed_foreign: self.removed_foreign.clone(),
            last_full_sync: self.last_full.as_ref().map(last_sync),
            ..SyncStatus::default()
        }
    }
}
