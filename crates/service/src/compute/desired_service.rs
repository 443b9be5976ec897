//! The desired state of the kernel for one Service.

use std::{iter, net::IpAddr, num::NonZero, sync::Arc};

use ipvs::{
    Family, Protocol, RealServer, RealServerAddress, Scheduler, ServiceAddress, ServiceFlags, VirtualServer,
};
use netfilter::{AllowedSource, ClusterIpFor, Element, MasqueradeSet, MaxSegmentSize, TunnelExit};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::{AddressKind, RefusedAddress};
use crate::{
    direct_return::DirectReturnParts,
    input::{EjectionCause, Options, Service, ServiceKind, Traffic, TrafficPolicy},
};

/// Everything that one Service asks for. It is computed from that Service's own inputs, so that a change costs what its
/// Service costs. Of other Services it depends only on their addresses: ClusterIPs and, for external addresses, who
/// else asks for them and which endpoints have them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredService {
    /// Its virtual servers with their real servers, sorted by address, each address once. The image of the kernel
    /// shares them.
    pub virtual_servers: SmallVec<[Arc<DesiredVirtualServer>; 1]>,
    extras: Option<Box<Extras>>,
}

/// The parts that most Services do not ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extras {
    /// Addresses at which it is served and that are not bound, sorted: an interface of this node has them, or had them
    /// a moment ago; or another host has them, or may have them.
    pub(crate) unbound: Box<[IpAddr]>,
    pub(crate) shared_elements: Box<[Element]>,
    pub(crate) health_check: Option<HealthCheck>,
    pub(crate) without_local_endpoint: Box<[WithoutLocalEndpoint]>,
    pub(crate) refused: Box<[RefusedAddress]>,
    pub(crate) ejected: Box<[EjectedEndpoint]>,
    pub(crate) problems: Box<[String]>,
}

impl DesiredService {
    /// Puts the two together.
    pub(crate) fn new(mut virtual_servers: SmallVec<[Arc<DesiredVirtualServer>; 1]>, extras: Extras) -> Self {
        virtual_servers.shrink_to_fit();
        let extras = (extras != Extras::default()).then(|| Box::new(extras));
        Self { virtual_servers, extras }
    }

    /// The addresses that must be local to this node, once for each virtual server there.
    pub fn vips(&self) -> impl Iterator<Item = IpAddr> {
        let unbound = self.extras.as_ref().map_or(&[][..], |extras| &extras.unbound);
        let addresses = self.virtual_servers.iter().map(|server| server.address.ip);
        addresses.filter(|ip| unbound.binary_search(ip).is_err())
    }

    /// The elements that other Services may ask for as well, sorted, each once: for pods of this node that are
    /// their own clients, and for the port at which load balancers ask.
    pub fn shared_elements(&self) -> &[Element] {
        self.extras.as_ref().map_or(&[], |extras| &extras.shared_elements)
    }

    /// The answer to load balancers that ask about this node.
    pub fn health_check(&self) -> Option<HealthCheck> {
        self.extras.as_ref()?.health_check
    }

    /// Where a policy Local finds no endpoint on this node, for some port, although the cluster has one;
    /// sorted, each once.
    pub fn without_local_endpoint(&self) -> &[WithoutLocalEndpoint] {
        self.extras.as_ref().map_or(&[], |extras| &extras.without_local_endpoint)
    }

    /// Whether it is served at any address.
    pub fn is_served(&self) -> bool {
        !self.virtual_servers.is_empty()
    }

    /// Whether it is served and no port has an endpoint, for another reason than the policy Local.
    pub fn lacks_endpoints(&self) -> bool {
        self.is_served()
            && self.without_local_endpoint().is_empty()
            && self.virtual_servers.iter().all(|server| server.real_servers.is_empty())
    }

    /// The external addresses that are refused, sorted, each once.
    pub fn refused(&self) -> &[RefusedAddress] {
        self.extras.as_ref().map_or(&[], |extras| &extras.refused)
    }

    /// The endpoints that get no new connections because clients fail there, or few because they did; sorted, each once.
    pub fn ejected(&self) -> &[EjectedEndpoint] {
        self.extras.as_ref().map_or(&[], |extras| &extras.ejected)
    }

    /// The problems of settings that this node does not support.
    pub fn problems(&self) -> &[String] {
        self.extras.as_ref().map_or(&[], |extras| &extras.problems)
    }

    /// Keeps the virtual servers that are as they were, and lists of real servers: others may share them.
    pub(crate) fn keep_from(&mut self, before: &Self) {
        let mut kept_lists: Vec<[Arc<[RealServer]>; 2]> = Vec::new();
        for server in &mut self.virtual_servers {
            let found = before.virtual_servers.binary_search_by_key(&server.address, |it| it.address);
            let kept = found.ok().and_then(|position| before.virtual_servers.get(position));
            if let Some(kept) = kept.filter(|kept| *kept == server) {
                let is_new = |[list, _]: &[_; 2]| !Arc::ptr_eq(list, &server.real_servers);
                if kept_lists.last().is_none_or(is_new) {
                    kept_lists.push([server.real_servers.clone(), kept.real_servers.clone()]);
                }
                server.clone_from(kept);
            }
        }
        for server in self.virtual_servers.iter_mut().filter_map(Arc::get_mut) {
            let list = kept_lists.iter().find(|[list, _]| Arc::ptr_eq(list, &server.real_servers));
            if let Some([_, kept]) = list {
                server.real_servers.clone_from(kept);
            }
        }
    }
}

/// One virtual server and its real servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredVirtualServer {
    /// Its address, port and protocol, which identify it.
    pub address: ServiceAddress,
    /// How it picks a real server.
    pub scheduler: Scheduler,
    /// Persistence and scheduler flags.
    pub flags: ServiceFlags,
    /// How long a client stays with its real server, in seconds; 0 unless persistent.
    pub timeout: u32,
    /// Its real servers, sorted by address, each address once. Most virtual servers of one port have the
    /// same, and share them.
    pub real_servers: Arc<[RealServer]>,
    /// Which of its flows are masqueraded.
    pub masquerade: MasqueradeSet,
    /// Whether conntrack does not track the flows of pods to it.
    pub untracked: bool,
    /// Whether its policy is Local and its real servers are on other nodes. They stand in for this node and its pods.
    pub stands_in: bool,
    /// The parts that direct return needs there, if that is possible at such an address.
    pub direct_return: Option<Box<DirectReturnParts>>,
    /// The clients that may reach it, sorted, without overlaps; `None`: everybody.
    pub allowed_sources: Option<Box<[AllowedSource]>>,
    /// The kind of the address in the Service.
    pub kind: AddressKind,
}

impl DesiredVirtualServer {
    /// Whether clients are answered directly by the nodes of the endpoints.
    pub fn is_answered_directly(&self) -> bool {
        self.direct_return.as_ref().is_some_and(|parts| parts.entrance.is_some())
    }

    /// Its configuration in IPVS.
    pub fn config(&self) -> VirtualServer {
        let mut config = VirtualServer::new(self.address, self.scheduler).flags(self.flags);
        config.timeout = self.timeout;
        config
    }

    /// The elements of our nf_tables sets that belong to it.
    pub fn elements(&self) -> impl Iterator<Item = Element> {
        let restricted = self.allowed_sources.as_ref().map(|_| Element::Restricted(self.address));
        let local_clients_only = self.stands_in.then_some(Element::LocalClientsOnly(self.address));
        let untracked = self.untracked.then_some(Element::Untracked(self.address));
        let allowed = self.allowed_sources.iter().flatten().copied().map(Element::AllowedSource);
        let direct_return = self.direct_return.iter().flat_map(|parts| parts.elements(self.address));
        iter::once(self.masquerade.element(self.address))
            .chain(local_clients_only)
            .chain(untracked)
            .chain(restricted)
            .chain(allowed)
            .chain(direct_return)
    }

    /// Whether an element of our sets belongs to it.
    pub fn has_element(&self, element: &Element) -> bool {
        match element {
            Element::LocalClientsOnly(to) => *to == self.address && self.stands_in,
            Element::Untracked(to) => *to == self.address && self.untracked,
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
            Element::ClusterIp(_)
            | Element::External(_)
            | Element::ExternalLocal(_)
            | Element::DirectReturn(_) => *element == self.masquerade.element(self.address),
            Element::Vip(_)
            | Element::Hairpin(_)
            | Element::HealthCheckPort(_)
            | Element::UntrackedEndpoint(_)
            | Element::TrackedClient(_)
            | Element::EndpointHere(_)
            | Element::EndpointElsewhere(_)
            | Element::TunnelSender(_) => false,
        }
    }
}

/// An endpoint that gets no new connections because clients fail there, or few because they did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EjectedEndpoint {
    /// The protocol of its port.
    pub protocol: Protocol,
    /// Its address.
    pub address: RealServerAddress,
    /// Why.
    pub cause: EjectionCause,
    /// What it gets.
    pub state: EjectionState,
}

/// What an endpoint gets at which clients fail, or failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EjectionState {
    /// No new connections.
    Out,
    /// A few, until it answers or fails once more.
    OnTrial,
    /// A few although clients fail there: as many as allowed are out already.
    Kept,
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

impl HealthCheck {
    /// The answer for a Service with these ready endpoints on this node. `None` without the external policy Local:
    /// load balancers may send such traffic to every node.
    pub(crate) fn for_service(
        service: &Service,
        options: &Options,
        mut ready_here: Vec<IpAddr>,
    ) -> Option<Self> {
        let asked = service.kind == ServiceKind::LoadBalancer
            && service.policy(Traffic::External, options) == TrafficPolicy::Local;
        let port = service.health_check_node_port.filter(|_| asked)?;
        ready_here.sort_unstable();
        ready_here.dedup();
        let ready_v4 = ready_here.iter().filter(|ip| ip.is_ipv4()).count();
        Some(Self { port, ready_v4, ready_v6: ready_here.len() - ready_v4 })
    }
}

/// A traffic policy Local for which this node has no endpoint in a family while the cluster has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct WithoutLocalEndpoint {
    /// The traffic whose policy it is. Internal traffic is refused then; external traffic goes to other nodes, if it
    /// begins on this one.
    pub traffic: Traffic,
    /// The family.
    pub family: Family,
}
