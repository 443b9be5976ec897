//! Which Service owns which virtual server.

use ipvs::ServiceAddress;
use serde::{Deserialize, Serialize};
use service::{ObjectName, State};

/// A virtual server, and the Service that owns its address. Other Services may claim the address too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtualServerOwner {
    /// The virtual server's address.
    pub address: ServiceAddress,
    /// The Service that owns it.
    pub service: ObjectName,
    /// How many real servers are wanted; others may still drain.
    pub real_servers: usize,
}

impl VirtualServerOwner {
    /// Lists every desired virtual server.
    pub(crate) fn list(state: &State) -> Vec<Self> {
        let owners = state.virtual_servers().filter_map(|server| {
            let (address, real_servers) = (server.address, server.real_servers.len());
            Some(Self { address, service: state.owner(&address)?.clone(), real_servers })
        });
        owners.collect()
    }
}
