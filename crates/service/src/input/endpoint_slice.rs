//! An EndpointSlice, decoded.

use std::{net::IpAddr, sync::Arc, time::SystemTime};

use ipvs::{Family, Protocol};

use super::{ObjectName, Weight};

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
    /// What was wrong with it, in words, each naming the field; the rest of it is used.
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
