//! Which Service has which virtual server.

use ipvs::ServiceAddress;
use serde::{Deserialize, Serialize};
use service::{ObjectName, State};

/// A virtual server, and the Service that has its address. Others may want the address too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtualServerOwner {
    /// The virtual server's address.
    pub address: ServiceAddress,
    /// The Service that has it.
    pub service: ObjectName,
    /// How many real servers are wanted; others may still drain.
    pub real_servers: usize,
}

impl VirtualServerOwner {
    /// Lists every virtual server that is wanted.
    pub(crate) fn all(state: &State) -> Vec<Self> {
        let holders = state.virtual_servers().filter_map(|server| {
            let (address, real_servers) = (server.address, server.real_servers.len());
            Some(Self { address, service: state.owner(&address)?.clone(), real_servers })
        });
        holders.collect()
    }
}
