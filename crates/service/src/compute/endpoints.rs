//! From the slices of a Service to the endpoints of one of its ports, and those that each frontend uses.

use std::time::Instant;

use ipvs::{Family, Protocol, RealServerAddress, Tunnel};

use super::{EndpointScope, EndpointSelection, Frontend, MAX_REAL_SERVERS_PER_VIRTUAL_SERVER};
use crate::{
    direct_return::tunnel_to,
    input::{
        CompactEndpoint, CompactSlice, Distance, ServiceInputs, ServicePort, Standings, Traffic,
        TrafficPolicy, Traits, Weight,
    },
};

/// An endpoint of one port: where it listens, what decides whether it is used, and its share of new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortEndpoint {
    pub(crate) address: RealServerAddress,
    pub(crate) traits: Traits,
    pub(crate) weight: Weight,
    pub(crate) distance: Distance,
    /// The tunnel by which it is reached, if it is on another node that unpacks.
    pub(crate) tunnel: Option<Tunnel>,
}

/// The slices that list endpoints for a port in one family, each with the number of the port there.
fn listing<'a>(
    inputs: ServiceInputs<'a>,
    port: &'a ServicePort,
    family: Family,
) -> impl Iterator<Item = (&'a CompactSlice, u16)> {
    inputs
        .slices
        .iter()
        .filter(move |slice| slice.family == family)
        .flat_map(move |slice| slice.ports_of(port).iter().map(move |listening| (slice, listening.port)))
}

/// The endpoints that a slice lists for a port with this number.
fn listed<'a>(
    inputs: ServiceInputs<'a>,
    slice: &'a CompactSlice,
    port: u16,
) -> impl Iterator<Item = PortEndpoint> {
    slice.endpoints.iter().map(move |endpoint| PortEndpoint {
        address: RealServerAddress { ip: endpoint.address, port },
        traits: slice.traits(endpoint, inputs.node.zone()),
        weight: weight(inputs, slice, endpoint),
        distance: slice.distance(endpoint, inputs.node.zone()),
        tunnel: tunnel_to(inputs, slice, endpoint),
    })
}

/// The endpoints of a port in one family, over all slices, sorted by address, each address once.
fn merged(inputs: ServiceInputs<'_>, port: &ServicePort, family: Family) -> Vec<PortEndpoint> {
    let mut endpoints = Vec::new();
    for (slice, port) in listing(inputs, port, family) {
        endpoints.extend(listed(inputs, slice, port));
    }
    endpoints.sort_by_key(|endpoint| (endpoint.address, precedence(endpoint.traits)));
    endpoints.dedup_by_key(|endpoint| endpoint.address);
    endpoints
}

/// The order of several entries of one address: the least counts. While an endpoint moves between slices,
/// or a new pod gets the address of one that ends, there are two. The one that does not terminate
/// counts, then the one that is ready, then the one that serves, then the first by slice.
pub(crate) fn precedence(traits: Traits) -> impl Ord {
    (traits.contains(Traits::TERMINATING), !traits.contains(Traits::READY), !traits.contains(Traits::SERVING))
}

/// The weight of an endpoint. The most precise one counts: of its node, then of its zone, then of its slice.
fn weight(inputs: ServiceInputs<'_>, slice: &CompactSlice, endpoint: &CompactEndpoint) -> Weight {
    let asked = inputs.service.balancing.as_ref().zip(slice.place_of(endpoint));
    let by_place = asked.and_then(|(balancing, place)| {
        let of_node = place.node.as_ref().and_then(|node| balancing.node_weights.get(node));
        of_node.or_else(|| balancing.zone_weights.get(place.zone.as_ref()?))
    });
    by_place.or(slice.weight).unwrap_or(1)
}

/// The frontends of one port in one family, which share their endpoints.
pub(crate) struct PortGroup<'a> {
    pub(crate) port: &'a ServicePort,
    pub(crate) family: Family,
    /// Sorted by address, each address once, used or not.
    pub(crate) endpoints: Vec<PortEndpoint>,
    inputs: ServiceInputs<'a>,
    frontends: &'a [Frontend<'a>],
}

/// The frontends of a port group with the same traffic policy, which use the same endpoints.
pub(crate) struct PolicyGroup<'a> {
    pub(crate) protocol: Protocol,
    pub(crate) traffic: Traffic,
    pub(crate) policy: TrafficPolicy,
    /// The node of the endpoint answers the client itself.
    pub(crate) direct_return: bool,
    pub(crate) selection: EndpointSelection,
    /// The selected endpoints, as many as a virtual server may have; sorted by address.
    pub(crate) used: Vec<&'a PortEndpoint>,
    pub(crate) frontends: &'a [Frontend<'a>],
    pub(crate) standings: &'a Standings,
    pub(super) now: Option<Instant>,
}

impl PolicyGroup<'_> {
    /// Whether the external policy is Local and no endpoint is on this node, so that those elsewhere stand in, for
    /// this node and its pods.
    pub(crate) fn stands_in(&self) -> bool {
        let scope = self.selection.scope();
        self.policy == TrafficPolicy::Local && scope.is_some_and(|scope| scope != EndpointScope::Local)
    }
}

impl<'a> PortGroup<'a> {
    /// The group of these frontends, which have one port and family; `None` if there is no frontend.
    pub(super) fn new(inputs: ServiceInputs<'a>, frontends: &'a [Frontend<'a>]) -> Option<Self> {
        let (port, family) = frontends.first().map(|one| (one.port, one.family()))?;
        let endpoints = merged(inputs, port, family);
        Some(Self { port, family, endpoints, inputs, frontends })
    }

    /// One policy group, or up to three: traffic comes in at ClusterIPs, or at all other addresses, of which some may be
    /// answered directly.
    pub(crate) fn policy_groups(&self) -> impl Iterator<Item = PolicyGroup<'_>> {
        self.frontends.chunk_by(|a, b| a.policy_key() == b.policy_key()).filter_map(|frontends| {
            let (traffic, direct_return) = frontends.first()?.policy_key();
            let policy = self.inputs.service.policy(traffic, self.inputs.options);
            let selection = if direct_return {
                EndpointSelection::without_hints(&self.endpoints)
            } else {
                EndpointSelection::new(&self.endpoints, traffic, policy)
            };
            let selected = self.endpoints.iter().filter(|endpoint| selection.selects(endpoint));
            let used = selected.take(MAX_REAL_SERVERS_PER_VIRTUAL_SERVER).collect();
            Some(PolicyGroup {
                protocol: self.port.protocol,
                traffic,
                policy,
                direct_return,
                selection,
                used,
                frontends,
                standings: self.inputs.standings,
                now: self.inputs.now,
            })
        })
    }

    /// Every entry of an endpoint in a slice, slice by slice. Several can have one address, of which
    /// [`PortGroup::endpoints`] has the one that counts.
    pub(crate) fn listed(&self) -> impl Iterator<Item = (&'a CompactSlice, PortEndpoint)> {
        let inputs = self.inputs;
        listing(inputs, self.port, self.family)
            .flat_map(move |(slice, port)| listed(inputs, slice, port).map(move |endpoint| (slice, endpoint)))
    }

    /// Whether an entry is the one of its address that counts, or equal to it.
    pub(crate) fn counts(&self, entry: &PortEndpoint) -> bool {
        let found = self.endpoints.binary_search_by_key(&entry.address, |endpoint| endpoint.address);
        found.is_ok_and(|at| self.endpoints.get(at) == Some(entry))
    }

    /// The slices of the family that have endpoints, but no port of this name and protocol.
    pub(crate) fn slices_without_port(&self) -> impl Iterator<Item = &'a CompactSlice> {
        let port = self.port;
        self.inputs.filled_slices(self.family).filter(|slice| slice.ports_of(port).is_empty())
    }
}
