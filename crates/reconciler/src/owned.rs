//! Whose virtual server is whose.

use ipvs::ServiceAddress;
use serde::{Deserialize, Serialize};
use service::{ObjectName, State};

/// A virtual server that a Service wants and has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owned {
    /// What names it.
    pub address: ServiceAddress,
    /// The Service.
    pub service: ObjectName,
    /// How many real servers are wanted; there may be others that drain.
    pub real_servers: usize,
}

impl Owned {
    pub(crate) fn all(state: &State) -> Vec<Self> {
        let owned = state.virtual_servers().filter_map(|server| {
            let (address, real_servers) = (server.address, server.real_servers.len());
            Some(Self { address, service: state.owner(&address)?.clone(), real_servers })
        });
        owned.collect()
    }
}
