//! A Service whose endpoints come and go all at once.

use std::time::{Duration, Instant};

use super::used::pods_that_stay;
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
    is_out: bool,
    since: Instant,
}

impl<'a> Tide<'a> {
    pub(super) fn new(vacancy: &'a Vacancy) -> Self {
        Self { vacancy, is_out: false, since: Instant::now() }
    }

    /// What is to be written now.
    pub(super) fn due(&mut self) -> Option<Write> {
        if !self.is_out && self.since.elapsed() > UNTIL_KNOWN {
            self.vacancy.end();
        }
        (self.since.elapsed() > VACANT_FOR).then(|| self.turn())
    }

    /// The API server has taken what was due. A machine with other work may have needed seconds for it, which are not
    /// the daemon's.
    pub(super) fn written(&mut self) {
        self.since = Instant::now();
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
        let endpoints = if self.is_out { Vec::new() } else { pods_that_stay() };
        Write::Replace(Kind::Slice, slice(VACANT, VACANT, &endpoints))
    }
}
