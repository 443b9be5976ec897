//! From the frontends of a Service to the endpoints that each of them uses.

use ipvs::Family;

use super::{
    EndpointScope, EndpointSelection, Frontend, MAX_REAL_SERVERS_PER_VIRTUAL_SERVER, PortEndpoint, Traffic,
    endpoints::{listed, listing, merged},
};
use crate::input::{CompactSlice, ServiceInputs, ServicePort, TrafficPolicy};

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
    pub(crate) traffic: Traffic,
    pub(crate) policy: TrafficPolicy,
    /// The node of the endpoint answers the client itself.
    pub(crate) direct_return: bool,
    pub(crate) selection: EndpointSelection,
    /// The selected endpoints, as many as a virtual server may have; sorted by address.
    pub(crate) used: Vec<&'a PortEndpoint>,
    pub(crate) frontends: &'a [Frontend<'a>],
}

impl PolicyGroup<'_> {
    /// Whether the external policy is Local and no endpoint is on this node, so that those elsewhere stand in, for
    /// this node and its pods.
    pub(crate) fn stands_in(&self) -> bool {
        let scope = self.selection.scope();
        self.policy == TrafficPolicy::Local && scope.is_some_and(|scope| scope != EndpointScope::Local)
    }

    /// Whether other nodes may tunnel what comes in at some of the frontends, now or as long as they do not know better.
    pub(crate) fn may_be_answered_directly(&self) -> bool {
        self.policy == TrafficPolicy::Cluster
            && self.frontends.iter().any(|frontend| frontend.kind.may_be_answered_directly())
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
            Some(PolicyGroup { traffic, policy, direct_return, selection, used, frontends })
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
