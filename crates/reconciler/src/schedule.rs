//! When to sync. Knows no clock: every method is told the time.

use std::time::{Duration, Instant};

use crate::Trigger;

/// The first wait after a failed sync; it doubles up to the sync period.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// A VIP that somebody took away is missed at once, so its repair waits for no more than this after
/// the last sync; but two programs that undo each other's work shall not do so in a tight loop.
const REPAIR_PAUSE: Duration = Duration::from_millis(200);

/// How often draining real servers are looked at.
const DRAIN_INTERVAL: Duration = Duration::from_secs(5);

/// How often syncs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Periods {
    /// Without any other cause the kernel is read and repaired this often (`syncPeriod`).
    pub sync: Duration,
    /// At least this much time lies between the end of one sync and the start of the next
    /// (`minSyncPeriod`). The first change after a quiet time is not delayed.
    pub min_sync: Duration,
}

/// How much of the kernel a sync read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// Everything.
    Everything,
    /// What its reason asked for.
    Part,
    /// Nothing: the kernel could not be read.
    Nothing,
}

/// How a sync ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// How much of the kernel it read.
    pub(crate) read: Read,
    /// It left something undone.
    pub(crate) failed: bool,
    /// There are draining real servers.
    pub(crate) draining: bool,
}

/// Collects reasons to sync and says when the next one is due.
///
/// Reasons that come while one waits are served by the same sync. A forced sync does not wait at all,
/// a repair hardly.
#[derive(Debug)]
pub(crate) struct Schedule {
    periods: Periods,
    wanted: Option<Trigger>,
    last_end: Option<Instant>,
    last_full_end: Option<Instant>,
    failures: u32,
    unread: bool,
    draining: bool,
}

impl Schedule {
    pub(crate) fn new(periods: Periods) -> Self {
        Self {
            periods,
            wanted: None,
            last_end: None,
            last_full_end: None,
            failures: 0,
            unread: false,
            draining: false,
        }
    }

    /// Asks for a sync as soon as `min_sync` allows. The most thorough reason is kept.
    pub(crate) fn want(&mut self, trigger: Trigger) {
        self.wanted = Some(match self.wanted {
            Some(earlier) if thoroughness(earlier) >= thoroughness(trigger) => earlier,
            _ => trigger,
        });
    }

    /// A sync has ended.
    pub(crate) fn ended(&mut self, now: Instant, sync: Ended) {
        self.wanted = None;
        self.last_end = Some(now);
        if sync.read == Read::Everything {
            self.last_full_end = Some(now);
        }
        self.failures = if sync.failed { self.failures.saturating_add(1) } else { 0 };
        self.unread = sync.read == Read::Nothing;
        self.draining = sync.draining;
    }

    /// When the next sync is due, and why; a time that has passed means now. Before the first sync,
    /// whatever is asked for is due at once.
    pub(crate) fn next(&self, now: Instant) -> Option<(Instant, Trigger)> {
        let Some(last_end) = self.last_end else {
            return self.wanted.map(|trigger| (now, trigger));
        };
        let asked = self.wanted.map(|trigger| {
            let pause = match trigger {
                Trigger::Forced => Duration::ZERO,
                Trigger::KernelEvent => self.periods.min_sync.min(REPAIR_PAUSE),
                _ => self.periods.min_sync,
            };
            (last_end + pause, trigger)
        });
        let retry = (self.failures > 0).then(|| (last_end + self.retry_delay(), Trigger::Retry));
        let drain =
            self.draining.then(|| (last_end + DRAIN_INTERVAL.max(self.periods.min_sync), Trigger::Drain));
        // Syncs that read only a part must not put off the one that reads everything.
        let period = self.last_full_end.unwrap_or(last_end) + self.periods.sync;
        // But a kernel that could not be read is not read again and again without a pause.
        let period = retry.filter(|_| self.unread).map_or(period, |(due, _)| period.max(due));
        let soonest = [asked, retry, drain].into_iter().flatten().min_by_key(|(due, _)| *due);
        match soonest {
            Some((due, Trigger::Forced)) => Some((due, Trigger::Forced)),
            Some((due, trigger)) if due.max(now) < period => Some((due, trigger)),
            Some((due, _)) => Some((due.min(period).max(last_end + self.periods.min_sync), Trigger::Period)),
            None => Some((period, Trigger::Period)),
        }
    }

    fn retry_delay(&self) -> Duration {
        let doubled = FIRST_RETRY.saturating_mul(1 << (self.failures - 1).min(16));
        doubled.clamp(self.periods.min_sync, self.periods.sync.max(self.periods.min_sync))
    }
}

/// A sync for a more thorough reason does all that one for a less thorough reason would.
fn thoroughness(trigger: Trigger) -> u8 {
    match trigger {
        Trigger::Drain => 0,
        Trigger::Change | Trigger::Retry => 1,
        Trigger::KernelEvent => 2,
        Trigger::Period | Trigger::Start => 3,
        Trigger::Forced => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIODS: Periods = Periods { sync: Duration::from_secs(30), min_sync: Duration::from_secs(2) };

    const FULL: Ended = Ended { read: Read::Everything, failed: false, draining: false };

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_first_change_is_synced_at_once() {
        let now = Instant::now();
        let mut schedule = Schedule::new(PERIODS);
        assert_eq!(schedule.next(now), None, "nothing is asked for");
        schedule.want(Trigger::Start);
        assert_eq!(schedule.next(now), Some((now, Trigger::Start)));
    }

    #[test]
    fn a_change_after_a_quiet_time_is_synced_at_once() {
        let end = Instant::now();
        let mut schedule = Schedule::new(PERIODS);
        schedule.ended(end, FULL);
        schedule.want(Trigger::Change);
        let (due, _) = schedule.next(end + seconds(10)).unwrap();
        assert!(due <= end + seconds(10));
    }

    #[test]
    fn min_sync_period_counts_from_the_end_of_the_last_sync_and_a_burst_is_one_sync() {
        let end = Instant::now();
        let mut schedule = Schedule::new(PERIODS);
        schedule.ended(end, FULL);
        schedule.want(Trigger::Change);
        schedule.want(Trigger::Change);
        assert_eq!(schedule.next(end), Some((end + seconds(2), Trigger::Change)));
        let end = end + seconds(5);
        schedule.ended(end, FULL);
        assert_eq!(schedule.next(end), Some((end + seconds(30), Trigger::Period)), "nothing is left");
    }

    #[test]
    fn a_forced_sync_does_not_wait() {
        let end = Instant::now();
        let mut schedule = Schedule::new(PERIODS);
        schedule.ended(end, FULL);
        schedule.want(Trigger::Change);
        schedule.want(Trigger::Forced);
        assert_eq!(schedule.next(end), Some((end, Trigger::Forced)));
    }

    #[test]
    fn a_repair_hardly_waits() {
        let end = Instant::now();
        let mut schedule = Schedule::new(PERIODS);
        schedule.ended(end, FULL);
        schedule.want(Trigger::KernelEvent);
        assert_eq!(schedule.next(end), Some((end + REPAIR_PAUSE, Trigger::KernelEvent)));
    }

    #[test]
    fn a_failed_sync_is_tried_again_sooner_than_the_period_and_ever_more_slowly() {
        let mut end = Instant::now();
        let mut schedule = Schedule::new(Periods { min_sync: Duration::ZERO, ..PERIODS });
        let mut waits = Vec::new();
        for _ in 0..7 {
            schedule.ended(end, Ended { failed: true, ..FULL });
            let (due, trigger) = schedule.next(end).unwrap();
            waits.push(((due - end).as_secs(), trigger));
            end = due;
        }
        let expected = [1, 2, 4, 8, 16].map(|wait| (wait, Trigger::Retry));
        assert_eq!(waits.get(..5).unwrap(), expected);
        assert_eq!(*waits.last().unwrap(), (30, Trigger::Period), "never more slowly than the period");
        schedule.ended(end, FULL);
        assert_eq!(schedule.next(end), Some((end + seconds(30), Trigger::Period)));
    }

    #[test]
    fn changes_failures_and_draining_do_not_put_off_the_period() {
        let begin = Instant::now();
        let mut schedule = Schedule::new(Periods { min_sync: Duration::ZERO, ..PERIODS });
        schedule.ended(begin, FULL);
        for second in 1..30 {
            let now = begin + seconds(second);
            schedule.want(Trigger::Change);
            assert_eq!(schedule.next(now).unwrap().1, Trigger::Change, "second {second}");
            schedule.ended(now, Ended { read: Read::Part, failed: true, draining: true });
        }
        schedule.want(Trigger::Change);
        assert_eq!(schedule.next(begin + seconds(30)).unwrap().1, Trigger::Period);
    }

    #[test]
    fn a_kernel_that_cannot_be_read_is_not_read_without_a_pause() {
        let mut now = Instant::now();
        let mut schedule = Schedule::new(Periods { min_sync: Duration::ZERO, ..PERIODS });
        schedule.ended(now, FULL);
        now += seconds(40);
        schedule.ended(now, Ended { read: Read::Nothing, failed: true, draining: false });
        assert!(schedule.next(now).unwrap().0 >= now + seconds(1), "{:?}", schedule.next(now));
    }

    #[test]
    fn draining_real_servers_are_looked_at_between_periods() {
        let end = Instant::now();
        let mut schedule = Schedule::new(PERIODS);
        schedule.ended(end, Ended { draining: true, ..FULL });
        assert_eq!(schedule.next(end), Some((end + DRAIN_INTERVAL, Trigger::Drain)));
    }
}
