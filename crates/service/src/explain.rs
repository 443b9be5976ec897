//! How an [`Explanation`] comes about: the same steps as those that make the desired state, with what they passed over.

mod endpoint_reason;
mod explanation;

pub use endpoint_reason::{EndpointReason, HintsIgnored};
pub use explanation::{ExplainedAddress, ExplainedBalancing, ExplainedEndpoint, ExplainedPart, Explanation};

use std::collections::BTreeSet;

use ipvs::{Family, RealServerAddress};

use crate::{
    compute::{
        EffectiveBalancing, EndpointScope, EndpointSelection, ExternalAddresses, Frontend,
        MAX_REAL_SERVERS_PER_VIRTUAL_SERVER, PolicyGroup, PortEndpoint, PortGroup, Quota, belongs, frontends,
        port_groups,
    },
    input::{
        ClusterIps, CompactSlice, ExternalIps, ObjectName, Options, Problem, Service, ThisNode, TrafficPolicy,
    },
    state::Computed,
};

/// Everything that explains a Service that is served.
pub(crate) struct Known<'a> {
    pub(crate) service: &'a Service,
    pub(crate) slices: &'a [CompactSlice],
    pub(crate) node: &'a ThisNode,
    pub(crate) options: &'a Options,
    pub(crate) cluster_ips: &'a ClusterIps,
    /// What it asks for, as computed.
    pub(crate) computed: &'a Computed,
}

impl Known<'_> {
    /// Its addresses with their endpoints.
    pub(crate) fn parts<'a>(
        &self,
        holder: impl Fn(&Frontend<'_>) -> Option<&'a ObjectName>,
    ) -> Vec<ExplainedPart> {
        let external = ExternalAddresses::new(self.service, self.node, self.options, self.cluster_ips);
        let mut room = Quota::new(self.slices, self.balance().scheduler);
        let frontends = frontends(self.service, &external, self.node, &mut room);
        let mut parts: Vec<ExplainedPart> = Vec::new();
        for group in port_groups(self.service, &frontends, self.slices, self.node) {
            let mut before = None;
            for side in group.policy_groups(self.service, self.options) {
                let addresses = side.frontends.iter().map(|it| self.address(it, side.policy, &holder));
                let decided = Some((side.selection, side.policy));
                match parts.last_mut() {
                    // Where both ways in choose alike, one part says what becomes of the endpoints.
                    Some(part) if decided == before => part.addresses.extend(addresses),
                    _ => parts.push(self.part(&group, &side, addresses.collect())),
                }
                before = decided;
            }
        }
        for part in &mut parts {
            part.addresses.sort_unstable_by_key(|explained| (explained.kind, explained.address));
        }
        parts
    }

    fn part(
        &self,
        group: &PortGroup<'_>,
        side: &PolicyGroup<'_>,
        addresses: Vec<ExplainedAddress>,
    ) -> ExplainedPart {
        let PortGroup { port, family, endpoints, .. } = group;
        let PolicyGroup { selection, policy, .. } = *side;
        let reaches_out = !matches!(
            selection,
            EndpointSelection::Ready(EndpointScope::Local)
                | EndpointSelection::Draining(EndpointScope::Local)
        );
        let lacks_port =
            |slice: &&CompactSlice| !slice.ports.iter().any(|listening| belongs(listening, port));
        ExplainedPart {
            port: port.name.to_string(),
            protocol: port.protocol,
            family: *family,
            selection,
            stands_in: policy == TrafficPolicy::Local
                && reaches_out
                && selection != EndpointSelection::Nothing,
            zone: self.node.zone().map(str::to_owned),
            hints_ignored: selection.hints_ignored(endpoints, self.node.zone()),
            addresses,
            endpoints: self.endpoints(group, selection),
            slices_without_port: names(self.filled(*family).filter(lacks_port)),
        }
    }

    fn balance(&self) -> EffectiveBalancing {
        EffectiveBalancing::new(self.service, self.slices, self.node, self.options)
    }

    /// How its connections are balanced, if its annotations ask for anything.
    pub(crate) fn balancing(&self) -> Option<ExplainedBalancing> {
        self.service.balancing.as_ref()?;
        let balance = self.balance();
        let unless_0 = |threshold| Some(threshold).filter(|it| *it != 0);
        Some(ExplainedBalancing {
            scheduler: balance.scheduler,
            scheduler_flags: balance.scheduler.flag_names(balance.scheduler_flags).map(Into::into).collect(),
            max_connections: unless_0(balance.upper_threshold),
            resume_below: unless_0(balance.lower_threshold),
        })
    }

    fn address<'a>(
        &self,
        frontend: &Frontend<'_>,
        policy: TrafficPolicy,
        holder: impl Fn(&Frontend<'_>) -> Option<&'a ObjectName>,
    ) -> ExplainedAddress {
        let server = self.computed.virtual_server(&frontend.address);
        let sources = server.and_then(|server| server.allowed_sources.as_deref());
        ExplainedAddress {
            address: frontend.address,
            kind: frontend.kind,
            policy,
            vip: self.computed.desired.vips.binary_search(&frontend.address.ip).is_ok(),
            held_by: holder(frontend).filter(|holder| **holder != self.service.name).cloned(),
            allowed_sources: sources
                .map(|sources| sources.iter().map(|source| (source.first, source.last)).collect()),
        }
    }

    /// The slices of a family that have endpoints.
    fn filled(&self, family: Family) -> impl Iterator<Item = &CompactSlice> {
        self.slices.iter().filter(move |slice| slice.family == family && !slice.endpoints.is_empty())
    }

    /// Every record of an endpoint for this port. The group has each address once, with the traits that count.
    fn endpoints(&self, group: &PortGroup<'_>, selection: EndpointSelection) -> Vec<ExplainedEndpoint> {
        let PortGroup { port, family, endpoints: merged, .. } = group;
        let mut explained = Vec::new();
        let mut counted: BTreeSet<RealServerAddress> = BTreeSet::new();
        for slice in self.filled(*family) {
            for listening in slice.ports.iter().filter(|listening| belongs(listening, port)) {
                explained.extend(slice.endpoints.iter().map(|known| {
                    let address = RealServerAddress { ip: known.address, port: listening.port };
                    let traits = slice.traits(known, self.node.zone());
                    let weight = self.service.weight_of(slice, known);
                    let endpoint = PortEndpoint { address, traits, weight };
                    let counts = merged
                        .binary_search_by_key(&address, |it| it.address)
                        .is_ok_and(|at| merged.get(at) == Some(&endpoint) && counted.insert(address));
                    let reason =
                        if counts { selection.reason(&endpoint) } else { EndpointReason::ListedAgain };
                    ExplainedEndpoint { address, slice: slice.name.clone(), reason, weight }
                }));
            }
        }
        explained.sort_by_key(|endpoint| endpoint.address);
        let used = explained.iter_mut().filter(|endpoint| endpoint.reason == EndpointReason::Used);
        used.skip(MAX_REAL_SERVERS_PER_VIRTUAL_SERVER)
            .for_each(|endpoint| endpoint.reason = EndpointReason::BeyondLimit);
        explained
    }

    /// The slices of a family in which the Service has no ClusterIP.
    pub(crate) fn unused_slices(&self) -> Vec<ObjectName> {
        let served = |family| self.service.cluster_ips.iter().any(|ip| Family::from(*ip) == family);
        names(Family::BOTH.into_iter().filter(|family| !served(*family)).flat_map(|it| self.filled(it)))
    }

    /// What it asks for and this node gives nobody.
    pub(crate) fn not_given(&self) -> impl Iterator<Item = Problem<'_>> {
        let has_node_port = self.service.ports.iter().any(|port| port.node_port.is_some());
        let nowhere = has_node_port && self.node.node_port_addresses().is_empty();
        let no_external_ips =
            self.options.external_ips == ExternalIps::Off && !self.service.external_ips.is_empty();
        let node_ports = "spec.ports[].nodePort: no address of this node serves NodePorts";
        let external_ips = "spec.externalIPs: the gate AllowServiceExternalIPs is off";
        let not_given = [nowhere.then_some(node_ports), no_external_ips.then_some(external_ips)];
        not_given.into_iter().flatten().map(|what| Problem::Service(&self.service.name, what))
    }
}

fn names<'a>(slices: impl Iterator<Item = &'a CompactSlice>) -> Vec<ObjectName> {
    slices.map(|slice| slice.name.clone()).collect()
}
