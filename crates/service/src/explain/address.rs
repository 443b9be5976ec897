//! The owner of an address, of an address with a port, or of a NodePort; and if no Service owns it, why not.

use std::{collections::BTreeSet, net::IpAddr};

use ipvs::{Protocol, RealServerAddress, ServiceAddress};
use serde::{Deserialize, Serialize};

use super::Explanation;
use crate::{
    compute::{AddressKind, AddressOwner, EndpointReason, NotServed, RefusedAddress},
    input::ObjectName,
    state::{Inputs, State},
};

/// A question about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressQuery {
    /// The address. `None`: the addresses at which this node serves NodePorts.
    pub ip: Option<IpAddr>,
    /// The port.
    // A client of an earlier release asks about addresses alone.
    #[serde(default)]
    pub port: Option<u16>,
    /// The protocol; `None`: any.
    #[serde(default)]
    pub protocol: Option<Protocol>,
}

/// The owner of an address on this node, and what is done with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressExplanation {
    /// The address; `None` for a NodePort.
    pub ip: Option<IpAddr>,
    /// Its owner; `None` for a NodePort.
    pub owner: Option<AddressOwner>,
    /// Whether it is bound to this node for Services.
    pub vip: bool,
    /// The ports at which Services are served there, sorted; of a NodePort only this one.
    pub uses: Vec<AddressUse>,
    /// The Services that ask for it and are refused, sorted by name.
    pub refused: Vec<(ObjectName, RefusedAddress)>,
    /// The port, if there is one in the question.
    // A daemon of an earlier release may be asked, here and below.
    #[serde(default)]
    pub port: Option<u16>,
    /// The Services that are served at this port there, each explained with these addresses alone.
    #[serde(default)]
    pub served: Vec<Explanation>,
    /// The entries of EndpointSlices with this address, sorted: it is a pod's.
    #[serde(default)]
    pub endpoint_of: Vec<EndpointUse>,
    /// Other Services that have this address in their spec or status.
    #[serde(default)]
    pub asked_by: BTreeSet<ObjectName>,
    /// If no Service is served at this port there: those that have it as NodePort.
    #[serde(default)]
    pub node_port_of: BTreeSet<ObjectName>,
    /// With any of those: the addresses, of the same family, at which this node serves NodePorts.
    #[serde(default)]
    pub node_port_addresses: Vec<IpAddr>,
}

/// A port at which a Service is served.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AddressUse {
    /// The address and port.
    pub address: ServiceAddress,
    /// The kind of the address in the Service.
    pub kind: AddressKind,
    /// The Service.
    pub service: ObjectName,
}

/// An entry of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EndpointUse {
    /// The Service.
    pub service: ObjectName,
    /// The EndpointSlice.
    pub slice: ObjectName,
    /// Where it listens.
    pub address: RealServerAddress,
    /// Whether it is used, and why; `None`: the Service has no such port.
    pub verdict: Option<EndpointReason>,
    /// Why the Service is not served.
    pub not_served: Option<NotServed>,
}

impl AddressQuery {
    /// Whether a virtual server is at this address, at any port; of a NodePort at this one.
    fn is_about(&self, address: &ServiceAddress, kind: AddressKind) -> bool {
        match self.ip {
            Some(ip) => address.ip == ip,
            None => kind == AddressKind::NodePort && self.has_port(address.protocol, address.port),
        }
    }

    fn has_port(&self, protocol: Protocol, port: u16) -> bool {
        self.port == Some(port) && self.protocol.is_none_or(|wanted| wanted == protocol)
    }
}

impl State {
    /// Explains the owner of an address or port on this node, and what is done with it.
    pub fn explain_address(&self, query: &AddressQuery) -> AddressExplanation {
        let Inputs { node, options, addresses, .. } = &self.inputs;
        let servers = self.virtual_servers().filter(|server| query.is_about(&server.address, server.kind));
        let uses = servers.filter_map(|server| {
            let service = self.owner(&server.address)?.clone();
            Some(AddressUse { address: server.address, kind: server.kind, service })
        });
        let mut uses: Vec<_> = uses.collect();
        uses.sort_unstable();
        let refused: Vec<_> = self
            .reports()
            .refused()
            .flat_map(|(service, refused)| {
                let here = refused.iter().filter(|refused| Some(refused.ip) == query.ip);
                here.map(|refused| (service.clone(), *refused)).collect::<Vec<_>>()
            })
            .collect();
        let served = self.served(query, &uses);
        let node_port_of = if served.is_empty() { self.node_port_of(query) } else { BTreeSet::new() };
        AddressExplanation {
            ip: query.ip,
            owner: query.ip.map(|ip| AddressOwner::new(ip, node, options, addresses)),
            vip: query.ip.is_some_and(|ip| self.wants_vip(&ip)),
            endpoint_of: query.ip.map(|ip| self.endpoint_of(ip)).unwrap_or_default(),
            asked_by: query.ip.map(|ip| self.asked_by(ip, &uses, &refused)).unwrap_or_default(),
            uses,
            refused,
            port: query.port,
            served,
            node_port_addresses: if node_port_of.is_empty() {
                Vec::new()
            } else {
                let of_family = |ip: &IpAddr| query.ip.is_none_or(|asked| asked.is_ipv4() == ip.is_ipv4());
                self.node_port_addresses().iter().copied().filter(of_family).collect()
            },
            node_port_of,
        }
    }

    /// The Services that are served at the port, each with nothing but these addresses.
    fn served(&self, query: &AddressQuery, uses: &[AddressUse]) -> Vec<Explanation> {
        let here = uses.iter().filter(|it| query.has_port(it.address.protocol, it.address.port));
        let here: BTreeSet<_> = here.map(|it| (&it.service, it.address)).collect();
        let services: BTreeSet<_> = here.iter().map(|(service, _)| *service).collect();
        let explain = |service: &ObjectName| {
            let mut explanation = self.explain(service);
            for part in &mut explanation.parts {
                part.addresses.retain(|at| here.contains(&(service, at.address)));
            }
            explanation.parts.retain(|part| !part.addresses.is_empty());
            explanation
        };
        services.into_iter().map(explain).collect()
    }

    fn node_port_of(&self, query: &AddressQuery) -> BTreeSet<ObjectName> {
        let has_it = |service: &&crate::input::Service| {
            let mut ports = service.ports.iter();
            ports.any(|port| port.node_port.is_some_and(|number| query.has_port(port.protocol, number.get())))
        };
        self.inputs
            .entries()
            .filter_map(|(_, entry)| entry.service.as_ref())
            .filter(has_it)
            .map(|it| it.name.clone())
            .collect()
    }

    fn endpoint_of(&self, ip: IpAddr) -> Vec<EndpointUse> {
        let with_it = self.inputs.entries().filter(|(_, entry)| entry.endpoint_ips().any(|it| *it == ip));
        let mut uses = BTreeSet::new();
        for (service, entry) in with_it {
            let explanation = self.explain(service);
            let listed = entry.endpoints_at(ip).map(|(slice, address)| {
                let mut explained = explanation.parts.iter().flat_map(|part| &part.endpoints);
                let found = explained.find(|it| it.address == address && it.slice == *slice);
                EndpointUse {
                    service: service.clone(),
                    slice: slice.clone(),
                    address,
                    verdict: found.map(|it| it.reason),
                    not_served: explanation.not_served,
                }
            });
            uses.extend(listed);
        }
        uses.into_iter().collect()
    }

    fn asked_by(
        &self,
        ip: IpAddr,
        uses: &[AddressUse],
        refused: &[(ObjectName, RefusedAddress)],
    ) -> BTreeSet<ObjectName> {
        let has_it = |service: &&crate::input::Service| {
            [&service.cluster_ips, &service.external_ips, &service.load_balancer_ips]
                .into_iter()
                .any(|all| all.contains(&ip))
        };
        let explained = |name: &ObjectName| {
            uses.iter().any(|it| it.service == *name) || refused.iter().any(|(service, _)| service == name)
        };
        let services = self.inputs.entries().filter_map(|(_, entry)| entry.service.as_ref());
        services.filter(has_it).map(|it| it.name.clone()).filter(|name| !explained(name)).collect()
    }
}
