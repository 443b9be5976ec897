//! Notices to the owners of Services about what is not served as they ask for it.

use std::collections::BTreeSet;

use ipvs::ServiceAddress;
use service::{ObjectName, RefusedAddress, State, in_turn};
use tracing::warn;

use super::dedup::Dedup;
use crate::{Notice, NoticeCallback, Reason};

/// How many notices are logged at once: one Service can want the addresses of ten thousand.
const MOST_LOGGED: usize = 20;

/// Sends each notice once, as long as its cause lasts.
pub(crate) struct ServiceNotices {
    conflicts: Dedup<(ObjectName, Unserved)>,
    refusals: Dedup<(ObjectName, RefusedAddress)>,
    /// Fields and annotations that are not used as they are written, in words.
    unused_fields: Dedup<(ObjectName, String)>,
    notices: NoticeCallback,
}

/// What a Service asks for and does not get, because its claim comes later.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Unserved {
    /// An address and port, and the Service that has it.
    Named(ServiceAddress, ObjectName),
    /// This many more.
    More(usize),
}

impl ServiceNotices {
    pub(crate) fn new(notices: NoticeCallback) -> Self {
        let (conflicts, refusals) = (Dedup::default(), Dedup::default());
        Self { conflicts, refusals, unused_fields: Dedup::default(), notices }
    }

    /// Logs and sends the notices that were not sent before.
    pub(crate) fn send_new(&mut self, state: &State) {
        let conflicts = self.conflicts.new_entries(state.reports_revision(), || conflicts(state));
        let refusals =
            self.refusals.new_entries(state.reports_revision(), || each(state.reports().refused()));
        let refusals = refusals.into_iter().map(|(service, refused)| Notice {
            service,
            reason: Reason::AddressRefused,
            text: refused.to_string(),
        });
        let losses = by_namespaces(conflicts.into_iter().map(conflict_notice).chain(refusals));
        losses.iter().take(MOST_LOGGED).for_each(log);
        if let Some(more @ 1..) = losses.len().checked_sub(MOST_LOGGED) {
            warn!("and {more} more addresses that Services ask for and do not get");
        }
        // What is wrong with a field was logged when the object was decoded.
        let unused =
            self.unused_fields.new_entries(state.reports_revision(), || each(state.reports().problems()));
        let unused = by_namespaces(unused.into_iter().map(|(service, text)| Notice {
            service,
            reason: Reason::FieldNotUsed,
            text,
        }));
        // What this node cannot do was not logged yet.
        let is_from_state = |Notice { service, text, .. }: &&Notice| {
            state.desired(service).is_some_and(|desired| desired.problems().contains(text))
        };
        let unlogged = unused.iter().filter(is_from_state).take(MOST_LOGGED);
        unlogged.for_each(log);
        by_namespaces(losses.into_iter().chain(unused)).into_iter().for_each(&self.notices);
    }
}

/// All of them, in turn by namespaces: where the first are taken, one namespace cannot hide the others.
fn by_namespaces(notices: impl IntoIterator<Item = Notice>) -> Vec<Notice> {
    in_turn(notices, usize::MAX, |notice| notice.service.namespace().to_owned())
}

fn log(Notice { service, text, .. }: &Notice) {
    warn!(namespace = service.namespace(), "{service}: {text}");
}

fn conflicts(state: &State) -> BTreeSet<(ObjectName, Unserved)> {
    let all = state.conflict_losses().flat_map(|(service, lost)| {
        let named = lost.named.into_iter().map(|(address, holder)| Unserved::Named(address, holder.clone()));
        let more = (lost.more > 0).then_some(Unserved::More(lost.more));
        named.chain(more).map(move |loss| (service.clone(), loss))
    });
    all.collect()
}

/// Pairs each Service with each entry of its list.
fn each<'a, T: Ord + Clone + 'a>(
    lists: impl Iterator<Item = (&'a ObjectName, &'a [T])>,
) -> BTreeSet<(ObjectName, T)> {
    lists.flat_map(|(service, list)| list.iter().map(|it| (service.clone(), it.clone()))).collect()
}

fn conflict_notice((service, loss): (ObjectName, Unserved)) -> Notice {
    let text = match loss {
        Unserved::Named(address, holder) => {
            // Who reads Events of one namespace need not know what others have.
            let holder = match holder.namespace() == service.namespace() {
                true => holder.to_string(),
                false => "a Service of another namespace".to_owned(),
            };
            format!(
                "{address} belongs to {holder}, whose claim comes first; it is not served for this Service"
            )
        }
        Unserved::More(more) => format!(
            "addresses and ports that belong to others, whose claims come first, and that are not named: {more}"
        ),
    };
    Notice { service, reason: Reason::AddressTaken, text }
}
