//! What our nf_tables rules do to packets: the counters, read again and again, and what they have counted recently.

use std::{
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use ipvs::Family;
use netfilter::{PacketCounter, PacketCounts};
use service::one_line;
use tokio::{task::spawn_blocking, time::sleep};
use tracing::debug;

use crate::serve::control::{CountedPackets, RecentPackets};

/// How old the counts may be.
const PERIOD: Duration = Duration::from_secs(2);
/// How far back recent packets go.
const RECENT: Duration = Duration::from_secs(5 * 60);
/// The time between two earlier readings that are kept: the inaccuracy of [`RECENT`].
const BETWEEN: Duration = Duration::from_secs(10);

/// The counters of our tables. Reading them here never waits for the kernel. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Packets(Arc<Mutex<Readings>>);

#[derive(Debug, Default)]
struct Readings {
    latest: PacketCounts,
    /// The oldest first: no more than cover [`RECENT`], and the first one since the start.
    earlier: VecDeque<(Instant, PacketCounts)>,
}

impl Packets {
    /// All counts, as of the last reading.
    pub(crate) fn counts(&self) -> PacketCounts {
        self.lock().latest.clone()
    }

    /// One count of a family; 0 without a table.
    pub(crate) fn count(&self, family: Family, counter: PacketCounter) -> u64 {
        self.lock().latest.get(&(family, counter)).copied().unwrap_or_default()
    }

    /// How many packets were dropped, rejected or masqueraded recently.
    pub(crate) fn recent(&self) -> RecentPackets {
        self.lock().recent(Instant::now())
    }

    /// Keeps reading the counters.
    pub(crate) async fn follow(&self) -> Infallible {
        loop {
            // A reader may have to wait for another program's transaction.
            match spawn_blocking(netfilter::packet_counts).await {
                Ok(Ok(counts)) => self.lock().take(Instant::now(), counts),
                Ok(Err(error)) => debug!("{}", one_line(&error)),
                // The daemon ends.
                Err(_) => {}
            }
            sleep(PERIOD).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Readings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Readings {
    fn take(&mut self, now: Instant, counts: PacketCounts) {
        let is_old = |reading: Option<&(Instant, _)>, age| {
            reading.is_some_and(|(at, _)| now.saturating_duration_since(*at) >= age)
        };
        while is_old(self.earlier.get(1), RECENT) {
            self.earlier.pop_front();
        }
        if self.earlier.is_empty() || is_old(self.earlier.back(), BETWEEN) {
            self.earlier.push_back((now, counts.clone()));
        }
        self.latest = counts;
    }

    fn recent(&self, now: Instant) -> RecentPackets {
        let Some((since, before)) = self.earlier.front() else { return RecentPackets::default() };
        let mut counted = BTreeMap::<_, u64>::new();
        for (key, count) in &self.latest {
            // A table that was made anew counts from 0.
            let before = before.get(key).filter(|before| *before <= count).copied().unwrap_or_default();
            *counted.entry(key.1).or_default() += count - before;
        }
        let counted = counted.into_iter().filter(|(_, packets)| *packets > 0);
        let counted = counted.filter_map(|(counter, packets)| {
            let (verdict, reason) = counter.verdict()?;
            Some(CountedPackets { verdict: verdict.to_owned(), reason: reason.to_owned(), packets })
        });
        RecentPackets { window: now.saturating_duration_since(*since), counted: counted.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(source_range: u64, no_service: u64) -> PacketCounts {
        let counts = [
            ((Family::V4, PacketCounter::SourceRange), source_range),
            ((Family::V6, PacketCounter::SourceRange), 2 * source_range),
            ((Family::V6, PacketCounter::NoService), no_service),
            ((Family::V4, PacketCounter::TunnelSent), source_range),
        ];
        counts.into()
    }

    fn counted(verdict: &str, reason: &str, packets: u64) -> CountedPackets {
        CountedPackets { verdict: verdict.to_owned(), reason: reason.to_owned(), packets }
    }

    #[test]
    fn only_what_grew_since_the_first_reading_is_recent_and_families_are_added() {
        let (mut readings, start) = (Readings::default(), Instant::now());
        assert_eq!(readings.recent(start), RecentPackets::default());
        readings.take(start, counts(1_000, 50));
        assert_eq!(readings.recent(start).counted, [], "from before the start");
        let later = start + Duration::from_secs(3);
        readings.take(later, counts(1_004, 50));
        let recent = readings.recent(later);
        assert_eq!(recent.window, Duration::from_secs(3));
        assert_eq!(recent.counted, [counted("drop", "source-range", 12)], "and no tunnelled ones");
    }

    #[test]
    fn what_is_older_than_five_minutes_is_not_recent_and_memory_is_bounded() {
        let (mut readings, start) = (Readings::default(), Instant::now());
        for seconds in (0..3_600).step_by(2) {
            readings.take(start + Duration::from_secs(seconds), counts(u64::from(seconds > 1_000), 0));
            assert!(readings.earlier.len() <= 32, "{}", readings.earlier.len());
            let recent = readings.recent(start + Duration::from_secs(seconds));
            assert!(recent.window < RECENT + 2 * BETWEEN, "{recent:?}");
            let expected = u64::from((1_002..1_290).contains(&seconds)) * 3;
            if !(1_290..1_320).contains(&seconds) {
                assert_eq!(recent.counted.iter().map(|it| it.packets).sum::<u64>(), expected, "{seconds}");
            }
        }
    }

    #[test]
    fn a_table_that_is_made_anew_counts_from_0() {
        let (mut readings, start) = (Readings::default(), Instant::now());
        readings.take(start, counts(1_000, 50));
        readings.take(start, counts(2, 51));
        let expected = [counted("drop", "source-range", 6), counted("reject", "no-service", 1)];
        assert_eq!(readings.recent(start).counted, expected);
    }
}
