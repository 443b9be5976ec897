//! Whose an address is on this node, and what is done with it.

use std::net::IpAddr;

use ipvs::ServiceAddress;
use serde::{Deserialize, Serialize};

use crate::{
    compute::{AddressKind, AddressOwner, RefusedAddress},
    input::ObjectName,
    state::State,
};

/// Whose an address is on this node, and what is done with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressExplanation {
    /// The address.
    pub ip: IpAddr,
    /// Whose it is.
    pub owner: AddressOwner,
    /// Whether it is bound to this node for Services.
    pub vip: bool,
    /// The ports at which Services are served there, sorted.
    pub uses: Vec<AddressUse>,
    /// The Services that ask for it and are refused, sorted by name.
    pub refused: Vec<(ObjectName, RefusedAddress)>,
}

/// A port at which a Service is served.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AddressUse {
    /// The address and port.
    pub address: ServiceAddress,
    /// What the address is to the Service.
    pub kind: AddressKind,
    /// The Service.
    pub service: ObjectName,
}

impl State {
    /// Whose an address is on this node, and what is done with it.
    pub fn explain_address(&self, ip: IpAddr) -> AddressExplanation {
        let inputs = self.inputs();
        let owner = AddressOwner::known(ip, inputs.node(), inputs.options(), inputs.addresses());
        let servers = self.virtual_servers().filter(|server| server.address.ip == ip);
        let uses = servers.filter_map(|server| {
            let service = self.owner(&server.address)?.clone();
            Some(AddressUse { address: server.address, kind: server.kind, service })
        });
        let mut uses: Vec<_> = uses.collect();
        uses.sort_unstable();
        let refused = self.refused().flat_map(|(service, refused)| {
            let here = refused.iter().filter(move |refused| refused.ip == ip);
            here.map(|refused| (service.clone(), *refused))
        });
        AddressExplanation { ip, owner, vip: self.wants_vip(&ip), uses, refused: refused.collect() }
    }
}
