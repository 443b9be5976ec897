//! Telling of Services that want the same address.

use std::collections::BTreeMap;

use ipvs::ServiceAddress;
use service::{Conflict, ObjectName, State};
use tracing::warn;

use crate::{Notice, Notices, Reason};

/// How many new conflicts are logged at once: one Service can want the addresses of ten thousand.
const MOST_LOGGED: usize = 20;

/// Remembers who was told that an address is somebody else's, so that it is told once.
pub(crate) struct Conflicts {
    /// Who holds what, for each who wants it too.
    told: BTreeMap<(ServiceAddress, ObjectName), ObjectName>,
    /// Of the conflicts that were told.
    revision: u64,
    notices: Notices,
}

impl Conflicts {
    pub(crate) fn new(notices: Notices) -> Self {
        Self { told: BTreeMap::new(), revision: 0, notices }
    }

    /// Tells each Service that cannot have an address who has it; again only when that is another one.
    pub(crate) fn tell(&mut self, state: &State) {
        if self.revision == state.conflicts_revision() {
            return;
        }
        self.revision = state.conflicts_revision();
        let (mut now, mut lost) = (BTreeMap::new(), Vec::new());
        for Conflict { address, holder, waiting } in state.conflicts() {
            for service in waiting {
                let key = (address, service.clone());
                if self.told.get(&key) != Some(holder) {
                    lost.push(notice(address, holder, service));
                }
                now.insert(key, holder.clone());
            }
        }
        self.told = now;
        lost.iter().take(MOST_LOGGED).for_each(|Notice { service, text, .. }| warn!("{service}: {text}"));
        if let Some(more @ 1..) = lost.len().checked_sub(MOST_LOGGED) {
            warn!("and {more} more claims to addresses that belong to other Services");
        }
        lost.into_iter().for_each(&self.notices);
    }
}

fn notice(address: ServiceAddress, holder: &ObjectName, service: &ObjectName) -> Notice {
    let text =
        format!("{address} belongs to {holder}, whose claim comes first; it is not served for this Service");
    Notice { service: service.clone(), reason: Reason::AddressTaken, text }
}
