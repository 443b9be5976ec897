//! One Service with its slices.

use std::{mem, net::IpAddr, sync::Arc};

use ipvs::{RealServerAddress, ServiceAddress};
use smallvec::SmallVec;

use super::Claim;
use crate::{
    compute::{Decisions, DesiredService, DesiredVirtualServer, Urgency},
    direct_return::nodes_with_endpoints,
    input::{
        AddressBook, CompactSlice, EndpointOwner, ObjectName, Options, Problem, Service, ServiceInputs,
        Standings, ThisNode,
    },
};

/// A Service and its slices, whichever arrive first, and the desired state for them.
#[derive(Debug, Default)]
pub(crate) struct ServiceEntry {
    /// The Service; `None` while only slices of it are known.
    pub(crate) service: Option<Service>,
    /// The desired state for it, as last computed; `None` when it is not ours to serve.
    pub(crate) computed: Option<Computed>,
    /// Its slices, sorted by name. Most Services have one, and one more for each thousand endpoints.
    pub(super) slices: SmallVec<[CompactSlice; 1]>,
    /// How its endpoints stand, as far as that changes with time.
    pub(super) standings: Standings,
}

/// The desired state for a Service, and what decides between it and others that ask for the same.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Computed {
    pub(crate) desired: DesiredService,
    pub(crate) urgency: Urgency,
    /// The nodes with endpoints of it, if any of its addresses is answered directly; sorted, each once.
    pub(crate) direct_return_nodes: Box<[Arc<str>]>,
    /// When the Service was created; older claims win.
    created: Option<i64>,
}

impl ServiceEntry {
    /// The slice of this name.
    pub(crate) fn slice(&self, name: &ObjectName) -> Option<&CompactSlice> {
        let at = self.slices.binary_search_by(|known| known.name.cmp(name));
        at.ok().and_then(|at| self.slices.get(at))
    }

    /// Inserts or replaces a slice. Returns the one that it replaces.
    pub(crate) fn put_slice(&mut self, slice: CompactSlice) -> Option<CompactSlice> {
        match self.slices.binary_search_by(|known| known.name.cmp(&slice.name)) {
            Ok(at) => self.slices.get_mut(at).map(|known| mem::replace(known, slice)),
            Err(at) => {
                self.slices.insert(at, slice);
                None
            }
        }
    }

    /// Removes a slice and returns it.
    pub(crate) fn remove_slice(&mut self, name: &ObjectName) -> Option<CompactSlice> {
        let at = self.slices.binary_search_by(|known| known.name.cmp(name)).ok()?;
        Some(self.slices.remove(at))
    }

    /// The owner of its endpoints; `None` while only slices are known.
    pub(crate) fn owner(&self) -> Option<EndpointOwner> {
        self.service.as_ref().map(|service| (service.created, service.name.clone()))
    }

    /// Counts its endpoints again if their owner has changed.
    pub(crate) fn recount_endpoints(&self, before: Option<&EndpointOwner>, addresses: &mut AddressBook) {
        let now = self.owner();
        if now.as_ref() == before {
            return;
        }
        for slice in &self.slices {
            if let Some(now) = &now {
                addresses.add_endpoints(slice, now);
            }
            if let Some(before) = before {
                addresses.remove_endpoints(slice, before);
            }
        }
    }

    /// Whether a change of this node can change what the Service asks for. Most Services have no hints for zones, no
    /// address but the ClusterIP, and no source ranges, so that they are not computed again.
    pub(crate) fn depends_on(&self, before: &ThisNode, now: &ThisNode, options: &Options) -> bool {
        let Some(service) = &self.service else { return false };
        let zone = before.zone() != now.zone();
        let node_ports = before.node_port_ips != now.node_port_ips;
        let node_ips = before.ips() != now.ips();
        let direct_return =
            !before.same_direct_return_inputs(now) && options.external_forwarding.tunnels(service);
        let nodes = !before.same_node_addresses(now);
        let passes_to_or_from_node = |ip: &IpAddr| before.is_node_address(ip) != now.is_node_address(ip);
        let addresses = service.external_ips.iter().chain(&service.load_balancer_ips);
        let mut addresses = addresses.chain(&service.cluster_ips);
        let owners = !before.same_owners(now);
        let is_external = service.has_external_addresses(options);
        let knows_nodes = before.knows_nodes(options) != now.knows_nodes(options);
        let api_endpoints = before.api_endpoints != now.api_endpoints;
        let by_distance = service.distance_weights(options).is_some();
        let may_be_untracked = options.may_untrack();
        // Its scheduler follows from these as well.
        let asks = service.balancing.is_some() || by_distance || !options.ejection.is_empty();
        zone && (by_distance || self.slices.iter().any(CompactSlice::has_zone_hints))
            || (node_ports || api_endpoints) && self.has_node_ports()
            || node_ips && service.load_balancer_source_ranges.is_some()
            || (node_ips || knows_nodes) && is_external
            || nodes && (is_external || may_be_untracked) && self.endpoint_ips().any(passes_to_or_from_node)
            || owners && addresses.any(|ip| before.facts_of(ip, options) != now.facts_of(ip, options))
            || direct_return
            || asks && before.missing_schedulers != now.missing_schedulers
    }

    /// Whether one of the Service's ports has a NodePort.
    pub(crate) fn has_node_ports(&self) -> bool {
        let mut ports = self.service.iter().flat_map(|service| &service.ports);
        ports.any(|port| port.node_port.is_some())
    }

    /// The addresses of all endpoints.
    pub(crate) fn endpoint_ips(&self) -> impl Iterator<Item = &IpAddr> {
        self.slices.iter().flat_map(|slice| &slice.endpoints).map(|endpoint| &endpoint.address)
    }

    /// Where the endpoints with this address listen, each with its slice.
    pub(crate) fn endpoints_at(&self, ip: IpAddr) -> impl Iterator<Item = (&ObjectName, RealServerAddress)> {
        let has_it = move |slice: &&CompactSlice| slice.endpoints.iter().any(|it| it.address == ip);
        self.slices.iter().filter(has_it).flat_map(move |slice| {
            slice.ports.iter().map(move |port| (&slice.name, RealServerAddress { ip, port: port.port }))
        })
    }

    /// Whether neither the Service nor a slice of it exists any more.
    pub(crate) fn is_empty(&self) -> bool {
        self.service.is_none() && self.slices.is_empty()
    }

    /// The problems of the Service and its slices, those on this node only included.
    pub(crate) fn problems(&self) -> impl Iterator<Item = Problem<'_>> {
        let here = self.computed.iter().flat_map(|computed| computed.desired.problems());
        let service = self.service.iter().flat_map(move |service| {
            service.problems.iter().chain(here.clone()).map(|what| Problem::Service(&service.name, what))
        });
        let slices = self
            .slices
            .iter()
            .flat_map(|slice| slice.problems.iter().map(|what| Problem::EndpointSlice(&slice.name, what)));
        service.chain(slices)
    }
}

impl Computed {
    /// Collects the desired state from the decisions about a Service.
    pub(crate) fn from_decisions(decisions: Decisions<'_>) -> Self {
        let ServiceInputs { service, slices, .. } = decisions.inputs;
        let desired = DesiredService::from_decisions(decisions);
        Self {
            urgency: Urgency::for_service(service),
            created: service.created,
            direct_return_nodes: nodes_with_endpoints(&desired, slices),
            desired,
        }
    }

    /// Its claim to an address, if it asks for it.
    pub(crate) fn claim(&self, service: &ObjectName, to: &ServiceAddress) -> Option<Claim> {
        let server = self.virtual_server(to)?;
        Some(Claim { kind: server.kind, created: self.created, service: service.clone() })
    }

    /// The addresses that it asks for.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = ServiceAddress> {
        self.desired.virtual_servers.iter().map(|server| server.address)
    }

    /// The virtual server that it asks for at an address.
    pub(crate) fn virtual_server(&self, at: &ServiceAddress) -> Option<&Arc<DesiredVirtualServer>> {
        let servers = &self.desired.virtual_servers;
        servers.binary_search_by_key(at, |server| server.address).ok().and_then(|index| servers.get(index))
    }
}
