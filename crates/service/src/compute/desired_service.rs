//! What the kernel should look like for one Service.

use std::{iter, net::IpAddr, num::NonZero, sync::Arc};

use ipvs::{Family, RealServer, ServiceAddress, VirtualServer};
use netfilter::{AllowedSource, ClusterIpFor, Element, MaxSegmentSize, TunnelExit};
use serde::{Deserialize, Serialize};

use super::{AddressKind, DirectReturnParts, RefusedAddress, Traffic};

/// Everything that one Service asks for. It is computed from that Service's own inputs, so that a change costs what its
/// Service costs. Of other Services it depends only on their ClusterIPs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DesiredService {
    /// Its virtual servers with their real servers, sorted by address, each address once.
    pub virtual_servers: Box<[DesiredVirtualServer]>,
    /// The addresses that must be local to this node, sorted, each once.
    pub vips: Box<[IpAddr]>,
    /// The elements that other Services may ask for as well, sorted, each once: for pods of this node that are
    /// their own clients, and for the port at which load balancers ask.
    pub shared_elements: Box<[Element]>,
    /// The answer to load balancers that ask about this node.
    pub health_check: Option<HealthCheck>,
    /// Where a policy Local finds no endpoint on this node, for some port, although the cluster has one;
    /// sorted, each once.
    pub without_local_endpoint: Box<[WithoutLocalEndpoint]>,
    /// The external addresses that are refused, sorted, each once.
    pub refused: Box<[RefusedAddress]>,
    /// What it asks for and this node does not support, in words.
    pub problems: Box<[String]>,
}

/// One virtual server and its real servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DesiredVirtualServer {
    /// What names it.
    pub address: ServiceAddress,
    /// Its configuration; `config.id` is `address`.
    pub config: VirtualServer,
    /// Its real servers, sorted by address, each address once. Most virtual servers of one port have the
    /// same, and share them.
    pub real_servers: Arc<[RealServer]>,
    /// The element of our nf_tables sets that says which of its flows are masqueraded.
    pub element: Element,
    /// Whether its policy is Local and its real servers are on other nodes. They stand in for this node and its pods.
    pub stands_in: bool,
    /// What direct return needs there, if that is possible at such an address.
    pub direct_return: Option<Box<DirectReturnParts>>,
    /// The clients that may reach it, sorted, without overlaps; `None`: everybody.
    pub allowed_sources: Option<Box<[AllowedSource]>>,
    /// What the address is to the Service.
    pub kind: AddressKind,
}

impl DesiredVirtualServer {
    /// Whether clients are answered directly by the nodes of the endpoints.
    pub fn is_answered_directly(&self) -> bool {
        self.direct_return.as_ref().is_some_and(|parts| parts.entrance.is_some())
    }

    /// The elements of our nf_tables sets that belong to it.
    pub fn elements(&self) -> impl Iterator<Item = Element> {
        let restricted = self.allowed_sources.as_ref().map(|_| Element::Restricted(self.address));
        let local_clients_only = self.stands_in.then_some(Element::LocalClientsOnly(self.address));
        let allowed = self.allowed_sources.iter().flatten().copied().map(Element::AllowedSource);
        let direct_return = self.direct_return.iter().flat_map(|parts| parts.elements(self.address));
        iter::once(self.element)
            .chain(local_clients_only)
            .chain(restricted)
            .chain(allowed)
            .chain(direct_return)
    }

    /// Whether an element of our sets belongs to it.
    pub fn has_element(&self, element: &Element) -> bool {
        match element {
            Element::LocalClientsOnly(to) => *to == self.address && self.stands_in,
            Element::Restricted(to) => *to == self.address && self.allowed_sources.is_some(),
            Element::AllowedSource(source) => {
                self.allowed_sources.as_ref().is_some_and(|all| all.binary_search(source).is_ok())
            }
            Element::ClusterIpFor(ClusterIpFor { to, .. })
            | Element::MaxSegmentSize(MaxSegmentSize { to, .. })
            | Element::TunnelExit(TunnelExit { to, .. }) => {
                *to == self.address
                    && self.direct_return.as_ref().is_some_and(|parts| parts.has_element(element))
            }
            _ => *element == self.element,
        }
    }
}

/// The answer at a Service's `healthCheckNodePort`: how many endpoints on this node are ready, each pod
/// counted once whatever its ports. One that terminates may still be used, but no new client is to be sent
/// here for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthCheck {
    /// Where the load balancer asks.
    pub port: NonZero<u16>,
    /// Ready IPv4 endpoints on this node.
    pub ready_v4: usize,
    /// Ready IPv6 endpoints on this node.
    pub ready_v6: usize,
}

/// A traffic policy Local for which this node has no endpoint in a family while the cluster has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct WithoutLocalEndpoint {
    /// Whose policy it is. Internal traffic is refused then; external traffic goes to other nodes, if it begins on
    /// this one.
    pub traffic: Traffic,
    /// The family.
    pub family: Family,
}
