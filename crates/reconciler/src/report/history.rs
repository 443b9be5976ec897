//! The past syncs that `status` shows. Nothing here reads a clock: the caller passes the time.

use std::time::{Duration, Instant};

use crate::{ForeignVirtualServers, LastSync, SyncReport, SyncState, SyncStats, SyncStatus};

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

/// Tracks the [`SyncState`] and its age.
///
/// A change that waits for its sync does not restart the age of [`SyncState::Synced`], because Services may
/// change all the time. A repair restarts it: until then the kernel was not as desired, for an unknown time.
#[derive(Debug)]
pub(crate) struct SyncStateTracker {
    /// Whether the last sync succeeded; `None` before the first.
    succeeded: Option<bool>,
    /// When `succeeded` became what it is.
    since: Instant,
    /// Since when something waits for the next sync; `None` if nothing does.
    behind: Option<Instant>,
}

impl SyncStateTracker {
    /// Starts before the first sync.
    pub(crate) fn new(now: Instant) -> Self {
        Self { succeeded: None, since: now, behind: None }
    }

    /// Records whether anything waits for the next sync.
    pub(crate) fn set_behind(&mut self, anything: bool, now: Instant) {
        self.behind = anything.then(|| self.behind.unwrap_or(now));
    }

    /// Records the end of a sync, whether it succeeded, and whether it repaired something.
    pub(crate) fn sync_ended(&mut self, succeeded: bool, repaired: bool, now: Instant) {
        if self.succeeded != Some(succeeded) || succeeded && repaired {
            (self.succeeded, self.since) = (Some(succeeded), now);
        }
    }

    /// Returns the state, and for how long it has lasted.
    pub(crate) fn current(&self, now: Instant) -> (SyncState, Duration) {
        let (state, since) = match (self.succeeded, self.behind) {
            (Some(false), _) => (SyncState::Failing, self.since),
            (_, Some(behind)) => (SyncState::Behind, behind),
            (None, None) => (SyncState::NotListed, self.since),
            (Some(true), None) => (SyncState::Synced, self.since),
        };
        (state, now.saturating_duration_since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state this many seconds after the begin, and for how many seconds it has lasted.
    fn at(tracker: &SyncStateTracker, begin: Instant, seconds: u64) -> (SyncState, u64) {
        let (state, age) = tracker.current(begin + Duration::from_secs(seconds));
        (state, age.as_secs())
    }

    #[test]
    fn from_the_start_to_the_first_sync() {
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut tracker = SyncStateTracker::new(begin);
        assert_eq!(at(&tracker, begin, 3), (SyncState::NotListed, 3));
        tracker.set_behind(true, after(5));
        assert_eq!(at(&tracker, begin, 6), (SyncState::Behind, 1));
        tracker.sync_ended(true, false, after(7));
        tracker.set_behind(false, after(7));
        assert_eq!(at(&tracker, begin, 9), (SyncState::Synced, 2));
    }

    #[test]
    fn served_changes_do_not_restart_the_age() {
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut tracker = SyncStateTracker::new(begin);
        tracker.sync_ended(true, false, begin);
        tracker.set_behind(true, after(10));
        tracker.set_behind(true, after(11));
        assert_eq!(at(&tracker, begin, 12), (SyncState::Behind, 2));
        tracker.sync_ended(true, false, after(12));
        tracker.set_behind(false, after(12));
        assert_eq!(at(&tracker, begin, 20), (SyncState::Synced, 20));
    }

    #[test]
    fn repair_restarts_the_age_because_the_kernel_was_wrong_until_then() {
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut tracker = SyncStateTracker::new(begin);
        tracker.sync_ended(true, false, begin);
        tracker.sync_ended(true, true, after(10));
        assert_eq!(at(&tracker, begin, 12), (SyncState::Synced, 2));
        tracker.sync_ended(true, false, after(20));
        assert_eq!(at(&tracker, begin, 25), (SyncState::Synced, 15));
        for seconds in [30, 31] {
            tracker.sync_ended(false, true, after(seconds));
        }
        assert_eq!(
            at(&tracker, begin, 35),
            (SyncState::Failing, 5),
            "a repair beside a failure ends nothing"
        );
    }

    #[test]
    fn it_fails_from_the_first_failure_to_the_first_success() {
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut tracker = SyncStateTracker::new(begin);
        tracker.sync_ended(true, false, begin);
        for seconds in [10, 11, 13] {
            tracker.sync_ended(false, false, after(seconds));
            tracker.set_behind(true, after(seconds));
        }
        assert_eq!(at(&tracker, begin, 15), (SyncState::Failing, 5));
        tracker.sync_ended(true, false, after(17));
        tracker.set_behind(false, after(17));
        assert_eq!(at(&tracker, begin, 18), (SyncState::Synced, 1));
    }

    #[test]
    fn what_takes_several_syncs_is_behind_since_its_begin() {
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut tracker = SyncStateTracker::new(begin);
        tracker.sync_ended(true, false, begin);
        tracker.set_behind(true, after(1));
        for seconds in [2, 3, 4] {
            tracker.sync_ended(true, false, after(seconds));
            tracker.set_behind(true, after(seconds));
        }
        assert_eq!(at(&tracker, begin, 5), (SyncState::Behind, 4));
    }
}
