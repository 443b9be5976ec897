//! An EndpointSlice as this node keeps it.

use std::{net::IpAddr, sync::Arc};

use ipvs::Family;

use crate::{Endpoint, EndpointPort, EndpointSlice, ObjectName, strings::Strings};

/// What this node needs of an EndpointSlice. A cluster has more endpoints than anything else, and
/// every node keeps them all, so each takes 20 bytes: which node it runs on, for example, matters
/// only as far as it is this one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct KnownSlice {
    pub(crate) name: ObjectName,
    pub(crate) family: Family,
    pub(crate) ports: Box<[EndpointPort]>,
    pub(crate) endpoints: Box<[KnownEndpoint]>,
    pub(crate) problems: Box<[String]>,
    /// The different `hints.forZones` of its endpoints; mostly none, or one for each zone.
    zone_hints: Box<[Box<[Arc<str>]>]>,
}

/// What this node needs of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownEndpoint {
    pub(crate) address: IpAddr,
    pub(crate) traits: Traits,
    /// The place of its own in the slice's `zone_hints`, or [`NOWHERE`].
    zone_hints: u16,
}

bitflags::bitflags! {
    /// What decides whether an endpoint is used.
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
        /// It has hints for nodes,
        const NODE_HINTS = 1 << 4;
        /// and this node is among them.
        const FOR_THIS_NODE = 1 << 5;
        /// It has hints for zones,
        const ZONE_HINTS = 1 << 6;
        /// and this node's zone is among them. Set when endpoints are merged, since the zone can
        /// change.
        const FOR_THIS_ZONE = 1 << 7;
    }
}

impl KnownSlice {
    /// Keeps what matters to the node of this name. Endpoints of another family than the slice's are
    /// left out: no virtual server could use them.
    pub(crate) fn new(slice: EndpointSlice, node_name: &str, strings: &mut Strings) -> Self {
        let EndpointSlice { mut name, service: _, family, mut ports, endpoints, triggered_at: _, problems } =
            slice;
        strings.share(&mut name.namespace);
        for port in &mut ports {
            strings.share(&mut port.name);
        }
        let mut zone_hints: Vec<Box<[Arc<str>]>> = Vec::new();
        let endpoints = endpoints
            .into_iter()
            .filter(|endpoint| Family::of(endpoint.address) == family)
            .map(|endpoint| KnownEndpoint {
                address: endpoint.address,
                traits: Traits::of(&endpoint, node_name),
                zone_hints: place(&mut zone_hints, endpoint.zone_hints, strings),
            })
            .collect();
        Self {
            name,
            family,
            ports: ports.into(),
            endpoints,
            problems: problems.into(),
            zone_hints: zone_hints.into(),
        }
    }

    /// Whether the zone of the node matters to it.
    pub(crate) fn has_zone_hints(&self) -> bool {
        self.endpoints.iter().any(|endpoint| endpoint.traits.contains(Traits::ZONE_HINTS))
    }

    /// The traits of one of its endpoints, for a node in this zone.
    pub(crate) fn traits(&self, endpoint: &KnownEndpoint, zone: Option<&str>) -> Traits {
        let hints = self.zone_hints.get(usize::from(endpoint.zone_hints));
        let here = hints.is_some_and(|zones| zones.iter().any(|hint| Some(&**hint) == zone));
        endpoint.traits | if here { Traits::FOR_THIS_ZONE } else { Traits::empty() }
    }
}

impl Traits {
    fn of(endpoint: &Endpoint, node_name: &str) -> Self {
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

/// No place: no hints.
const NOWHERE: u16 = u16::MAX;

/// The place of these hints among those known, to which they are added. Past the 65,535th different
/// list there is no place left: an endpoint's hints then match no zone.
fn place(known: &mut Vec<Box<[Arc<str>]>>, mut hints: Box<[Arc<str>]>, strings: &mut Strings) -> u16 {
    if hints.is_empty() {
        return NOWHERE;
    }
    let found = known.iter().position(|list| *list == hints);
    let place = u16::try_from(found.unwrap_or(known.len())).unwrap_or(NOWHERE);
    if found.is_none() && place != NOWHERE {
        for hint in &mut hints {
            strings.share(hint);
        }
        known.push(hints);
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_takes_twenty_bytes() {
        assert_eq!(size_of::<KnownEndpoint>(), 20);
    }
}
