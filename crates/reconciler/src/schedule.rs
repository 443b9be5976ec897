//! When to sync, and why. Nothing here reads a clock: the caller passes the time.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Why a sync ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trigger {
    /// Both lists have arrived: the first sync.
    Start,
    /// The API server or the directory reported a change.
    Change,
    /// The sync period was over.
    Period,
    /// The kernel reported a change of kube-ipvs0, its addresses or our routes.
    KernelEvent,
    /// The kernel reported that another program changed our nf_tables tables.
    TablesChanged,
    /// The kernel reported that the node got or lost an address, or the grace period of a lost one has ended.
    NodeAddresses,
    /// A virtual server that was there was missing: another program may have emptied IPVS.
    VirtualServerLost,
    /// An earlier sync failed in part.
    Retry,
    /// An operator requested it.
    Forced,
    /// Draining real servers were due for a check.
    Drain,
    /// The previous sync had no time for everything, or deferred changes of schedulers or the verification of
    /// what the start has adopted.
    Continue,
}

impl Trigger {
    /// Whether the sync reads the kernel's whole state anew, a forced one by netlink alone. A periodic sync, and
    /// one for a lost virtual server, compares the image with the kernel; the other syncs trust the image.
    pub(crate) fn reads_everything(self) -> bool {
        matches!(self, Self::Start | Self::Forced)
    }

    /// Whether the sync checks the whole kernel.
    pub(crate) fn is_full(self) -> bool {
        self.reads_everything() || matches!(self, Self::Period | Self::VirtualServerLost)
    }

    /// Whether the sync retries what failed, also while there is more to do.
    pub(crate) fn retries(self) -> bool {
        self.is_full() || self == Self::Retry
    }

    /// Whether the reason is a change of another program, which is not left for `minSyncPeriod`.
    fn is_repair(self) -> bool {
        self.is_from_kernel() || self == Self::VirtualServerLost
    }

    /// Whether a notification of the kernel is the reason.
    pub(crate) fn is_from_kernel(self) -> bool {
        matches!(self, Self::KernelEvent | Self::TablesChanged | Self::NodeAddresses)
    }

    /// Ranks the reasons: a sync does everything that a sync of a lower rank would do.
    pub(crate) fn rank(self) -> u8 {
        match self {
            Self::Drain | Self::Continue => 0,
            Self::Change | Self::Retry => 1,
            Self::NodeAddresses => 2,
            Self::KernelEvent | Self::TablesChanged => 3,
            Self::Period | Self::VirtualServerLost | Self::Start => 4,
            Self::Forced => 5,
        }
    }
}

/// The first wait after a failed sync; it doubles up to the sync period.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// The pause between the last sync and a repair, whatever `minSyncPeriod` says. It is short because what
/// another program removed is missed at once. It is not zero because two programs that undo each other's work
/// must not run in a tight loop.
const REPAIR_PAUSE: Duration = Duration::from_millis(200);

/// The pause between two syncs that change schedulers, or verify what the start has adopted. Meanwhile
/// packets that found no scheduler are sent again, and other changes are served.
const CONTINUE_PAUSE: Duration = Duration::from_millis(100);

/// The times that decide when to sync, and how long a real server may drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The interval at which the kernel is checked and repaired without any other cause (`syncPeriod`).
    pub sync_period: Duration,
    /// The least time between the end of one sync and the start of the next (`minSyncPeriod`). The first
    /// change after a quiet time is not delayed, not even by a sync that was periodic or continued another one, and wrote
    /// nothing.
    pub min_sync_period: Duration,
    /// How long a TCP real server that is no longer wanted may keep its connections. Then it is removed and
    /// its connections are cut off. `None`: it stays until the last connection has ended.
    pub drain_timeout: Option<Duration>,
    /// When IPVS forgets an idle TCP connection. For as long, a tunnel that no Service needs any more may
    /// have some.
    pub tcp_timeout: Duration,
}

impl Timing {
    /// The kernel's own timeout of idle TCP connections (`tcp_timeouts` in
    /// net/netfilter/ipvs/ip_vs_proto_tcp.c).
    pub const TCP_TIMEOUT: Duration = Duration::from_secs(15 * 60);
}

/// The operations and readings that have failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Failures {
    /// None.
    #[default]
    None,
    /// Some, all of which the sync has tried.
    Tried,
    /// Some of earlier syncs among them, which wait for their retry, because the sync followed another one that had
    /// more to do.
    Waiting,
}

/// The work that a sync has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// None.
    None,
    /// Deferred work that can be done soon.
    Deferred,
    /// Work that it had no time for: the next sync goes on at once.
    Interrupted,
}

/// How a sync ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SyncEnd {
    /// Whether it checked the whole kernel.
    pub(crate) full: bool,
    /// Whether the kernel could not be read.
    pub(crate) unread: bool,
    /// Whether it was periodic or continued another one, and had nothing to do.
    pub(crate) idle: bool,
    pub(crate) failures: Failures,
    pub(crate) rest: Rest,
    /// When draining real servers or lost addresses must be checked, and for which of the two.
    pub(crate) next_check: Option<(Instant, Trigger)>,
}

/// Collects reasons to sync and says when the next sync is due.
///
/// Reasons that arrive while another one waits share one sync. A forced sync does not wait at all, and a
/// repair waits for [`REPAIR_PAUSE`] only.
#[derive(Debug)]
pub(crate) struct Schedule {
    timing: Timing,
    wanted: Option<Trigger>,
    /// When the last sync ended, and how.
    last: Option<(Instant, SyncEnd)>,
    last_full_end: Option<Instant>,
    /// When the last sync that was not idle ended: from then on the pause before a change counts.
    last_active_end: Option<Instant>,
    /// How many attempts have failed in a row.
    failures: u32,
    /// When what failed is tried again.
    retry: Option<Instant>,
    /// Whether the sync that is due next comes before the periodic one, although that is due too.
    period_waits: bool,
}

impl Schedule {
    pub(crate) fn new(timing: Timing) -> Self {
        Self {
            timing,
            wanted: None,
            last: None,
            last_full_end: None,
            last_active_end: None,
            failures: 0,
            retry: None,
            period_waits: false,
        }
    }

    /// Requests a sync as soon as the pause after the last one allows. The most thorough reason is kept.
    pub(crate) fn request(&mut self, trigger: Trigger) {
        self.wanted = Some(match self.wanted {
            Some(earlier) if earlier.rank() >= trigger.rank() => earlier,
            _ => trigger,
        });
    }

    /// Whether the comparison of a periodic sync may be interrupted now: once a period is over, until another one is.
    pub(crate) fn may_interrupt_comparison(&self, now: Instant) -> bool {
        let period = self.timing.sync_period;
        self.last_full_end.is_some_and(|end| (end + period..end + 2 * period).contains(&now))
    }

    /// Lets one other sync go before the periodic one, if one becomes due.
    pub(crate) fn postpone_period(&mut self) {
        self.period_waits = true;
    }

    /// Records the end of a sync.
    pub(crate) fn sync_ended(&mut self, now: Instant, sync: SyncEnd) {
        self.wanted = None;
        self.period_waits = false;
        self.last = Some((now, sync));
        if sync.full {
            self.last_full_end = Some(now);
        }
        if !sync.idle {
            self.last_active_end = Some(now);
        }
        match sync.failures {
            Failures::None => (self.failures, self.retry) = (0, None),
            Failures::Waiting if self.retry.is_some() => {}
            Failures::Tried | Failures::Waiting => {
                self.failures = self.failures.saturating_add(1);
                self.retry = Some(now + self.retry_delay());
            }
        }
    }

    /// Returns when the next sync is due, and why. A time in the past means now. Before the first sync, every
    /// request is due at once.
    pub(crate) fn next_sync(&self, now: Instant) -> Option<(Instant, Trigger)> {
        let other = self.next_but_periodic(now);
        let Some((last_end, last)) = self.last else { return other };
        // Syncs that read only a part must not put off the one that reads everything.
        let period = self.last_full_end.unwrap_or(last_end) + self.timing.sync_period;
        // After a failed reading the period waits for the retry, so that the kernel is not read without a
        // pause.
        let period = self.retry.filter(|_| last.unread).map_or(period, |due| period.max(due));
        let by_itself = period.max(last_end + self.timing.min_sync_period);
        match other {
            Some((due, trigger))
                if trigger == Trigger::Forced || due.max(now) < period || self.period_waits && due <= now =>
            {
                Some((due, trigger))
            }
            // A periodic sync does that work too. A repair does not wait for it.
            Some((due, _)) => Some((due.min(by_itself), Trigger::Period)),
            None => Some((by_itself, Trigger::Period)),
        }
    }

    /// The next sync that would be due if there were no period.
    pub(crate) fn next_but_periodic(&self, now: Instant) -> Option<(Instant, Trigger)> {
        let Some((last_end, last)) = self.last else {
            return self.wanted.map(|trigger| (now, trigger));
        };
        let asked = self.wanted.map(|trigger| {
            let due = match trigger {
                Trigger::Forced => last_end,
                _ if trigger.is_repair() => last_end + REPAIR_PAUSE,
                _ => self.last_active_end.map_or(last_end, |end| end + self.timing.min_sync_period),
            };
            (due, trigger)
        });
        let retry = self.retry.map(|due| (due, Trigger::Retry));
        let pause = match last.rest {
            Rest::None => None,
            Rest::Deferred => Some(CONTINUE_PAUSE.max(self.timing.min_sync_period)),
            Rest::Interrupted => Some(Duration::ZERO),
        };
        let proceed = pause.map(|pause| (last_end + pause, Trigger::Continue));
        let check = last.next_check.map(|(due, why)| (due.max(last_end + self.timing.min_sync_period), why));
        // A retry that waited while a sync was busy can be overdue. It must not replace a sync that reads more.
        let reads_more = |retry: &(Instant, Trigger)| {
            asked.is_some_and(|(due, it)| it.rank() > retry.1.rank() && due <= retry.0.max(now))
        };
        let retry = retry.filter(|retry| !reads_more(retry));
        [asked, retry, proceed, check].into_iter().flatten().min_by_key(|(due, _)| *due)
    }

    fn retry_delay(&self) -> Duration {
        let doubled = FIRST_RETRY.saturating_mul(1 << (self.failures - 1).min(16));
        doubled.clamp(self.timing.min_sync_period, self.timing.sync_period.max(self.timing.min_sync_period))
    }
}

#[cfg(test)]
mod tests;
