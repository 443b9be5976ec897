//! The owners of Services are told what of them is not served as they ask for it.

use std::collections::BTreeSet;

use ipvs::ServiceAddress;
use service::{ObjectName, RefusedAddress, State};
use tracing::warn;

use super::dedup::Dedup;
use crate::{Notice, NoticeCallback, Reason};

/// How many notices are logged at once: one Service can want the addresses of ten thousand.
const MOST_LOGGED: usize = 20;

/// Remembers what the owners of Services were told.
pub(crate) struct ServiceNotices {
    conflicts: Dedup<(ObjectName, Unserved)>,
    refusals: Dedup<(ObjectName, RefusedAddress)>,
    /// Fields and annotations that are not used as they are written, in words.
    unused_fields: Dedup<(ObjectName, String)>,
    notices: NoticeCallback,
}

/// What a Service is told that it does not get.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Unserved {
    /// An address and port, and who has it.
    Named(ServiceAddress, ObjectName),
    /// So many more.
    More(usize),
}

impl ServiceNotices {
    pub(crate) fn new(notices: NoticeCallback) -> Self {
        let (conflicts, refusals) = (Dedup::default(), Dedup::default());
        Self { conflicts, refusals, unused_fields: Dedup::default(), notices }
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
        let news: Vec<_> = conflicts.into_iter().map(notice).chain(refusals).collect();
        news.iter().take(MOST_LOGGED).for_each(|Notice { service, text, .. }| warn!("{service}: {text}"));
        if let Some(more @ 1..) = news.len().checked_sub(MOST_LOGGED) {
            warn!("and {more} more addresses that Services ask for and do not get");
        }
        // Whoever read the objects has logged what is wrong with them.
        let unused = self.unused_fields.news(state.problems_revision(), || each(state.problems_by_service()));
        let unused = unused.into_iter();
        let unused = unused.map(|(service, text)| Notice { service, reason: Reason::FieldNotUsed, text });
        let unused: Vec<_> = unused.collect();
        // What cannot be done here nobody has logged yet.
        let is_of_state = |Notice { service, text, .. }: &&Notice| {
            state.desired(service).is_some_and(|desired| desired.problems.contains(text))
        };
        let unlogged = unused.iter().filter(is_of_state).take(MOST_LOGGED);
        unlogged.for_each(|Notice { service, text, .. }| warn!("{service}: {text}"));
        news.into_iter().chain(unused).for_each(&self.notices);
    }
}

fn conflicts(state: &State) -> BTreeSet<(ObjectName, Unserved)> {
    let all = state.conflict_losses().flat_map(|(service, lost)| {
        let named = lost.named.into_iter().map(|(address, holder)| Unserved::Named(address, holder.clone()));
        let more = (lost.more > 0).then_some(Unserved::More(lost.more));
        named.chain(more).map(move |loss| (service.clone(), loss))
    });
    all.collect()
}

/// Pairs each Service with each thing of its list.
fn each<'a, T: Ord + Clone + 'a>(
    lists: impl Iterator<Item = (&'a ObjectName, &'a [T])>,
) -> BTreeSet<(ObjectName, T)> {
    lists.flat_map(|(service, list)| list.iter().map(|it| (service.clone(), it.clone()))).collect()
}

fn notice((service, loss): (ObjectName, Unserved)) -> Notice {
    let text = match loss {
        Unserved::Named(address, holder) => format!(
            "{address} belongs to {holder}, whose claim comes first; it is not served for this Service"
        ),
        Unserved::More(more) => format!(
            "addresses and ports that belong to others, whose claims come first, and that are not named: {more}"
        ),
    };
    Notice { service, reason: Reason::AddressTaken, text }
}
