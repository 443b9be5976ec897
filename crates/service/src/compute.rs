//! From one Service's inputs to what it asks of the kernel.

mod address_kind;
mod balancing;
mod desired_service;
mod endpoint_selection;
mod endpoints;
mod external_addresses;
mod frontend;
mod health_check;
mod limits;
mod not_served;
mod port_group;
mod source_ranges;
mod traffic;
mod urgency;

pub use address_kind::AddressKind;
pub use desired_service::{DesiredService, DesiredVirtualServer, HealthCheck, WithoutLocalEndpoint};
pub use endpoint_selection::{EndpointScope, EndpointSelection};
pub use external_addresses::{AddressRefusal, RefusedAddress, SpecialAddress};
pub use limits::{
    MAX_ALLOWED_SOURCES, MAX_REAL_SERVERS, MAX_REAL_SERVERS_MH, MAX_REAL_SERVERS_PER_VIRTUAL_SERVER,
    MAX_VIRTUAL_SERVERS,
};
pub use not_served::NotServed;
pub use traffic::Traffic;
pub use urgency::Urgency;

pub(crate) use balancing::EffectiveBalancing;
pub(crate) use endpoints::{PortEndpoint, belongs, endpoints_of};
pub(crate) use external_addresses::ExternalAddresses;
pub(crate) use frontend::{Frontend, frontends};
pub(crate) use limits::Quota;
pub(crate) use port_group::{PolicyGroup, PortGroup, port_groups};
pub(crate) use source_ranges::SourceRanges;

use std::{net::IpAddr, sync::Arc};

use ipvs::{Family, RealServer, ServiceAddress, VirtualServer};
use netfilter::{Element, HairpinFlow, HealthCheckPort};

use crate::input::{
    ClusterIps, CompactSlice, Options, Service, ServicePort, ThisNode, TrafficPolicy, Traits,
};

impl DesiredService {
    /// What a Service with these slices asks of the kernel. `None`: it is not ours to serve.
    pub(crate) fn compute(
        service: &Service,
        slices: &[CompactSlice],
        node: &ThisNode,
        options: &Options,
        cluster_ips: &ClusterIps,
    ) -> Option<Self> {
        if NotServed::for_service(service).is_some() {
            return None;
        }
        let external = ExternalAddresses::new(service, node, options, cluster_ips);
        let balance = EffectiveBalancing::new(service, slices, node, options);
        let mut room = Quota::new(slices, balance.scheduler);
        let frontends = frontends(service, &external, node, &mut room);
        let sources = SourceRanges::new(service, node, &frontends);
        let mut collected = Collector::of(service, node, options, balance, sources);
        for group in port_groups(service, &frontends, slices, node) {
            collected.add(&group);
        }
        Some(collected.finish(external.refused, room.problems))
    }
}

/// What a Service asks for, while it is collected.
struct Collector<'a> {
    service: &'a Service,
    node: &'a ThisNode,
    options: &'a Options,
    balance: EffectiveBalancing,
    sources: SourceRanges,
    virtual_servers: Vec<DesiredVirtualServer>,
    vips: Vec<IpAddr>,
    shared_elements: Vec<Element>,
    without_local_endpoint: Vec<WithoutLocalEndpoint>,
    ready_here: Vec<IpAddr>,
}

impl<'a> Collector<'a> {
    fn of(
        service: &'a Service,
        node: &'a ThisNode,
        options: &'a Options,
        balance: EffectiveBalancing,
        sources: SourceRanges,
    ) -> Self {
        Self {
            service,
            node,
            options,
            balance,
            sources,
            virtual_servers: Vec::new(),
            vips: Vec::new(),
            shared_elements: Vec::new(),
            without_local_endpoint: Vec::new(),
            ready_here: Vec::new(),
        }
    }

    /// Adds the addresses of one port in one family.
    fn add(&mut self, group: &PortGroup<'_>) {
        let PortGroup { port, family, endpoints, .. } = group;
        let ready_here = endpoints.iter().filter(|it| it.traits.contains(Traits::READY | Traits::LOCAL));
        self.ready_here.extend(ready_here.map(|endpoint| endpoint.address.ip));

        let mut shared: Arc<[RealServer]> = Arc::default();
        for PolicyGroup { traffic, policy, selection, frontends } in
            group.policy_groups(self.service, self.options)
        {
            if policy == TrafficPolicy::Local && EndpointSelection::misses_local(endpoints) {
                self.without_local_endpoint.push(WithoutLocalEndpoint { traffic, family: *family });
            }
            let used = endpoints.iter().filter(|endpoint| selection.uses(endpoint));
            let used: Vec<_> = used.take(MAX_REAL_SERVERS_PER_VIRTUAL_SERVER).collect();
            self.shared_elements.extend(used.iter().filter_map(|endpoint| hairpin(port, endpoint)));

            let real_servers: Vec<_> = used.into_iter().map(|it| self.real_server(it)).collect();
            if *real_servers != *shared {
                shared = real_servers.into();
            }
            for frontend in frontends {
                self.serve(frontend, policy, shared.clone());
            }
        }
    }

    /// Adds one address.
    fn serve(&mut self, frontend: &Frontend<'_>, policy: TrafficPolicy, real_servers: Arc<[RealServer]>) {
        self.vips.extend(frontend.vip(self.node));
        self.virtual_servers.push(DesiredVirtualServer {
            address: frontend.address,
            config: self.configuration(frontend.address),
            real_servers,
            element: frontend.element(policy),
            allowed_sources: self.sources.allowed(frontend),
            kind: frontend.kind,
        });
    }

    fn configuration(&self, address: ServiceAddress) -> VirtualServer {
        let mut server = VirtualServer::new(address, self.balance.scheduler);
        server.flags |= self.balance.scheduler_flags;
        match self.service.session_affinity {
            Some(seconds) => server.persistent(seconds),
            None => server,
        }
    }

    fn real_server(&self, endpoint: &PortEndpoint) -> RealServer {
        let EffectiveBalancing { upper_threshold, lower_threshold, .. } = self.balance;
        RealServer::masquerade(endpoint.address.ip, endpoint.address.port)
            .weight(endpoint.weight.get().into())
            .thresholds(upper_threshold, lower_threshold)
    }

    fn finish(mut self, refused: Vec<RefusedAddress>, too_much: Vec<String>) -> DesiredService {
        self.virtual_servers.sort_unstable_by_key(|server| server.address);
        let health_check = HealthCheck::for_service(self.service, self.options, self.ready_here);
        self.shared_elements
            .extend(health_check.iter().flat_map(|check| health_check_ports(check, self.service)));
        DesiredService {
            virtual_servers: self.virtual_servers.into(),
            vips: sorted_once(self.vips),
            shared_elements: sorted_once(self.shared_elements),
            health_check,
            without_local_endpoint: sorted_once(self.without_local_endpoint),
            refused: sorted_once(refused),
            problems: self.balance.problems.into_iter().chain(too_much).chain(self.sources.problem).collect(),
        }
    }
}

/// A pod of this node can be its own client.
fn hairpin(port: &ServicePort, endpoint: &PortEndpoint) -> Option<Element> {
    let local = endpoint.traits.contains(Traits::LOCAL);
    local.then_some(Element::Hairpin(HairpinFlow { protocol: port.protocol, pod: endpoint.address }))
}

/// Load balancers ask in each family that the Service has.
fn health_check_ports(check: &HealthCheck, service: &Service) -> impl Iterator<Item = Element> {
    let port = check.port.get();
    let families = service.cluster_ips.iter().map(|ip| Family::from(*ip));
    families.map(move |family| Element::HealthCheckPort(HealthCheckPort { family, port }))
}

fn sorted_once<T: Ord>(mut values: Vec<T>) -> Box<[T]> {
    values.sort_unstable();
    values.dedup();
    values.into()
}
