//! Telling the owners of Services what of them is not served as they ask for it.

use service::State;
use tracing::warn;

use crate::{Notice, Notices, complaints::Complaints, conflicts::Conflicts, refusals::Refusals};

/// How many notices are logged at once: one Service can want the addresses of ten thousand.
const MOST_LOGGED: usize = 20;

/// Those who own Services.
pub(crate) struct Owners {
    conflicts: Conflicts,
    refusals: Refusals,
    complaints: Complaints,
    notices: Notices,
}

impl Owners {
    pub(crate) fn new(notices: Notices) -> Self {
        let (conflicts, refusals) = (Conflicts::default(), Refusals::default());
        Self { conflicts, refusals, complaints: Complaints::default(), notices }
    }

    /// Tells them what they have not been told yet.
    pub(crate) fn tell(&mut self, state: &State) {
        let mut news = self.conflicts.news(state);
        news.extend(self.refusals.news(state));
        news.iter().take(MOST_LOGGED).for_each(|Notice { service, text, .. }| warn!("{service}: {text}"));
        if let Some(more @ 1..) = news.len().checked_sub(MOST_LOGGED) {
            warn!("and {more} more addresses that Services ask for and do not get");
        }
        let complaints = self.complaints.news(state);
        // Whoever read the objects has logged what is wrong with them, but not what cannot be done here.
        let is_of_state = |Notice { service, text, .. }: &&Notice| {
            state.desired(service).is_some_and(|desired| desired.problems.contains(text))
        };
        let unlogged = complaints.iter().filter(is_of_state).take(MOST_LOGGED);
        unlogged.for_each(|Notice { service, text, .. }| warn!("{service}: {text}"));
        news.extend(complaints);
        news.into_iter().for_each(&self.notices);
    }
}
