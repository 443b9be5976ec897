//! How an [`Explanation`] comes about: the same steps as those that make the desired state, with what they passed over.

use std::collections::BTreeSet;

use ipvs::{Family, RealServerAddress};

use crate::{
    Choice, DesiredService, DesiredVirtualServer, ExplainedAddress, ExplainedEndpoint, NotServed, ObjectName,
    Options, Part, Reach, Service, ServiceKind, TrafficPolicy, Unused, UnusedSlice, Verdict,
    cluster_ips::ClusterIps,
    endpoints::{PortEndpoint, belongs, endpoints_of},
    external_addresses::ExternalAddresses,
    frontend::{Frontend, frontends},
    slice::{KnownSlice, Traits},
    this_node::ThisNode,
};

impl NotServed {
    /// Why a Service is not ours to serve, if it is not.
    pub(crate) fn of(service: &Service) -> Option<Self> {
        if service.other_proxy {
            Some(Self::OtherProxy)
        } else if service.kind == ServiceKind::ExternalName {
            Some(Self::ExternalName)
        } else {
            service.cluster_ips.is_empty().then_some(Self::NoClusterIp)
        }
    }
}

/// What is known where a Service is explained.
pub(crate) struct Known<'a> {
    pub(crate) service: &'a Service,
    pub(crate) slices: &'a [KnownSlice],
    pub(crate) node: &'a ThisNode,
    pub(crate) options: &'a Options,
    pub(crate) cluster_ips: &'a ClusterIps,
    /// What it asks for, as computed.
    pub(crate) desired: &'a DesiredService,
}

impl Known<'_> {
    /// Its addresses with their endpoints.
    pub(crate) fn parts<'a>(&self, holder: impl Fn(&Frontend<'_>) -> Option<&'a ObjectName>) -> Vec<Part> {
        let external = ExternalAddresses::of(self.service, self.node, self.options, self.cluster_ips);
        let frontends = frontends(self.service, &external, self.node);
        let mut parts = Vec::new();
        for siblings in frontends.chunk_by(|a, b| a.endpoint_key() == b.endpoint_key()) {
            let [one, ..] = siblings else { continue };
            let endpoints = endpoints_of(one.port, one.family(), self.slices, self.node.zone());
            let choose = |frontend: &Frontend<'_>| {
                let policy = self.policy(frontend);
                (Choice::decide(&endpoints, frontend.traffic(), policy), policy)
            };
            for alike in siblings.chunk_by(|a, b| choose(a) == choose(b)) {
                let [one, ..] = alike else { continue };
                let (choice, policy) = choose(one);
                let mut addresses: Vec<_> =
                    alike.iter().map(|frontend| self.address(frontend, &holder)).collect();
                addresses.sort_unstable_by_key(|explained| (explained.kind, explained.address));
                parts.push(Part {
                    port: one.port.name.to_string(),
                    protocol: one.port.protocol,
                    family: one.family(),
                    choice,
                    zone: self.zone(choice),
                    hints_ignored: ignores_hints(choice, &endpoints),
                    addresses,
                    endpoints: self.endpoints(one, &endpoints, choice, policy),
                });
            }
        }
        parts
    }

    fn policy(&self, frontend: &Frontend<'_>) -> TrafficPolicy {
        self.service.policy(frontend.traffic(), self.options)
    }

    fn zone(&self, choice: Choice) -> Option<String> {
        let decides = matches!(choice, Choice::Ready(Reach::HintedZone));
        decides.then(|| self.node.zone().map(str::to_owned)).flatten()
    }

    fn address<'a>(
        &self,
        frontend: &Frontend<'_>,
        holder: impl Fn(&Frontend<'_>) -> Option<&'a ObjectName>,
    ) -> ExplainedAddress {
        let sources = self.virtual_server(frontend).and_then(|server| server.allowed_sources.as_deref());
        ExplainedAddress {
            address: frontend.address,
            kind: frontend.kind,
            policy: self.policy(frontend),
            vip: self.desired.vips.binary_search(&frontend.address.ip).is_ok(),
            held_by: holder(frontend).filter(|holder| **holder != self.service.name).cloned(),
            allowed_sources: sources
                .map(|sources| sources.iter().map(|source| (source.first, source.last)).collect()),
        }
    }

    fn virtual_server(&self, frontend: &Frontend<'_>) -> Option<&DesiredVirtualServer> {
        self.desired.virtual_servers.iter().find(|server| server.address == frontend.address)
    }

    /// Every record of an endpoint for this port. `merged` has each address once, with the traits that count.
    fn endpoints(
        &self,
        one: &Frontend<'_>,
        merged: &[PortEndpoint],
        choice: Choice,
        policy: TrafficPolicy,
    ) -> Vec<ExplainedEndpoint> {
        let mut explained = Vec::new();
        let mut counted: BTreeSet<RealServerAddress> = BTreeSet::new();
        for slice in self.slices.iter().filter(|slice| slice.family == one.family()) {
            for listening in slice.ports.iter().filter(|port| belongs(port, one.port)) {
                explained.extend(slice.endpoints.iter().map(|known| {
                    let address = RealServerAddress { ip: known.address, port: listening.port };
                    let endpoint = PortEndpoint { address, traits: slice.traits(known, self.node.zone()) };
                    let counts = merged
                        .binary_search_by_key(&address, |it| it.address)
                        .is_ok_and(|at| merged.get(at) == Some(&endpoint) && counted.insert(address));
                    let verdict =
                        if counts { choice.verdict(&endpoint, policy) } else { Verdict::InAnotherSlice };
                    ExplainedEndpoint { address, slice: slice.name.clone(), verdict }
                }));
            }
        }
        explained.sort_by_key(|endpoint| endpoint.address);
        explained
    }
}

/// Whether endpoints have hints that do not count.
fn ignores_hints(choice: Choice, endpoints: &[PortEndpoint]) -> bool {
    let counts = matches!(choice, Choice::Ready(Reach::HintedNode | Reach::HintedZone));
    !counts && endpoints.iter().any(|it| it.traits.intersects(Traits::NODE_HINTS | Traits::ZONE_HINTS))
}

/// The slices of which no endpoint can be a real server of the Service.
pub(crate) fn unused_slices(service: &Service, slices: &[KnownSlice]) -> Vec<UnusedSlice> {
    let why = |slice: &KnownSlice| {
        if !service.cluster_ips.iter().any(|ip| Family::of(*ip) == slice.family) {
            return Some(Unused::NoClusterIpOfItsFamily);
        }
        let serves = |port| service.ports.iter().any(|of| belongs(port, of));
        (!slice.ports.iter().any(serves)).then_some(Unused::NoPortOfTheService)
    };
    let unused = |slice: &KnownSlice| {
        let (slice_name, endpoints) = (slice.name.clone(), slice.endpoints.len());
        why(slice).map(|why| UnusedSlice { slice: slice_name, family: slice.family, endpoints, why })
    };
    slices.iter().filter(|slice| !slice.endpoints.is_empty()).filter_map(unused).collect()
}
