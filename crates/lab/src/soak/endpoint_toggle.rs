//! A Service whose endpoints come and go all at once.

use std::time::Duration;

use anyhow::Context as _;
use testkit::daemon::eventually_within;

use super::{used::pods_that_stay, witness::Witness};
use crate::stage::{
    objects::{Kind, Write, slice},
    traffic::Vacancy,
};

/// The Service.
pub(super) const VACANT: &str = "vacant";
/// Between two turns, counted from when IPVS had the last.
const LASTS: Duration = Duration::from_secs(6);
/// How soon IPVS must have what the API server has reported. When hundreds of real servers come and go each
/// second, the kernel itself takes seconds to add one (docs/kernel.md).
pub(super) const LATEST: Duration = Duration::from_secs(30);

/// Takes the endpoints of a Service away and gives them back, again and again.
pub(super) struct EndpointToggle<'a> {
    vacancy: &'a Vacancy,
    witness: &'a Witness,
    is_out: bool,
}

impl<'a> EndpointToggle<'a> {
    pub(super) fn new(vacancy: &'a Vacancy, witness: &'a Witness) -> Self {
        Self { vacancy, witness, is_out: false }
    }

    /// What must be written now. As long as IPVS does not have what was written last, there may be endpoints
    /// or none.
    pub(super) fn due(&mut self) -> Option<Write> {
        let since = self.witness.settled_since()?;
        if !self.is_out {
            self.vacancy.end();
        }
        (since > LASTS).then(|| self.turn())
    }

    /// What is to be written at the end, that there are endpoints again.
    pub(super) fn end(&mut self) -> Option<Write> {
        self.is_out.then(|| self.turn())
    }

    /// Waits until IPVS has what was written last, if it ever has.
    pub(super) fn settle(&self) {
        let settled = || self.witness.settled_since().context("IPVS has not what was written last");
        drop(eventually_within(LATEST, "IPVS settles", settled));
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
