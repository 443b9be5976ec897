//! A Service whose endpoints come and go all at once.

use std::time::Duration;

use super::used::pods_that_stay;
use super::witness::Witness;
use crate::stage::objects::{Kind, Write, slice};
use crate::stage::traffic::Vacancy;

/// The Service.
pub(super) const VACANT: &str = "vacant";
/// A Service has no endpoint for this long, then endpoints for as long; some of that goes until all know.
const VACANT_FOR: Duration = Duration::from_secs(8);
pub(super) const UNTIL_KNOWN: Duration = Duration::from_secs(4);

/// Takes the endpoints of a Service away and gives them back, again and again.
pub(super) struct Tide<'a> {
    vacancy: &'a Vacancy,
    witness: &'a Witness,
    is_out: bool,
}

impl<'a> Tide<'a> {
    pub(super) fn new(vacancy: &'a Vacancy, witness: &'a Witness) -> Self {
        Self { vacancy, witness, is_out: false }
    }

    /// What is to be written now. Times count from when the API server has told of the last turn.
    pub(super) fn due(&mut self) -> Option<Write> {
        let since = self.witness.told_since()?;
        if !self.is_out && since > UNTIL_KNOWN {
            self.vacancy.end();
        }
        (since > VACANT_FOR).then(|| self.turn())
    }

    /// What is to be written at the end, that there are endpoints again.
    pub(super) fn end(&mut self) -> Option<Write> {
        self.is_out.then(|| self.turn())
    }

    fn turn(&mut self) -> Write {
        self.is_out = !self.is_out;
        if self.is_out {
            self.vacancy.begin();
        }
        self.witness.expect(self.is_out);
        let endpoints = if self.is_out { Vec::new() } else { pods_that_stay() };
        Write::Replace(Kind::Slice, slice(VACANT, VACANT, &endpoints))
    }
}
