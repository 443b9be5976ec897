//! From the decisions about a Service to what it asks of the kernel.

use std::{net::IpAddr, sync::Arc};

use ipvs::{Family, RealServer, ServiceFlags};
use netfilter::{Element, HairpinFlow, HealthCheckPort};
use smallvec::SmallVec;

use super::{
    Decisions, DesiredService, DesiredVirtualServer, EffectiveBalancing, EndpointSelection, Extras, Frontend,
    HealthCheck, PolicyGroup, PortEndpoint, PortGroup, WithoutLocalEndpoint,
};
use crate::input::{Service, ServicePort, TrafficPolicy, Traits};

impl DesiredService {
    /// What the decisions about a Service ask of the kernel.
    pub(crate) fn from_decisions(decisions: Decisions<'_>) -> Self {
        let mut collected = Collected::default();
        for group in decisions.port_groups() {
            collected.add(&decisions, &group);
        }
        collected.finish(decisions)
    }
}

/// What a Service asks for, while it is collected.
#[derive(Default)]
struct Collected {
    virtual_servers: SmallVec<[Arc<DesiredVirtualServer>; 1]>,
    bound: Vec<IpAddr>,
    shared_elements: Vec<Element>,
    without_local_endpoint: Vec<WithoutLocalEndpoint>,
    ready_here: Vec<IpAddr>,
}

impl Collected {
    /// Adds the addresses of one port in one family.
    fn add(&mut self, decisions: &Decisions<'_>, group: &PortGroup<'_>) {
        let PortGroup { port, family, endpoints, .. } = group;
        let ready_here = endpoints.iter().filter(|it| it.traits.contains(Traits::READY | Traits::LOCAL));
        self.ready_here.extend(ready_here.map(|endpoint| endpoint.address.ip));

        let mut shared: Arc<[RealServer]> = Arc::default();
        for group in group.policy_groups() {
            if group.policy == TrafficPolicy::Local && EndpointSelection::misses_local(endpoints) {
                let missing = WithoutLocalEndpoint { traffic: group.traffic, family: *family };
                self.without_local_endpoint.push(missing);
            }
            self.shared_elements.extend(group.used.iter().filter_map(|endpoint| hairpin(port, endpoint)));

            let exits = group.exits(endpoints, decisions.inputs.node);
            self.shared_elements.extend(group.tunnel_elements(endpoints, decisions.inputs.node));
            let real_servers: Vec<_> =
                group.used.iter().map(|it| decisions.real_server(it, &group)).collect();
            if *real_servers != *shared {
                shared = real_servers.into();
            }
            for frontend in group.frontends {
                self.bound.extend(frontend.bound_ip(decisions.inputs));
                let balancing = decisions.balancing_at(frontend.direct_return);
                let timeout = decisions.affinity_timeout(frontend);
                let persistent = timeout.map_or(ServiceFlags::empty(), |_| ServiceFlags::PERSISTENT);
                self.virtual_servers.push(Arc::new(DesiredVirtualServer {
                    address: frontend.address,
                    scheduler: balancing.scheduler,
                    flags: balancing.scheduler_flags | persistent,
                    timeout: timeout.unwrap_or_default(),
                    real_servers: shared.clone(),
                    masquerade: frontend.masquerade(group.policy),
                    stands_in: group.stands_in(),
                    direct_return: decisions.direct_return(frontend, &exits),
                    allowed_sources: decisions.sources.allowed(frontend),
                    kind: frontend.kind,
                }));
            }
        }
    }

    fn finish(mut self, decisions: Decisions<'_>) -> DesiredService {
        let Decisions { inputs, external, over_quota, without_direct_return, api_servers, .. } = decisions;
        self.virtual_servers.sort_unstable_by_key(|server| server.address);
        let health_check = HealthCheck::for_service(inputs.service, inputs.options, self.ready_here);
        let health_check_ports =
            health_check.iter().flat_map(|check| health_check_ports(check, inputs.service));
        self.shared_elements.extend(health_check_ports);
        let mut problems = decisions.balancing.problems;
        let of_direct = decisions.direct_balancing.into_iter().flat_map(|it| it.problems);
        problems.extend(of_direct.filter(|problem| !problems.contains(problem)).collect::<Vec<_>>());
        let bound = sorted_once(self.bound);
        let ips = self.virtual_servers.iter().map(|server| server.address.ip);
        let extras = Extras {
            unbound: sorted_once(ips.filter(|ip| bound.binary_search(ip).is_err()).collect()),
            shared_elements: sorted_once(self.shared_elements),
            health_check,
            without_local_endpoint: sorted_once(self.without_local_endpoint),
            refused: sorted_once(external.refused),
            problems: problems
                .into_iter()
                .chain(api_servers)
                .chain(over_quota)
                .chain(without_direct_return)
                .collect(),
        };
        DesiredService::new(self.virtual_servers, extras)
    }
}

impl Decisions<'_> {
    /// How connections are balanced at an address.
    fn balancing_at(&self, direct_return: bool) -> &EffectiveBalancing {
        self.direct_balancing.as_ref().filter(|_| direct_return).unwrap_or(&self.balancing)
    }

    /// How many seconds a client keeps its endpoint at an address, unless the scheduler sees to it.
    fn affinity_timeout(&self, Frontend { direct_return, .. }: &Frontend<'_>) -> Option<u32> {
        let balancing = self.balancing_at(*direct_return);
        let is_by_scheduler = *direct_return && balancing.is_by_client(self.inputs);
        self.inputs.service.session_affinity.filter(|_| !is_by_scheduler)
    }

    /// The real server of an endpoint.
    fn real_server(&self, endpoint: &PortEndpoint, group: &PolicyGroup<'_>) -> RealServer {
        let EffectiveBalancing { upper_threshold, lower_threshold, .. } =
            *self.balancing_at(group.direct_return);
        let real_server = RealServer::masquerade(endpoint.address.ip, endpoint.address.port)
            .weight(endpoint.weight.get().into())
            .thresholds(upper_threshold, lower_threshold);
        match endpoint.tunnel.filter(|_| group.direct_return) {
            Some(tunnel) => real_server.tunnel(tunnel),
            None => real_server,
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
