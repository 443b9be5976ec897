//! From the frontends of a Service to the choice of endpoints for each of them.

use ipvs::Family;

use super::{Choice, Frontend, PortEndpoint, Traffic, endpoints_of};
use crate::input::{KnownSlice, Options, Service, ServicePort, ThisNode, TrafficPolicy};

/// The frontends of one port in one family, which have the same endpoints.
pub(crate) struct Siblings<'a> {
    pub(crate) port: &'a ServicePort,
    pub(crate) family: Family,
    /// Sorted by address, each address once, used or not.
    pub(crate) endpoints: Vec<PortEndpoint>,
    frontends: &'a [Frontend<'a>],
}

/// Those siblings at which traffic comes in in the same way, so that the same endpoints are chosen.
pub(crate) struct Side<'a> {
    pub(crate) traffic: Traffic,
    pub(crate) policy: TrafficPolicy,
    pub(crate) choice: Choice,
    pub(crate) frontends: &'a [Frontend<'a>],
}

/// The frontends of a Service, in their order, with their endpoints.
pub(crate) fn siblings<'a>(
    service: &'a Service,
    frontends: &'a [Frontend<'a>],
    slices: &'a [KnownSlice],
    node: &'a ThisNode,
) -> impl Iterator<Item = Siblings<'a>> {
    frontends.chunk_by(|a, b| a.endpoint_key() == b.endpoint_key()).filter_map(move |frontends| {
        let (port, family) = frontends.first().map(|one| (one.port, one.family()))?;
        let endpoints = endpoints_of(service, port, family, slices, node.zone());
        Some(Siblings { port, family, endpoints, frontends })
    })
}

impl<'a> Siblings<'a> {
    /// One side, or two: traffic comes in at ClusterIPs, or at all other addresses.
    pub(crate) fn sides(&self, service: &Service, options: &Options) -> impl Iterator<Item = Side<'a>> {
        self.frontends.chunk_by(|a, b| a.traffic() == b.traffic()).filter_map(move |frontends| {
            let traffic = frontends.first()?.traffic();
            let policy = service.policy(traffic, options);
            let choice = Choice::decide(&self.endpoints, traffic, policy);
            Some(Side { traffic, policy, choice, frontends })
        })
    }
}
