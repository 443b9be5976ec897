//! The Services that own virtual servers, as the daemon knows.

use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
};

use anyhow::bail;
use ipvs::{ServiceAddress, VirtualServerId};
use service::ObjectName;

use crate::serve::control::{Request, Response, ask};

/// The Services by the addresses that they own.
#[derive(Debug, Default)]
pub(super) struct Owners(HashMap<ServiceAddress, ObjectName>);

impl Owners {
    /// Asks the daemon, for no more than two seconds.
    pub(super) fn ask(socket: &Path) -> anyhow::Result<Self> {
        let Response::Holders(holders) = ask(socket, &Request::Holders)? else {
            bail!("the daemon answered another question");
        };
        Ok(holders.into_iter().map(|holder| (holder.address, holder.service)).collect())
    }

    /// The Service that owns a virtual server; `None` if no known Service does.
    pub(super) fn of(&self, virtual_server: VirtualServerId) -> Option<&ObjectName> {
        match virtual_server {
            VirtualServerId::Address(address) => self.0.get(&address),
            VirtualServerId::Mark { .. } => None,
        }
    }

    /// Every Service that owns one.
    pub(super) fn services(&self) -> BTreeSet<&ObjectName> {
        self.0.values().collect()
    }
}

impl FromIterator<(ServiceAddress, ObjectName)> for Owners {
    fn from_iter<T: IntoIterator<Item = (ServiceAddress, ObjectName)>>(owners: T) -> Self {
        Self(owners.into_iter().collect())
    }
}
