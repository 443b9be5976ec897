//! Which Services ask for an external address that no Service gets.

use std::collections::BTreeSet;

use service::{ObjectName, Refused, State};

use crate::{Notice, Reason};

/// Remembers what was told, so that it is told once.
#[derive(Default)]
pub(crate) struct Refusals {
    told: BTreeSet<(ObjectName, Refused)>,
    /// Of the refusals that were told.
    revision: u64,
}

impl Refusals {
    /// A notice for each address that is refused and was not before.
    pub(crate) fn news(&mut self, state: &State) -> Vec<Notice> {
        if self.revision == state.refused_revision() {
            return Vec::new();
        }
        self.revision = state.refused_revision();
        let now: BTreeSet<_> = state
            .refused()
            .flat_map(|(service, refused)| refused.iter().map(move |it| (service.clone(), *it)))
            .collect();
        let news = now.difference(&self.told).map(notice).collect();
        self.told = now;
        news
    }
}

fn notice((service, refused): &(ObjectName, Refused)) -> Notice {
    Notice { service: service.clone(), reason: Reason::AddressRefused, text: refused.to_string() }
}
