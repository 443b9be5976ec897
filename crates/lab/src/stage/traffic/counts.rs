//! What has become of connections.

use std::{
    iter::Sum,
    mem,
    ops::Add,
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde::Serialize;

/// How many losses are reported, each with its cause.
const REPORTED: usize = 10;

/// The outcomes of connections so far.
#[derive(Debug, Default)]
pub(crate) struct Tally(Mutex<(Counts, Vec<String>)>);

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
        self.lock().0
    }

    /// Why the first ones were lost, each reported once.
    pub(crate) fn take_causes(&self) -> Vec<String> {
        mem::take(&mut self.lock().1)
    }

    /// Counts one more.
    pub(super) fn count(&self, outcome: impl FnOnce(&mut Counts) -> &mut u64) {
        *outcome(&mut self.lock().0) += 1;
    }

    /// Counts one more that is lost.
    pub(super) fn lose(&self, how: impl FnOnce(&mut Counts) -> &mut u64, cause: String) {
        let (counts, causes) = &mut *self.lock();
        *how(counts) += 1;
        if causes.len() < REPORTED {
            causes.push(cause);
        }
    }

    fn lock(&self) -> MutexGuard<'_, (Counts, Vec<String>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

impl Add for Counts {
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

impl Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Self::add)
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
