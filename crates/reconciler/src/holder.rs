//! Which Service has which address and port.

use ipvs::ServiceAddress;
use serde::{Deserialize, Serialize};
use service::{ObjectName, State};

/// The Service that has an address and port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Holder {
    /// The address of its virtual server.
    pub address: ServiceAddress,
    /// The Service.
    pub service: ObjectName,
}

impl Holder {
    /// Every address that a Service has, in no particular order.
    pub(crate) fn all(state: &State) -> Vec<Self> {
        let holder = |(address, service): (&ServiceAddress, &ObjectName)| Self {
            address: *address,
            service: service.clone(),
        };
        state.owners().map(holder).collect()
    }
}
