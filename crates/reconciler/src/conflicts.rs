//! Which Services have lost an address and port to another one.

use std::collections::BTreeMap;

use ipvs::ServiceAddress;
use service::{Conflict, ObjectName, State};

use crate::{Notice, Reason};

/// Remembers who was told that an address is somebody else's, so that it is told once.
#[derive(Default)]
pub(crate) struct Conflicts {
    /// Who holds what, for each who wants it too.
    told: BTreeMap<(ServiceAddress, ObjectName), ObjectName>,
    /// Of the conflicts that were told.
    revision: u64,
}

impl Conflicts {
    /// A notice for each Service that cannot have an address; again only when somebody else has it.
    pub(crate) fn news(&mut self, state: &State) -> Vec<Notice> {
        if self.revision == state.conflicts_revision() {
            return Vec::new();
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
        lost
    }
}

fn notice(address: ServiceAddress, holder: &ObjectName, service: &ObjectName) -> Notice {
    let text =
        format!("{address} belongs to {holder}, whose claim comes first; it is not served for this Service");
    Notice { service: service.clone(), reason: Reason::AddressTaken, text }
}
