//! Which fields of Services and their slices are not used as they are written.

use std::collections::BTreeSet;

use service::{ObjectName, State};

use crate::{Notice, Reason};

/// Remembers what was told, so that it is told once.
#[derive(Default)]
pub(crate) struct Complaints {
    told: BTreeSet<(ObjectName, String)>,
    /// Of the complaints that were told.
    revision: u64,
}

impl Complaints {
    /// A notice for each complaint that there was not before.
    pub(crate) fn news(&mut self, state: &State) -> Vec<Notice> {
        if self.revision == state.complaints_revision() {
            return Vec::new();
        }
        self.revision = state.complaints_revision();
        let now: BTreeSet<_> = state
            .complaints()
            .flat_map(|(service, complaints)| complaints.iter().map(move |it| (service.clone(), it.clone())))
            .collect();
        let news = now.difference(&self.told).map(notice).collect();
        self.told = now;
        news
    }
}

fn notice((service, complaint): &(ObjectName, String)) -> Notice {
    Notice { service: service.clone(), reason: Reason::FieldNotUsed, text: complaint.clone() }
}
