//! How an [`Explanation`] comes about: the same steps as those that make the desired state, with what they passed over.

use std::collections::BTreeSet;

use ipvs::{Family, RealServerAddress};

use crate::{
    Choice, ExplainedAddress, ExplainedBalancing, ExplainedEndpoint, ExternalIps, NotServed, ObjectName,
    Options, Part, Reach, Service, ServiceKind, TrafficPolicy, Verdict,
    balancing::Balance,
    cluster_ips::ClusterIps,
    endpoints::{PortEndpoint, belongs, endpoints_of},
    external_addresses::ExternalAddresses,
    frontend::{Frontend, frontends},
    limits::{MOST_OF_A_VIRTUAL_SERVER, Room},
    record::Demand,
    slice::KnownSlice,
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

/// What is known where a Service is explained that is served.
pub(crate) struct Known<'a> {
    pub(crate) service: &'a Service,
    pub(crate) slices: &'a [KnownSlice],
    pub(crate) node: &'a ThisNode,
    pub(crate) options: &'a Options,
    pub(crate) cluster_ips: &'a ClusterIps,
    /// What it asks for, as computed.
    pub(crate) demand: &'a Demand,
}

impl Known<'_> {
    /// Its addresses with their endpoints.
    pub(crate) fn parts<'a>(&self, holder: impl Fn(&Frontend<'_>) -> Option<&'a ObjectName>) -> Vec<Part> {
        let external = ExternalAddresses::of(self.service, self.node, self.options, self.cluster_ips);
        let mut room = Room::of(self.slices, self.balance().scheduler);
        let frontends = frontends(self.service, &external, self.node, &mut room);
        let mut parts = Vec::new();
        for siblings in frontends.chunk_by(|a, b| a.endpoint_key() == b.endpoint_key()) {
            let [one, ..] = siblings else { continue };
            let endpoints = endpoints_of(self.service, one.port, one.family(), self.slices, self.node.zone());
            // Of both ways in that choose alike, only one says what becomes of the endpoints.
            let mut first: Option<(Choice, TrafficPolicy, Part)> = None;
            for side in siblings.chunk_by(|a, b| a.traffic() == b.traffic()) {
                let [one, ..] = side else { continue };
                let policy = self.policy(one);
                let choice = Choice::decide(&endpoints, one.traffic(), policy);
                let addresses = side.iter().map(|frontend| self.address(frontend, &holder));
                match &mut first {
                    Some((as_before, the_same, part)) if (*as_before, *the_same) == (choice, policy) => {
                        part.addresses.extend(addresses);
                    }
                    _ => {
                        let part = self.part(one, &endpoints, choice, policy, addresses.collect());
                        parts.extend(first.replace((choice, policy, part)).map(|(.., part)| part));
                    }
                }
            }
            parts.extend(first.map(|(.., part)| part));
        }
        for part in &mut parts {
            part.addresses.sort_unstable_by_key(|explained| (explained.kind, explained.address));
        }
        parts
    }

    fn part(
        &self,
        one: &Frontend<'_>,
        endpoints: &[PortEndpoint],
        choice: Choice,
        policy: TrafficPolicy,
        addresses: Vec<ExplainedAddress>,
    ) -> Part {
        let reaches_out = !matches!(choice, Choice::Ready(Reach::Local) | Choice::Draining(Reach::Local));
        let lacks_port =
            |slice: &&KnownSlice| !slice.ports.iter().any(|listening| belongs(listening, one.port));
        Part {
            port: one.port.name.to_string(),
            protocol: one.port.protocol,
            family: one.family(),
            choice,
            stands_in: policy == TrafficPolicy::Local && reaches_out && choice != Choice::Nothing,
            zone: self.node.zone().map(str::to_owned),
            hints_ignored: choice.hints_ignored(endpoints, self.node.zone()),
            addresses,
            endpoints: self.endpoints(one, endpoints, choice),
            slices_without_port: names(self.filled(one.family()).filter(lacks_port)),
        }
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

    fn balance(&self) -> Balance {
        Balance::of(self.service, self.slices, self.node, self.options)
    }

    fn policy(&self, frontend: &Frontend<'_>) -> TrafficPolicy {
        self.service.policy(frontend.traffic(), self.options)
    }

    fn address<'a>(
        &self,
        frontend: &Frontend<'_>,
        holder: impl Fn(&Frontend<'_>) -> Option<&'a ObjectName>,
    ) -> ExplainedAddress {
        let server = self.demand.virtual_server(&frontend.address);
        let sources = server.and_then(|server| server.allowed_sources.as_deref());
        ExplainedAddress {
            address: frontend.address,
            kind: frontend.kind,
            policy: self.policy(frontend),
            vip: self.demand.desired.vips.binary_search(&frontend.address.ip).is_ok(),
            held_by: holder(frontend).filter(|holder| **holder != self.service.name).cloned(),
            allowed_sources: sources
                .map(|sources| sources.iter().map(|source| (source.first, source.last)).collect()),
        }
    }

    /// The slices of a family that have endpoints.
    fn filled(&self, family: Family) -> impl Iterator<Item = &KnownSlice> {
        self.slices.iter().filter(move |slice| slice.family == family && !slice.endpoints.is_empty())
    }

    /// Every record of an endpoint for this port. `merged` has each address once, with the traits that count.
    fn endpoints(
        &self,
        one: &Frontend<'_>,
        merged: &[PortEndpoint],
        choice: Choice,
    ) -> Vec<ExplainedEndpoint> {
        let mut explained = Vec::new();
        let mut counted: BTreeSet<RealServerAddress> = BTreeSet::new();
        for slice in self.filled(one.family()) {
            for listening in slice.ports.iter().filter(|port| belongs(port, one.port)) {
                explained.extend(slice.endpoints.iter().map(|known| {
                    let address = RealServerAddress { ip: known.address, port: listening.port };
                    let traits = slice.traits(known, self.node.zone());
                    let weight = self.service.weight_of(slice, known);
                    let endpoint = PortEndpoint { address, traits, weight };
                    let counts = merged
                        .binary_search_by_key(&address, |it| it.address)
                        .is_ok_and(|at| merged.get(at) == Some(&endpoint) && counted.insert(address));
                    let verdict = if counts { choice.verdict(&endpoint) } else { Verdict::ListedAgain };
                    ExplainedEndpoint { address, slice: slice.name.clone(), verdict, weight }
                }));
            }
        }
        explained.sort_by_key(|endpoint| endpoint.address);
        let used = explained.iter_mut().filter(|endpoint| endpoint.verdict == Verdict::Used);
        used.skip(MOST_OF_A_VIRTUAL_SERVER).for_each(|endpoint| endpoint.verdict = Verdict::BeyondLimit);
        explained
    }

    /// The slices of a family in which the Service has no ClusterIP.
    pub(crate) fn unused_slices(&self) -> Vec<ObjectName> {
        let served = |family| self.service.cluster_ips.iter().any(|ip| Family::of(*ip) == family);
        names(Family::BOTH.into_iter().filter(|family| !served(*family)).flat_map(|it| self.filled(it)))
    }

    /// What it asks for and this node gives nobody.
    pub(crate) fn not_given(&self) -> impl Iterator<Item = String> {
        let name = &self.service.name;
        let has_node_port = self.service.ports.iter().any(|port| port.node_port.is_some());
        let nowhere = has_node_port && self.node.node_port_addresses().is_empty();
        let no_external_ips =
            self.options.external_ips == ExternalIps::Off && !self.service.external_ips.is_empty();
        let node_ports = nowhere
            .then(|| format!("{name}: spec.ports[].nodePort: no address of this node serves NodePorts"));
        let external_ips = no_external_ips
            .then(|| format!("{name}: spec.externalIPs: the gate AllowServiceExternalIPs is off"));
        node_ports.into_iter().chain(external_ips)
    }
}

fn names<'a>(slices: impl Iterator<Item = &'a KnownSlice>) -> Vec<ObjectName> {
    slices.map(|slice| slice.name.clone()).collect()
}
