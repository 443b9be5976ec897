//! Why a Service is served on this node as it is: the decisions about it, rendered.

mod address;
mod causes;
mod client;
mod explanation;
mod names;

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;

use ipvs::ServiceAddress;

pub use address::{AddressExplanation, AddressQuery, AddressUse, EndpointUse};
pub use causes::{EndpointCause, EndpointCauses};
pub use client::{Admission, Client, ExplainedClient, SourceAddress};
pub use explanation::{
    EndpointPath, ExplainedAddress, ExplainedBalancing, ExplainedEndpoint, ExplainedPart, Explanation,
    LEAST_AFFINITY,
};

use crate::{
    compute::{
        AddressKind, AddressOwner, Decisions, DesiredService, EffectiveBalancing, EndpointReason, Frontend,
        NotServed, PolicyGroup, PortEndpoint, PortGroup,
    },
    input::{CompactSlice, ExternalIps, ObjectName, Problem, ServiceInputs, Traits},
    state::State,
};

impl State {
    /// Explains why a Service is served on this node as it is.
    pub fn explain(&self, service: &ObjectName) -> Explanation {
        let decided = self.inputs.decide(service);
        let (decisions, not_served) = match &decided {
            Ok(decisions) => (Some(decisions), None),
            Err(why) => (None, *why),
        };
        let desired = self.desired(service);
        let not_given = decisions.into_iter().flat_map(not_given);
        let mut problems: Vec<_> =
            not_given.chain(self.inputs.problems_of(service)).map(|problem| problem.to_string()).collect();
        let hints = if not_served == Some(NotServed::Unknown) {
            names::hints(service, || self.inputs.services())
        } else {
            Vec::new()
        };
        let parts = decisions.zip(desired).map(|(it, desired)| parts(it, desired, self)).unwrap_or_default();
        problems.extend(self.endpoints_at_services(&parts));
        Explanation {
            service: service.clone(),
            not_served,
            balancing: decisions
                .filter(|it| it.inputs.service.balancing.is_some())
                .map(|it| ExplainedBalancing::from_effective(&it.balancing)),
            session_affinity: decisions.and_then(|it| it.inputs.service.session_affinity),
            parts,
            unused_slices: decisions.map(|it| names(it.unused_slices())).unwrap_or_default(),
            refused: desired.map(|it| it.refused().to_vec()).unwrap_or_default(),
            health_check: desired.and_then(DesiredService::health_check),
            problems,
            hints,
        }
    }

    /// The endpoints in use that are themselves an address of a Service. IPVS balances a packet once
    /// (`ipvs_property` in net/netfilter/ipvs/ip_vs_core.c), so it gets no further than to this node.
    fn endpoints_at_services(&self, parts: &[ExplainedPart]) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for part in parts {
            for ExplainedEndpoint { address, slice, reason, .. } in &part.endpoints {
                let at = ServiceAddress { protocol: part.protocol, ip: address.ip, port: address.port };
                let is_served = self.wants_vip(&at.ip) || self.virtual_server(&at).is_some();
                if *reason == EndpointReason::Used && is_served {
                    found.insert(format!(
                        "{slice}: {address} is an address of a Service, and no endpoint answers there: IPVS balances a \
                         packet once"
                    ));
                }
            }
        }
        found
    }
}

/// The requests of a Service that this node fulfils for no Service.
fn not_given<'a>(decisions: &Decisions<'a>) -> impl Iterator<Item = Problem<'a>> {
    let inputs = decisions.inputs;
    let has_node_port = inputs.service.ports.iter().any(|port| port.node_port.is_some());
    let nowhere = has_node_port && inputs.node.node_port_addresses.is_empty();
    let no_external_ips =
        inputs.options.external_ips == ExternalIps::Off && !inputs.service.external_ips.is_empty();
    let node_ports = "spec.ports[].nodePort: no address of this node serves NodePorts";
    let external_ips = "spec.externalIPs: the gate AllowServiceExternalIPs is off";
    let not_given = [nowhere.then_some(node_ports), no_external_ips.then_some(external_ips)];
    not_given.into_iter().flatten().map(move |what| Problem::Service(&inputs.service.name, what))
}

impl ExplainedBalancing {
    fn from_effective(balancing: &EffectiveBalancing) -> Self {
        let unless_0 = |threshold| Some(threshold).filter(|it| *it != 0);
        let flags = balancing.scheduler.flag_names(balancing.scheduler_flags);
        Self {
            scheduler: balancing.scheduler,
            scheduler_flags: flags.map(Into::into).collect(),
            max_connections: unless_0(balancing.upper_threshold),
            resume_below: unless_0(balancing.lower_threshold),
        }
    }
}

fn names<'a>(slices: impl Iterator<Item = &'a CompactSlice>) -> Vec<ObjectName> {
    slices.map(|slice| slice.name.clone()).collect()
}

/// One part for each port, family and selection of endpoints.
fn parts(decisions: &Decisions<'_>, desired: &DesiredService, state: &State) -> Vec<ExplainedPart> {
    let vips: BTreeSet<_> = desired.vips().collect();
    let mut parts: Vec<ExplainedPart> = Vec::new();
    for group in decisions.port_groups() {
        let mut before = None;
        for policies in group.policy_groups() {
            let addresses = policies.frontends.iter().map(|frontend| ExplainedAddress {
                address: frontend.address,
                kind: frontend.kind,
                policy: policies.policy,
                vip: vips.contains(&frontend.address.ip),
                untracked: decisions.untracked.is_for(frontend),
                owner: owner(decisions, frontend),
                held_by: other_owner(state, decisions, frontend),
                allowed_sources: allowed_sources(decisions, frontend),
                source_ranges: source_ranges(decisions, frontend),
                client: None,
            });
            let decided = Some((policies.selection, policies.policy, policies.direct_return));
            match parts.last_mut() {
                // Where internal and external traffic have one decision, one part shows the endpoints.
                Some(part) if decided == before => part.addresses.extend(addresses),
                _ => parts.push(part(decisions, &group, &policies, addresses.collect())),
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
    decisions: &Decisions<'_>,
    group: &PortGroup<'_>,
    policies: &PolicyGroup<'_>,
    addresses: Vec<ExplainedAddress>,
) -> ExplainedPart {
    let selection = policies.selection;
    let zone = decisions.inputs.node.zone();
    ExplainedPart {
        port: group.port.name.to_string(),
        protocol: group.port.protocol,
        family: group.family,
        selection,
        stands_in: policies.stands_in(),
        direct_return: policies
            .direct_return
            .then(|| ExplainedBalancing::from_effective(decisions.balancing_at(policies))),
        zone: zone.map(str::to_owned),
        hints_ignored: selection.hints_ignored(&group.endpoints, zone, policies.direct_return),
        addresses,
        endpoints: endpoints(decisions, group, policies),
        slices_without_port: names(group.slices_without_port()),
        empty_slices: names(decisions.inputs.empty_slices(group.family)),
    }
}

/// The other owner of an address, if that is why it is not bound.
fn owner(decisions: &Decisions<'_>, frontend: &Frontend<'_>) -> Option<AddressOwner> {
    let is_bound = || frontend.bound_ip(decisions.inputs).is_some();
    if frontend.kind == AddressKind::NodePort || is_bound() {
        return None;
    }
    let ServiceInputs { node, options, addresses, .. } = decisions.inputs;
    let owner = AddressOwner::new(frontend.address.ip, node, options, addresses);
    (owner != AddressOwner::Nobody).then_some(owner)
}

/// The Service that owns the address of a frontend, if it is another one.
fn other_owner(state: &State, decisions: &Decisions<'_>, frontend: &Frontend<'_>) -> Option<ObjectName> {
    state.owner(&frontend.address).filter(|owner| **owner != decisions.inputs.service.name).cloned()
}

fn allowed_sources(decisions: &Decisions<'_>, frontend: &Frontend<'_>) -> Option<Vec<(IpAddr, IpAddr)>> {
    let sources = decisions.sources.allowed(frontend)?;
    Some(sources.iter().map(|source| (source.first, source.last)).collect())
}

/// The ranges to which a frontend is restricted, as the Service writes them.
fn source_ranges(decisions: &Decisions<'_>, frontend: &Frontend<'_>) -> Option<Vec<IpNet>> {
    decisions.sources.allowed(frontend)?;
    let ranges = decisions.inputs.service.source_ranges_of(frontend.family())?;
    Some(ranges.copied().collect())
}

/// Every entry of an endpoint, sorted by address. One entry of each address counts.
fn endpoints(
    decisions: &Decisions<'_>,
    group: &PortGroup<'_>,
    policies: &PolicyGroup<'_>,
) -> Vec<ExplainedEndpoint> {
    let weights = policies.weights(decisions.balancing_at(policies));
    let weight = |address| {
        let at = policies.used.binary_search_by_key(&address, |used| used.address).ok()?;
        weights.get(at).copied()
    };
    let mut counted = BTreeSet::new();
    let mut explained: Vec<_> = group
        .listed()
        .map(|(slice, endpoint)| {
            let address = endpoint.address;
            let counts = group.counts(&endpoint) && counted.insert(address);
            let reason = if counts { policies.reason(&endpoint) } else { EndpointReason::ListedAgain };
            let way =
                (policies.direct_return && reason == EndpointReason::Used).then(|| endpoint_path(&endpoint));
            let parts = weight(address).filter(|_| reason == EndpointReason::Used);
            ExplainedEndpoint {
                address,
                slice: slice.name.clone(),
                reason,
                weight: parts.map_or(endpoint.weight, |it| it.value()),
                weight_parts: parts.filter(|it| !it.is_plain()),
                way,
                answering: None,
            }
        })
        .collect();
    explained.sort_by_key(|endpoint| endpoint.address);
    explained
}

fn endpoint_path(endpoint: &PortEndpoint) -> EndpointPath {
    if endpoint.traits.contains(Traits::LOCAL) {
        EndpointPath::Here
    } else if endpoint.tunnel.is_some() {
        EndpointPath::Tunnel
    } else {
        EndpointPath::Masqueraded
    }
}
