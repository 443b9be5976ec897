//! The Services that own virtual servers, as the daemon knows.

use std::collections::HashMap;

use ipvs::{ServiceAddress, VirtualServerId};
use service::ObjectName;

use super::question::Daemon;
use crate::serve::control::{AskError, Control as _};

/// The Services by the addresses that they own.
#[derive(Debug, Default)]
pub(super) struct Owners(HashMap<ServiceAddress, ObjectName>);

impl Owners {
    /// Asks the daemon, for no more than two seconds.
    pub(super) fn ask(daemon: &Daemon) -> Result<Self, AskError> {
        let owners = daemon.silent_client().owners()?;
        Ok(owners.into_iter().map(|owner| (owner.address, owner.service)).collect())
    }

    /// The Service that owns a virtual server; `None` if no known Service does.
    pub(super) fn of(&self, virtual_server: VirtualServerId) -> Option<&ObjectName> {
        match virtual_server {
            VirtualServerId::Address(address) => self.0.get(&address),
            VirtualServerId::Mark { .. } => None,
        }
    }
}

impl FromIterator<(ServiceAddress, ObjectName)> for Owners {
    fn from_iter<T: IntoIterator<Item = (ServiceAddress, ObjectName)>>(owners: T) -> Self {
        Self(owners.into_iter().collect())
    }
}
