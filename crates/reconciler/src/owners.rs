//! The owners of Services are told what of them is not served as they ask for it.

use std::collections::BTreeSet;

use ipvs::ServiceAddress;
use service::{Conflict, ObjectName, Refused, State};
use tracing::warn;

use crate::{Notice, Notices, Reason, told::Told};

/// How many notices are logged at once: one Service can want the addresses of ten thousand.
const MOST_LOGGED: usize = 20;

/// Remembers what the owners of Services were told.
pub(crate) struct Owners {
    conflicts: Told<Lost>,
    refusals: Told<(ObjectName, Refused)>,
    /// Fields and annotations that are not used as they are written, in words.
    unused_fields: Told<(ObjectName, String)>,
    notices: Notices,
}

/// An address and port that a Service wants and another one has.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Lost {
    address: ServiceAddress,
    service: ObjectName,
    holder: ObjectName,
}

impl Owners {
    pub(crate) fn new(notices: Notices) -> Self {
        let (conflicts, refusals) = (Told::default(), Told::default());
        Self { conflicts, refusals, unused_fields: Told::default(), notices }
    }

    /// Tells them what they have not been told yet.
    pub(crate) fn tell(&mut self, state: &State) {
        let conflicts = self.conflicts.news(state.conflicts_revision(), || conflicts(state));
        let refusals = self.refusals.news(state.refused_revision(), || each(state.refused()));
        let refusals = refusals.into_iter().map(|(service, refused)| Notice {
            service,
            reason: Reason::AddressRefused,
            text: refused.to_string(),
        });
        let news: Vec<_> = conflicts.into_iter().map(Notice::from).chain(refusals).collect();
        news.iter().take(MOST_LOGGED).for_each(|Notice { service, text, .. }| warn!("{service}: {text}"));
        if let Some(more @ 1..) = news.len().checked_sub(MOST_LOGGED) {
            warn!("and {more} more addresses that Services ask for and do not get");
        }
        // Whoever read the objects has logged what is wrong with them.
        let unused = self.unused_fields.news(state.complaints_revision(), || each(state.complaints()));
        let unused = unused.into_iter();
        let unused = unused.map(|(service, text)| Notice { service, reason: Reason::FieldNotUsed, text });
        news.into_iter().chain(unused).for_each(&self.notices);
    }
}

fn conflicts(state: &State) -> BTreeSet<Lost> {
    let all = state.conflicts().flat_map(|Conflict { address, holder, waiting }| {
        waiting.into_iter().map(move |service| Lost {
            address,
            service: service.clone(),
            holder: holder.clone(),
        })
    });
    all.collect()
}

/// Pairs each Service with each thing of its list.
fn each<'a, T: Ord + Clone + 'a>(
    lists: impl Iterator<Item = (&'a ObjectName, &'a [T])>,
) -> BTreeSet<(ObjectName, T)> {
    lists.flat_map(|(service, list)| list.iter().map(|it| (service.clone(), it.clone()))).collect()
}

impl From<Lost> for Notice {
    fn from(Lost { address, service, holder }: Lost) -> Self {
        let text = format!(
            "{address} belongs to {holder}, whose claim comes first; it is not served for this Service"
        );
        Self { service, reason: Reason::AddressTaken, text }
    }
}
