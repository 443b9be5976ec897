//! Whether what is wanted is programmed, and since when. Nothing here reads a clock: every method is told the
//! time.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Whether what is wanted is programmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// The lists of Services and EndpointSlices have not arrived: nothing is written before.
    #[default]
    NotListed,
    /// Something waits for the next sync.
    Behind,
    /// The last sync left something undone; it is tried again.
    Failing,
    /// The last sync left nothing undone, and nothing waits for the next.
    Synced,
}

/// Follows the [`Standing`] and its age.
///
/// A change that waits for its sync does not end the time in which every sync has succeeded: where Services
/// change all the time, that time is what somebody wants to know. A repair ends it: until then something was
/// not as wanted, for nobody knows how long.
#[derive(Debug)]
pub(crate) struct Course {
    /// Whether the last sync left nothing undone; `None` before the first.
    succeeded: Option<bool>,
    /// When `succeeded` became what it is.
    since: Instant,
    /// Since when something waits for the next sync; `None` if nothing does.
    behind: Option<Instant>,
}

impl Course {
    /// Begins before anything is known.
    pub(crate) fn begin(now: Instant) -> Self {
        Self { succeeded: None, since: now, behind: None }
    }

    /// Takes in whether anything waits for the next sync.
    pub(crate) fn waits(&mut self, anything: bool, now: Instant) {
        self.behind = anything.then(|| self.behind.unwrap_or(now));
    }

    /// Takes in that a sync has ended, whether it left nothing undone, and whether it repaired something.
    pub(crate) fn synced(&mut self, succeeded: bool, repaired: bool, now: Instant) {
        if self.succeeded != Some(succeeded) || succeeded && repaired {
            (self.succeeded, self.since) = (Some(succeeded), now);
        }
    }

    /// Returns how it stands, and for how long.
    pub(crate) fn standing(&self, now: Instant) -> (Standing, Duration) {
        let (standing, since) = match (self.succeeded, self.behind) {
            (Some(false), _) => (Standing::Failing, self.since),
            (_, Some(behind)) => (Standing::Behind, behind),
            (None, None) => (Standing::NotListed, self.since),
            (Some(true), None) => (Standing::Synced, self.since),
        };
        (standing, now.saturating_duration_since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How it stands this many seconds after the begin, and for how many.
    fn at(course: &Course, begin: Instant, seconds: u64) -> (Standing, u64) {
        let (standing, age) = course.standing(begin + Duration::from_secs(seconds));
        (standing, age.as_secs())
    }

    #[test]
    fn from_the_start_to_the_first_sync() {
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut course = Course::begin(begin);
        assert_eq!(at(&course, begin, 3), (Standing::NotListed, 3));
        course.waits(true, after(5));
        assert_eq!(at(&course, begin, 6), (Standing::Behind, 1));
        course.synced(true, false, after(7));
        course.waits(false, after(7));
        assert_eq!(at(&course, begin, 9), (Standing::Synced, 2));
    }

    #[test]
    fn changes_that_are_served_do_not_end_the_time_in_which_all_went_well() {
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut course = Course::begin(begin);
        course.synced(true, false, begin);
        course.waits(true, after(10));
        course.waits(true, after(11));
        assert_eq!(at(&course, begin, 12), (Standing::Behind, 2));
        course.synced(true, false, after(12));
        course.waits(false, after(12));
        assert_eq!(at(&course, begin, 20), (Standing::Synced, 20));
    }

    #[test]
    fn a_repair_begins_the_time_anew_since_all_was_not_well_until_then() {
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut course = Course::begin(begin);
        course.synced(true, false, begin);
        course.synced(true, true, after(10));
        assert_eq!(at(&course, begin, 12), (Standing::Synced, 2));
        course.synced(true, false, after(20));
        assert_eq!(at(&course, begin, 25), (Standing::Synced, 15));
        for seconds in [30, 31] {
            course.synced(false, true, after(seconds));
        }
        assert_eq!(at(&course, begin, 35), (Standing::Failing, 5), "a repair beside a failure ends nothing");
    }

    #[test]
    fn it_fails_from_the_first_failure_to_the_first_success() {
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut course = Course::begin(begin);
        course.synced(true, false, begin);
        for seconds in [10, 11, 13] {
            course.synced(false, false, after(seconds));
            course.waits(true, after(seconds));
        }
        assert_eq!(at(&course, begin, 15), (Standing::Failing, 5));
        course.synced(true, false, after(17));
        course.waits(false, after(17));
        assert_eq!(at(&course, begin, 18), (Standing::Synced, 1));
    }

    #[test]
    fn what_takes_several_syncs_is_behind_since_its_begin() {
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut course = Course::begin(begin);
        course.synced(true, false, begin);
        course.waits(true, after(1));
        for seconds in [2, 3, 4] {
            course.synced(true, false, after(seconds));
            course.waits(true, after(seconds));
        }
        assert_eq!(at(&course, begin, 5), (Standing::Behind, 4));
    }
}
