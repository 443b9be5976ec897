//! Whose virtual server is whose.

use ipvs::ServiceAddress;
use serde::{Deserialize, Serialize};
use service::{ObjectName, State};

/// A Service that has the address of a virtual server, which others may want too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// What names the virtual server.
    pub address: ServiceAddress,
    /// The Service.
    pub service: ObjectName,
    /// How many real servers are wanted; there may be others that drain.
    pub real_servers: usize,
}

impl Holder {
    pub(crate) fn all(state: &State) -> Vec<Self> {
        let holders = state.virtual_servers().filter_map(|server| {
            let (address, real_servers) = (server.address, server.real_servers.len());
            Some(Self { address, service: state.owner(&address)?.clone(), real_servers })
        });
        holders.collect()
    }
}
