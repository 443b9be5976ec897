//! Telling of Services that want the same address.

use std::collections::BTreeMap;

use ipvs::ServiceAddress;
use service::{Conflict, ObjectName};
use tracing::warn;

use crate::{Notice, Notices, Reason};

/// Remembers who was told that an address is somebody else's, so that it is told once.
pub(crate) struct Conflicts {
    /// Who holds what, for each who wants it too.
    told: BTreeMap<(ServiceAddress, ObjectName), ObjectName>,
    notices: Notices,
}

impl Conflicts {
    pub(crate) fn new(notices: Notices) -> Self {
        Self { told: BTreeMap::new(), notices }
    }

    /// Tells each Service that cannot have an address who has it; again only when that is another one.
    pub(crate) fn tell<'a>(&mut self, conflicts: impl Iterator<Item = Conflict<'a>>) {
        let mut now = BTreeMap::new();
        for Conflict { address, holder, waiting } in conflicts {
            for service in waiting {
                let key = (address, service.clone());
                if self.told.get(&key) != Some(holder) {
                    self.lost(address, holder, service);
                }
                now.insert(key, holder.clone());
            }
        }
        self.told = now;
    }

    fn lost(&self, address: ServiceAddress, holder: &ObjectName, service: &ObjectName) {
        let text = format!(
            "{address} belongs to {holder}, first by age and name; it is not served for this Service"
        );
        warn!("{service}: {text}");
        (self.notices)(Notice { service: service.clone(), reason: Reason::AddressTaken, text });
    }
}
