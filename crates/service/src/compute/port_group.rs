//! From the frontends of a Service to the choice of endpoints for each of them.

use ipvs::Family;

use super::{EndpointSelection, Frontend, PortEndpoint, Traffic, endpoints_of};
use crate::input::{CompactSlice, Options, Service, ServicePort, ThisNode, TrafficPolicy};

/// The frontends of one port in one family, which have the same endpoints.
pub(crate) struct PortGroup<'a> {
    pub(crate) port: &'a ServicePort,
    pub(crate) family: Family,
    /// Sorted by address, each address once, used or not.
    pub(crate) endpoints: Vec<PortEndpoint>,
    frontends: &'a [Frontend<'a>],
}

/// Those frontends of a port group at which traffic comes in in the same way, so that the same endpoints are chosen.
pub(crate) struct PolicyGroup<'a> {
    pub(crate) traffic: Traffic,
    pub(crate) policy: TrafficPolicy,
    pub(crate) selection: EndpointSelection,
    pub(crate) frontends: &'a [Frontend<'a>],
}

/// The frontends of a Service, in their order, with their endpoints.
pub(crate) fn port_groups<'a>(
    service: &'a Service,
    frontends: &'a [Frontend<'a>],
    slices: &'a [CompactSlice],
    node: &'a ThisNode,
) -> impl Iterator<Item = PortGroup<'a>> {
    frontends.chunk_by(|a, b| a.endpoint_key() == b.endpoint_key()).filter_map(move |frontends| {
        let (port, family) = frontends.first().map(|one| (one.port, one.family()))?;
        let endpoints = endpoints_of(service, port, family, slices, node.zone());
        Some(PortGroup { port, family, endpoints, frontends })
    })
}

impl<'a> PortGroup<'a> {
    /// One side, or two: traffic comes in at ClusterIPs, or at all other addresses.
    pub(crate) fn policy_groups(
        &self,
        service: &Service,
        options: &Options,
    ) -> impl Iterator<Item = PolicyGroup<'a>> {
        self.frontends.chunk_by(|a, b| a.traffic() == b.traffic()).filter_map(move |frontends| {
            let traffic = frontends.first()?.traffic();
            let policy = service.policy(traffic, options);
            let selection = EndpointSelection::decide(&self.endpoints, traffic, policy);
            Some(PolicyGroup { traffic, policy, selection, frontends })
        })
    }
}
