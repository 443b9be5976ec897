//! What `status` remembers of the syncs. Nothing here reads a clock: every method is told the time.

use std::time::Instant;

use super::sync_state::{Course, Standing};
use crate::{LastSync, Report, Status, Tally};

/// The syncs that `status` tells of, and how it stands since.
#[derive(Debug)]
pub(crate) struct History {
    /// The last one that was about something.
    last: Option<Ended>,
    last_change: Option<Ended>,
    last_repair: Option<Ended>,
    last_full: Option<Ended>,
    /// How many operations have repaired something.
    repaired: usize,
    course: Course,
}

/// A sync, and when it ended.
#[derive(Clone, Debug)]
struct Ended {
    report: Report,
    at: Instant,
}

impl History {
    /// Begins before anything is known.
    pub(crate) fn begin(now: Instant) -> Self {
        Self {
            last: None,
            last_change: None,
            last_repair: None,
            last_full: None,
            repaired: 0,
            course: Course::begin(now),
        }
    }

    /// Takes in whether anything waits for the next sync.
    pub(crate) fn waits(&mut self, anything: bool, now: Instant) {
        self.course.waits(anything, now);
    }

    /// Takes in that a sync has ended.
    pub(crate) fn note(&mut self, report: Report, tally: &Tally, now: Instant) {
        let repairs = report.first_repair().is_some();
        self.course.synced(report.failed == 0, repairs, now);
        self.repaired += tally.repairs.values().sum::<usize>();
        let ended = Ended { report, at: now };
        if ended.report.done > 0 {
            self.last_change = Some(ended.clone());
        }
        if repairs {
            self.last_repair = Some(ended.clone());
        }
        if ended.report.full {
            self.last_full = Some(ended.clone());
        }
        // The status is to show a last sync that did something; but that a failure is over is news.
        if !ended.report.is_no_news() || self.last.as_ref().is_none_or(|last| last.report.failed > 0) {
            self.last = Some(ended);
        }
    }

    /// Whether any sync has ended.
    pub(crate) fn has_begun(&self) -> bool {
        self.last.is_some()
    }

    /// Whether the whole kernel was looked at.
    pub(crate) fn has_seen_all(&self) -> bool {
        self.last_full.is_some()
    }

    /// What is remembered, in a status that says nothing else.
    pub(crate) fn status(&self, now: Instant) -> Status {
        let (standing, standing_for) = self.course.standing(now);
        let told = |Ended { report, at }: &Ended| LastSync {
            report: report.clone(),
            age: now.saturating_duration_since(*at),
        };
        Status {
            synced: standing == Standing::Synced,
            standing,
            standing_for,
            last_sync: self.last.as_ref().map(told),
            last_change: self.last_change.as_ref().map(told),
            last_repair: self.last_repair.as_ref().map(told),
            repaired: self.repaired,
            last_full_sync: self.last_full.as_ref().map(told),
            ..Status::default()
        }
    }
}
