//! What has become of connections.

use std::{
    mem,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use serde::Serialize;

/// How many losses are reported, each with its cause.
const REPORTED: usize = 10;

/// Counters of the outcomes of connections.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(super) opened: AtomicU64,
    pub(super) answered: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) unanswered: AtomicU64,
    pub(super) broken: AtomicU64,
    causes: Mutex<Vec<String>>,
}

/// The same at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    pub(crate) opened: u64,
    /// Answered, and whole until it was closed.
    pub(crate) answered: u64,
    /// Refused while there was no endpoint.
    pub(crate) refused: u64,
    /// Refused or silent though there were endpoints.
    pub(crate) unanswered: u64,
    /// Answered once, and then broken.
    pub(crate) broken: u64,
}

impl Tally {
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            opened: self.opened.load(Relaxed),
            answered: self.answered.load(Relaxed),
            refused: self.refused.load(Relaxed),
            unanswered: self.unanswered.load(Relaxed),
            broken: self.broken.load(Relaxed),
        }
    }

    /// Why the first ones were lost, each reported once.
    pub(crate) fn take_causes(&self) -> Vec<String> {
        mem::take(&mut self.causes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn note(&self, cause: impl FnOnce() -> String) {
        let mut causes = self.causes.lock().unwrap_or_else(PoisonError::into_inner);
        if causes.len() < REPORTED {
            causes.push(cause());
        }
    }
}

impl Counts {
    /// Whether each that was opened has come to an end that is known.
    pub(crate) fn is_complete(self) -> bool {
        self.opened == self.answered + self.refused + self.lost()
    }

    /// Those that ought to have been answered and were not, to their end.
    pub(crate) fn lost(self) -> u64 {
        self.unanswered + self.broken
    }
}

impl std::ops::Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            opened: self.opened + other.opened,
            answered: self.answered + other.answered,
            refused: self.refused + other.refused,
            unanswered: self.unanswered + other.unanswered,
            broken: self.broken + other.broken,
        }
    }
}

impl std::iter::Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| sum + one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_accounted_for_when_their_ends_add_up() {
        let counts = Counts { opened: 7, answered: 3, refused: 2, unanswered: 1, broken: 1 };
        assert!(counts.is_complete());
        assert!(!(counts + Counts { opened: 1, ..Counts::default() }).is_complete());
    }
}
