//! From the slices of a Service to the endpoints of one of its ports.

use ipvs::{Family, RealServerAddress};

use crate::input::{CompactEndpoint, CompactSlice, EndpointPort, Service, ServicePort, Traits, Weight};

/// An endpoint of one port: where it listens, what decides whether it is used, and its share of new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortEndpoint {
    pub(crate) address: RealServerAddress,
    pub(crate) traits: Traits,
    pub(crate) weight: Weight,
}

/// The endpoints of a port in one family, over all slices, sorted by address, each address once.
pub(crate) fn endpoints_of(
    service: &Service,
    port: &ServicePort,
    family: Family,
    slices: &[CompactSlice],
    zone: Option<&str>,
) -> Vec<PortEndpoint> {
    let mut endpoints = Vec::new();
    for slice in slices.iter().filter(|slice| slice.family == family) {
        for listening in slice.ports.iter().filter(|of| belongs(of, port)) {
            endpoints.extend(slice.endpoints.iter().map(|endpoint| PortEndpoint {
                address: RealServerAddress { ip: endpoint.address, port: listening.port },
                traits: slice.traits(endpoint, zone),
                weight: service.weight_of(slice, endpoint),
            }));
        }
    }
    endpoints.sort_by_key(|endpoint| (endpoint.address, precedence(endpoint.traits)));
    endpoints.dedup_by_key(|endpoint| endpoint.address);
    endpoints
}

/// A slice's port belongs to the Service's port of the same name and protocol.
pub(crate) fn belongs(listening: &EndpointPort, port: &ServicePort) -> bool {
    listening.protocol == port.protocol && listening.name == port.name
}

/// Which of several entries of one address counts: the least. While an endpoint moves between slices,
/// or a new pod gets the address of one that ends, there are two. The one that does not terminate
/// counts, then the one that is ready, then the one that serves, then the first by slice.
fn precedence(traits: Traits) -> impl Ord {
    (traits.contains(Traits::TERMINATING), !traits.contains(Traits::READY), !traits.contains(Traits::SERVING))
}

impl Service {
    /// The weight of an endpoint: what is said most precisely counts, of its node, then of its zone, then of
    /// its slice.
    pub(crate) fn weight_of(&self, slice: &CompactSlice, endpoint: &CompactEndpoint) -> Weight {
        let by_place =
            self.balancing.as_ref().zip(slice.place_of(endpoint)).and_then(|(balancing, place)| {
                let of_node = place.node.as_ref().and_then(|node| balancing.node_weights.get(node));
                of_node.or_else(|| balancing.zone_weights.get(place.zone.as_ref()?))
            });
        by_place.or(slice.weight).unwrap_or(Weight::MIN)
    }
}
