//! An EndpointSlice: decoded, and in the form in which this node keeps it.

use std::{net::IpAddr, sync::Arc, time::SystemTime};

use ipvs::{Family, Protocol};

use super::{Distance, ObjectName, ServicePort, Weight};
use crate::collections::Interner;

/// An EndpointSlice of one Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSlice {
    /// Its own name.
    pub name: ObjectName,
    /// The Service that owns it, by the label `kubernetes.io/service-name`.
    pub service: ObjectName,
    /// The family of its addresses.
    pub family: Family,
    /// The ports that its endpoints listen on.
    pub ports: Vec<EndpointPort>,
    /// The endpoints.
    pub endpoints: Vec<Endpoint>,
    /// The weight of its endpoints (the annotation `kube-ipvs.io/weight`), where the Service sets none for their
    /// nodes and zones.
    pub weight: Option<Weight>,
    /// When that happened for which it was last written, a pod that became ready for example (the annotation
    /// `endpoints.kubernetes.io/last-change-trigger-time`).
    pub triggered_at: Option<SystemTime>,
    /// Its problems, each naming the field; the rest of it is used.
    pub problems: Vec<String>,
}

impl EndpointSlice {
    /// A slice of a Service, without ports and endpoints.
    pub fn new(name: ObjectName, service: ObjectName, family: Family) -> Self {
        Self {
            name,
            service,
            family,
            ports: Vec::new(),
            endpoints: Vec::new(),
            weight: None,
            triggered_at: None,
            problems: Vec::new(),
        }
    }
}

/// One port of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointPort {
    /// The name of the Service port that it belongs to.
    pub name: Arc<str>,
    /// The transport protocol.
    pub protocol: Protocol,
    /// Where the endpoint listens, not 0.
    pub port: u16,
}

/// One endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its address: the first of the slice's list, since all are the same endpoint.
    pub address: IpAddr,
    /// `conditions.ready`; absent means true.
    pub ready: bool,
    /// `conditions.serving`; absent means true.
    pub serving: bool,
    /// `conditions.terminating`; absent means false.
    pub terminating: bool,
    /// The node it runs on.
    pub node: Option<Arc<str>>,
    /// The zone that it is in.
    pub zone: Option<Arc<str>>,
    /// `hints.forZones`.
    pub zone_hints: Box<[Arc<str>]>,
    /// `hints.forNodes`.
    pub node_hints: Box<[Arc<str>]>,
}

impl Endpoint {
    /// A ready endpoint at an unknown place.
    pub fn new(address: IpAddr) -> Self {
        Self {
            address,
            ready: true,
            serving: true,
            terminating: false,
            node: None,
            zone: None,
            zone_hints: Box::default(),
            node_hints: Box::default(),
        }
    }
}

/// The part of an EndpointSlice that this node needs. A cluster has more endpoints than anything else, and
/// every node keeps them all, so each takes 20 bytes, and those in one place share its description.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CompactSlice {
    pub(crate) name: ObjectName,
    pub(crate) family: Family,
    /// Sorted by name and protocol: a Service has up to some thousand ports, and a slice 20,000.
    pub(crate) ports: Box<[EndpointPort]>,
    pub(crate) endpoints: Box<[CompactEndpoint]>,
    /// The weight of its endpoints where their Service sets none.
    pub(crate) weight: Option<Weight>,
    pub(crate) problems: Box<[String]>,
    /// Where its endpoints are, each place once.
    places: Box<[Arc<Place>]>,
}

/// The part of an endpoint that this node needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompactEndpoint {
    pub(crate) address: IpAddr,
    pub(crate) traits: Traits,
    /// The index of its place in the slice's `places`, or [`NOWHERE`].
    place: u16,
}

/// Where an endpoint runs, and for which zones. A cluster has about as many places as nodes, and all slices share them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    /// The node and its zone: only weights depend on them, but a slice can come before the Service that has some.
    pub(crate) node: Option<Arc<str>>,
    pub(crate) zone: Option<Arc<str>>,
    /// `hints.forZones`.
    zone_hints: Box<[Arc<str>]>,
}

/// The values that slices share with each other.
#[derive(Debug, Default)]
pub(crate) struct Interners {
    pub(crate) strings: Interner<str>,
    places: Interner<Place>,
}

bitflags::bitflags! {
    /// The traits that decide whether an endpoint is used.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) struct Traits: u8 {
        /// `conditions.ready`.
        const READY = 1 << 0;
        /// `conditions.serving`.
        const SERVING = 1 << 1;
        /// `conditions.terminating`.
        const TERMINATING = 1 << 2;
        /// It runs on this node.
        const LOCAL = 1 << 3;
        /// It has hints for nodes.
        const NODE_HINTS = 1 << 4;
        /// This node is among the nodes that it has hints for.
        const FOR_THIS_NODE = 1 << 5;
        /// It has hints for zones.
        const ZONE_HINTS = 1 << 6;
        /// This node's zone is among the zones that it has hints for. Set when endpoints are merged, since
        /// the zone can change.
        const FOR_THIS_ZONE = 1 << 7;
    }
}

impl CompactSlice {
    /// Keeps the parts of a slice that matter to the node of this name. Endpoints of another family than the slice's
    /// are left out: no virtual server could use them.
    pub(crate) fn new(slice: EndpointSlice, node_name: &str, interned: &mut Interners) -> Self {
        let EndpointSlice {
            name,
            service: _,
            family,
            mut ports,
            endpoints,
            weight,
            triggered_at: _,
            problems,
        } = slice;
        for port in &mut ports {
            interned.strings.share(&mut port.name);
        }
        ports.sort_by(|one, other| identity(one).cmp(&identity(other)));
        let mut places = Vec::new();
        let endpoints = endpoints
            .into_iter()
            .filter(|endpoint| Family::from(endpoint.address) == family)
            .map(|endpoint| CompactEndpoint {
                address: endpoint.address,
                traits: Traits::from_endpoint(&endpoint, node_name),
                place: place(&mut places, endpoint, interned),
            })
            .collect();
        Self {
            name,
            family,
            ports: ports.into(),
            endpoints,
            weight,
            problems: problems.into(),
            places: places.into(),
        }
    }

    /// Its ports of the name and protocol of a port of the Service.
    pub(crate) fn ports_of(&self, port: &ServicePort) -> &[EndpointPort] {
        let wanted = (&*port.name, port.protocol);
        let begin = self.ports.partition_point(|port| identity(port) < wanted);
        let found = self.ports.get(begin..).unwrap_or_default();
        found.get(..found.partition_point(|port| identity(port) == wanted)).unwrap_or_default()
    }

    /// Whether the slice depends on the zone of the node.
    pub(crate) fn has_zone_hints(&self) -> bool {
        self.endpoints.iter().any(|endpoint| endpoint.traits.contains(Traits::ZONE_HINTS))
    }

    /// The nodes on which its endpoints are.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Arc<str>> {
        self.places.iter().filter_map(|place| place.node.as_ref())
    }

    /// The place of one of its endpoints, if the slice describes it.
    pub(crate) fn place_of(&self, endpoint: &CompactEndpoint) -> Option<&Place> {
        self.places.get(usize::from(endpoint.place)).map(|place| &**place)
    }

    /// How far one of its endpoints is, for a node in this zone.
    pub(crate) fn distance(&self, endpoint: &CompactEndpoint, zone: Option<&str>) -> Distance {
        let is_in = |zone: &str| self.place_of(endpoint).and_then(|it| it.zone.as_deref()) == Some(zone);
        if endpoint.traits.contains(Traits::LOCAL) {
            Distance::Node
        } else if zone.is_some_and(is_in) {
            Distance::Zone
        } else {
            Distance::Other
        }
    }

    /// The traits of one of its endpoints, for a node in this zone.
    pub(crate) fn traits(&self, endpoint: &CompactEndpoint, zone: Option<&str>) -> Traits {
        let mut hints = self.place_of(endpoint).into_iter().flat_map(|place| &place.zone_hints);
        let here = hints.any(|hint| Some(&**hint) == zone);
        endpoint.traits | if here { Traits::FOR_THIS_ZONE } else { Traits::empty() }
    }
}

/// The name and protocol, which identify the port of the Service.
fn identity(port: &EndpointPort) -> (&str, Protocol) {
    (&port.name, port.protocol)
}

impl Traits {
    fn from_endpoint(endpoint: &Endpoint, node_name: &str) -> Self {
        let mut traits = Self::empty();
        traits.set(Self::READY, endpoint.ready);
        traits.set(Self::SERVING, endpoint.serving);
        traits.set(Self::TERMINATING, endpoint.terminating);
        traits.set(Self::LOCAL, endpoint.node.as_deref() == Some(node_name));
        traits.set(Self::NODE_HINTS, !endpoint.node_hints.is_empty());
        traits.set(Self::FOR_THIS_NODE, endpoint.node_hints.iter().any(|hint| **hint == *node_name));
        traits.set(Self::ZONE_HINTS, !endpoint.zone_hints.is_empty());
        traits
    }
}

/// No place: the slice does not describe it.
const NOWHERE: u16 = u16::MAX;

/// The number of an endpoint's place among those known, to which it is added. Past the 65,535th different
/// place no number is left: the endpoint has no place then.
fn place(known: &mut Vec<Arc<Place>>, endpoint: Endpoint, interned: &mut Interners) -> u16 {
    let Endpoint { node, zone, zone_hints, .. } = endpoint;
    if node.is_none() && zone.is_none() && zone_hints.is_empty() {
        return NOWHERE;
    }
    let place = interned.places.shared(Place { node, zone, zone_hints });
    // There is one copy of each.
    let found = known.iter().position(|other| Arc::ptr_eq(other, &place));
    let number = u16::try_from(found.unwrap_or(known.len())).unwrap_or(NOWHERE);
    if found.is_none() && number != NOWHERE {
        known.push(place);
    }
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_takes_twenty_bytes() {
        assert_eq!(size_of::<CompactEndpoint>(), 20);
    }
}
