//! Every decision about one Service on this node.

use ipvs::Family;

use super::{
    DirectReturn, EffectiveBalancing, ExternalAddresses, Frontend, PortGroup, Quota, SourceRanges,
    frontend::frontends, limits::costlier,
};
use crate::input::{CompactSlice, ServiceInputs};

/// Every decision about one Service on this node, together with the inputs that each of them passed over.
///
/// [`DesiredService`](crate::DesiredService) is collected from it, and [`Explanation`](crate::Explanation) renders
/// it: one algorithm decides, and both show the result.
#[derive(Debug)]
pub(crate) struct Decisions<'a> {
    pub(crate) inputs: ServiceInputs<'a>,
    pub(crate) external: ExternalAddresses,
    pub(crate) balancing: EffectiveBalancing,
    /// The same at addresses that are answered directly, if there are any.
    pub(crate) direct_balancing: Option<EffectiveBalancing>,
    /// Why there are none although the Service asks for it, in words.
    pub(crate) without_direct_return: Vec<String>,
    pub(crate) sources: SourceRanges,
    /// What does not fit into the quota of a Service, in words.
    pub(crate) over_quota: Vec<String>,
    /// Where it is not served because an API server listens there, in words.
    pub(crate) api_servers: Vec<String>,
    /// Every address at which a port is served, in the order of [`frontends`].
    frontends: Vec<Frontend<'a>>,
}

impl<'a> Decisions<'a> {
    /// Decides about a Service that is served.
    pub(crate) fn new(inputs: ServiceInputs<'a>) -> Self {
        let external = ExternalAddresses::new(inputs);
        let balancing = EffectiveBalancing::new(inputs);
        let direct_return = DirectReturn::new(inputs, &external);
        let direct_balancing = direct_return.is_used().then(|| EffectiveBalancing::for_direct_return(inputs));
        let directly = direct_balancing.as_ref().unwrap_or(&balancing);
        let sources = SourceRanges::new(inputs);
        let mut quota = Quota::new(inputs.slices, costlier(balancing.scheduler, directly.scheduler));
        let mut frontends = frontends(inputs, &external, &direct_return, &sources, &mut quota);
        let api_servers = frontends.extract_if(.., |frontend| frontend.hides_api_server(inputs.node));
        let api_servers = api_servers.map(|Frontend { address, kind, .. }| {
            format!("{}: {address} is not served: the API server listens there", kind.field())
        });
        let api_servers = api_servers.collect();
        Self {
            inputs,
            external,
            balancing,
            direct_balancing,
            without_direct_return: direct_return.problems,
            sources,
            over_quota: quota.problems(inputs.service),
            api_servers,
            frontends,
        }
    }

    /// The frontends, grouped by port and family, each group with its endpoints.
    pub(crate) fn port_groups(&self) -> impl Iterator<Item = PortGroup<'_>> {
        let groups = self.frontends.chunk_by(|a, b| a.endpoint_key() == b.endpoint_key());
        groups.filter_map(|frontends| PortGroup::new(self.inputs, frontends))
    }

    /// The slices with endpoints of a family in which the Service has no ClusterIP. Nothing of them is used.
    pub(crate) fn unused_slices(&self) -> impl Iterator<Item = &'a CompactSlice> {
        let inputs = self.inputs;
        let unserved =
            Family::BOTH.into_iter().filter(move |family| !inputs.service.has_cluster_ip_of(*family));
        unserved.flat_map(move |family| inputs.filled_slices(family))
    }
}
