//! The addresses of a Service with their endpoints.

use std::{collections::BTreeSet, net::IpAddr};

use super::{
    EndpointReason, EndpointWay, ExplainedAddress, ExplainedBalancing, ExplainedEndpoint, ExplainedPart,
    names,
};
use crate::{
    compute::{
        AddressKind, AddressOwner, Decisions, DesiredService, Frontend, PolicyGroup, PortEndpoint, PortGroup,
    },
    input::{ObjectName, Traits},
    state::State,
};

/// One part for each port, family and selection of endpoints.
pub(super) fn parts(
    decisions: &Decisions<'_>,
    desired: &DesiredService,
    state: &State,
) -> Vec<ExplainedPart> {
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
                owner: owner(decisions, frontend),
                held_by: other_holder(state, decisions, frontend),
                allowed_sources: allowed_sources(decisions, frontend),
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
        direct_return: decisions
            .direct_balancing
            .as_ref()
            .filter(|_| policies.direct_return)
            .map(ExplainedBalancing::from_effective),
        zone: zone.map(str::to_owned),
        hints_ignored: selection.hints_ignored(&group.endpoints, zone, policies.direct_return),
        addresses,
        endpoints: endpoints(group, policies),
        slices_without_port: names(group.slices_without_port()),
    }
}

/// Whose an address is besides, if that is why it is not bound.
fn owner(decisions: &Decisions<'_>, frontend: &Frontend<'_>) -> Option<AddressOwner> {
    let is_bound = || frontend.bound_ip(decisions.inputs).is_some();
    if frontend.kind == AddressKind::NodePort || is_bound() {
        return None;
    }
    Some(AddressOwner::of(frontend.address.ip, decisions.inputs))
        .filter(|owner| *owner != AddressOwner::Nobody)
}

/// The Service that has the address of a frontend, if it is another one.
fn other_holder(state: &State, decisions: &Decisions<'_>, frontend: &Frontend<'_>) -> Option<ObjectName> {
    state.owner(&frontend.address).filter(|holder| **holder != decisions.inputs.service.name).cloned()
}

fn allowed_sources(decisions: &Decisions<'_>, frontend: &Frontend<'_>) -> Option<Vec<(IpAddr, IpAddr)>> {
    let sources = decisions.sources.allowed(frontend)?;
    Some(sources.iter().map(|source| (source.first, source.last)).collect())
}

/// Every entry of an endpoint, sorted by address. One entry of each address counts.
fn endpoints(group: &PortGroup<'_>, policies: &PolicyGroup<'_>) -> Vec<ExplainedEndpoint> {
    let mut counted = BTreeSet::new();
    let mut explained: Vec<_> = group
        .listed()
        .map(|(slice, endpoint)| {
            let address = endpoint.address;
            let counts = group.counts(&endpoint) && counted.insert(address);
            let reason = if counts { policies.reason(&endpoint) } else { EndpointReason::ListedAgain };
            let way = (policies.direct_return && reason == EndpointReason::Used).then(|| way(&endpoint));
            ExplainedEndpoint { address, slice: slice.name.clone(), reason, weight: endpoint.weight, way }
        })
        .collect();
    explained.sort_by_key(|endpoint| endpoint.address);
    explained
}

fn way(endpoint: &PortEndpoint) -> EndpointWay {
    if endpoint.traits.contains(Traits::LOCAL) {
        EndpointWay::Here
    } else if endpoint.tunnel.is_some() {
        EndpointWay::Tunnel
    } else {
        EndpointWay::Masqueraded
    }
}
