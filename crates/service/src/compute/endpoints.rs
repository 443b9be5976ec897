//! From the slices of a Service to the endpoints of one of its ports.

use ipvs::{Family, RealServerAddress, Tunnel};

use crate::input::{
    CompactEndpoint, CompactSlice, ForwardingMethod, Service, ServiceInputs, ServicePort, Traits, Weight,
};

/// An endpoint of one port: where it listens, what decides whether it is used, and its share of new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortEndpoint {
    pub(crate) address: RealServerAddress,
    pub(crate) traits: Traits,
    pub(crate) weight: Weight,
    /// The tunnel by which it is reached, if it is on another node that unpacks.
    pub(crate) tunnel: Option<Tunnel>,
}

/// The slices that list endpoints for a port in one family, each with the number of the port there.
pub(super) fn listing<'a>(
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
pub(super) fn listed<'a>(
    inputs: ServiceInputs<'a>,
    slice: &'a CompactSlice,
    port: u16,
) -> impl Iterator<Item = PortEndpoint> {
    slice.endpoints.iter().map(move |endpoint| PortEndpoint {
        address: RealServerAddress { ip: endpoint.address, port },
        traits: slice.traits(endpoint, inputs.node.zone()),
        weight: inputs.service.weight_of(slice, endpoint),
        tunnel: tunnel_to(inputs, slice, endpoint),
    })
}

fn tunnel_to(inputs: ServiceInputs<'_>, slice: &CompactSlice, endpoint: &CompactEndpoint) -> Option<Tunnel> {
    let is_asked = inputs.options.forwarding_method_of(inputs.service) == ForwardingMethod::Tunnel;
    // A node's own address is not unpacked there.
    if !is_asked || endpoint.traits.contains(Traits::LOCAL) || inputs.node.is_a_nodes(&endpoint.address) {
        return None;
    }
    let node = slice.place_of(endpoint)?.node.as_deref()?;
    inputs.node.peers().tunnel_to(node, endpoint.address, inputs.options.tunnel)
}

/// The endpoints of a port in one family, over all slices, sorted by address, each address once.
pub(super) fn merged(inputs: ServiceInputs<'_>, port: &ServicePort, family: Family) -> Vec<PortEndpoint> {
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
fn precedence(traits: Traits) -> impl Ord {
    (traits.contains(Traits::TERMINATING), !traits.contains(Traits::READY), !traits.contains(Traits::SERVING))
}

impl Service {
    /// The weight of an endpoint. The most precise one counts: of its node, then of its zone, then of its slice.
    fn weight_of(&self, slice: &CompactSlice, endpoint: &CompactEndpoint) -> Weight {
        let by_place =
            self.balancing.as_ref().zip(slice.place_of(endpoint)).and_then(|(balancing, place)| {
                let of_node = place.node.as_ref().and_then(|node| balancing.node_weights.get(node));
                of_node.or_else(|| balancing.zone_weights.get(place.zone.as_ref()?))
            });
        by_place.or(slice.weight).unwrap_or(Weight::MIN)
    }
}
