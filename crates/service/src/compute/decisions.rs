//! Every decision about one Service on this node, and what it asks of the kernel by these decisions.

use std::{fmt, net::IpAddr, sync::Arc};

use ipvs::{Family, Protocol, RealServer, ServiceFlags};
use netfilter::{Element, HairpinFlow, HealthCheckPort};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::{
    DesiredService, DesiredVirtualServer, EffectiveBalancing, EjectedEndpoint, EjectionState,
    EndpointSelection, EndpointWeight, ExternalAddresses, Extras, Frontend, HealthCheck, PolicyGroup,
    PortEndpoint, PortGroup, Quota, SourceRanges, Untracked, WithoutLocalEndpoint, frontend::frontends,
    limits::min_real_servers,
};
use crate::{
    direct_return::{DirectReturn, DirectReturnParts, exits, tunnel_elements},
    input::{CompactSlice, Service, ServiceInputs, ServiceKind, ServicePort, TrafficPolicy, Traits},
};

/// Every decision about one Service on this node, together with the inputs that each of them passed over.
///
/// [`DesiredService`](crate::DesiredService) is collected from it, and [`Explanation`](crate::Explanation) renders
/// it: one algorithm decides, and both show the result.
#[derive(Debug)]
pub(crate) struct Decisions<'a> {
    pub(crate) inputs: ServiceInputs<'a>,
    pub(crate) external: ExternalAddresses,
    pub(crate) balancing: EffectiveBalancing,
    /// The same where weights depend on distance, if they do anywhere.
    pub(crate) balancing_by_distance: Option<EffectiveBalancing>,
    /// The same at addresses that are answered directly, if there are any.
    pub(crate) direct_balancing: Option<EffectiveBalancing>,
    /// Why there are none although the Service asks for it.
    pub(crate) without_direct_return: Vec<String>,
    pub(crate) sources: SourceRanges,
    pub(crate) untracked: Untracked,
    /// The parts that do not fit into the quota of a Service.
    pub(crate) over_quota: Vec<String>,
    /// Where it is not served because an API server listens there.
    pub(crate) api_servers: Vec<String>,
    /// Every address at which a port is served, in the order of [`frontends`].
    frontends: Vec<Frontend<'a>>,
}

impl<'a> Decisions<'a> {
    /// Decides about a Service that is served.
    pub(crate) fn new(inputs: ServiceInputs<'a>) -> Self {
        let external = ExternalAddresses::new(inputs);
        let balancing = EffectiveBalancing::new(inputs);
        let distance_weights = inputs.service.distance_weights(inputs.options);
        let balancing_by_distance =
            distance_weights.map(|weights| EffectiveBalancing::by_distance(inputs, weights));
        let direct_return = DirectReturn::new(inputs, &external);
        let direct_balancing = direct_return.is_used().then(|| EffectiveBalancing::for_direct_return(inputs));
        let directly = direct_balancing.as_ref().unwrap_or(&balancing);
        let sources = SourceRanges::new(inputs);
        let untracked = Untracked::new(inputs, direct_return.is_used());
        let mut quota = Quota::new(inputs.slices, min_real_servers(balancing.scheduler, directly.scheduler));
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
            balancing_by_distance,
            direct_balancing,
            without_direct_return: direct_return.problems,
            sources,
            untracked,
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

/// Why a Service is not served at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NotServed {
    /// No Service of this name is known: it does not exist, or it is not listed since it is headless or another proxy
    /// serves it.
    Unknown,
    /// The label `service.kubernetes.io/service-proxy-name` gives it to another proxy.
    OtherProxy,
    /// `spec.type: ExternalName`.
    ExternalName,
    /// It is headless, or its ClusterIP is still missing or cannot be read.
    NoClusterIp,
}

impl NotServed {
    /// Why a Service is not ours to serve, if it is not.
    pub(crate) fn for_service(service: &Service) -> Option<Self> {
        if service.other_proxy {
            Some(Self::OtherProxy)
        } else if service.kind == ServiceKind::ExternalName {
            Some(Self::ExternalName)
        } else {
            service.cluster_ips.is_empty().then_some(Self::NoClusterIp)
        }
    }
}

impl fmt::Display for NotServed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => {
                "no such Service is known (headless ones, and those with the label \
                 service.kubernetes.io/service-proxy-name, are not listed)"
            }
            Self::OtherProxy => {
                "the label service.kubernetes.io/service-proxy-name gives it to another proxy"
            }
            Self::ExternalName => "spec.type is ExternalName",
            Self::NoClusterIp => "spec.clusterIPs has no address",
        })
    }
}

/// How soon a virtual server must work after a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Urgency {
    /// `default/kubernetes` and cluster DNS: the node's own components wait for them.
    First,
    /// Everything else.
    Normal,
}

impl Urgency {
    pub(crate) fn for_service(service: &Service) -> Self {
        let first = match service.name.parts() {
            ("default", "kubernetes") => true,
            _ => service.is_cluster_dns(),
        };
        if first { Self::First } else { Self::Normal }
    }
}

impl DesiredService {
    /// Collects the desired state of the kernel from the decisions about a Service.
    pub(crate) fn from_decisions(decisions: Decisions<'_>) -> Self {
        let mut collected = Collected::default();
        for group in decisions.port_groups() {
            collected.add(&decisions, &group);
        }
        collected.finish(decisions)
    }
}

/// The desired state for a Service, while it is collected.
#[derive(Default)]
struct Collected {
    virtual_servers: SmallVec<[Arc<DesiredVirtualServer>; 1]>,
    bound: Vec<IpAddr>,
    shared_elements: Vec<Element>,
    without_local_endpoint: Vec<WithoutLocalEndpoint>,
    ready_here: Vec<IpAddr>,
    ejected: Vec<EjectedEndpoint>,
}

impl Collected {
    /// Adds the addresses of one port in one family.
    fn add(&mut self, decisions: &Decisions<'_>, group: &PortGroup<'_>) {
        let PortGroup { port, family, endpoints, .. } = group;
        let ready_here = endpoints.iter().filter(|it| it.traits.contains(Traits::READY | Traits::LOCAL));
        self.ready_here.extend(ready_here.map(|endpoint| endpoint.address.ip));
        self.shared_elements.extend(decisions.untracked.elements(group));

        let mut shared: Arc<[RealServer]> = Arc::default();
        for group in group.policy_groups() {
            if group.policy == TrafficPolicy::Local && EndpointSelection::misses_local(endpoints) {
                let missing = WithoutLocalEndpoint { traffic: group.traffic, family: *family };
                self.without_local_endpoint.push(missing);
            }
            self.shared_elements.extend(group.used.iter().filter_map(|endpoint| hairpin(port, endpoint)));

            let exits = exits(&group, endpoints, decisions.inputs.node);
            self.shared_elements.extend(tunnel_elements(&group, endpoints, decisions.inputs.node));
            let balancing = decisions.balancing_at(&group);
            let weights = group.weights(balancing);
            if balancing.can_eject() {
                self.ejected.extend(ejected(&group, &weights));
            }
            let real_servers = decisions.real_servers(&group, &weights);
            if *real_servers != *shared {
                shared = real_servers.into();
            }
            for frontend in group.frontends {
                self.bound.extend(frontend.bound_ip(decisions.inputs));
                let timeout = decisions.affinity_timeout(&group);
                let persistent = timeout.map_or(ServiceFlags::empty(), |_| ServiceFlags::PERSISTENT);
                self.virtual_servers.push(Arc::new(DesiredVirtualServer {
                    address: frontend.address,
                    scheduler: balancing.scheduler,
                    flags: balancing.scheduler_flags | persistent,
                    timeout: timeout.unwrap_or_default(),
                    real_servers: shared.clone(),
                    masquerade: frontend.masquerade(group.policy),
                    untracked: decisions.untracked.is_for(frontend),
                    stands_in: group.stands_in(),
                    direct_return: DirectReturnParts::new(frontend, &exits, decisions.inputs),
                    allowed_sources: decisions.sources.allowed(frontend),
                    kind: frontend.kind,
                }));
            }
        }
    }

    fn finish(mut self, decisions: Decisions<'_>) -> DesiredService {
        let Decisions { inputs, external, over_quota, without_direct_return, untracked, api_servers, .. } =
            decisions;
        self.virtual_servers.sort_unstable_by_key(|server| server.address);
        let health_check = HealthCheck::for_service(inputs.service, inputs.options, self.ready_here);
        let health_check_ports =
            health_check.iter().flat_map(|check| health_check_ports(check, inputs.service));
        self.shared_elements.extend(health_check_ports);
        let mut problems = decisions.balancing.problems;
        for other in [decisions.balancing_by_distance, decisions.direct_balancing].into_iter().flatten() {
            let new = other.problems.into_iter().filter(|problem| !problems.contains(problem));
            problems.extend(new.collect::<Vec<_>>());
        }
        let bound = sorted_once(self.bound);
        let ips = self.virtual_servers.iter().map(|server| server.address.ip);
        let extras = Extras {
            unbound: sorted_once(ips.filter(|ip| bound.binary_search(ip).is_err()).collect()),
            shared_elements: sorted_once(self.shared_elements),
            health_check,
            without_local_endpoint: sorted_once(self.without_local_endpoint),
            refused: sorted_once(external.refused),
            ejected: each_once(self.ejected),
            problems: problems
                .into_iter()
                .chain(api_servers)
                .chain(over_quota)
                .chain(without_direct_return)
                .chain(untracked.problems)
                .collect(),
        };
        DesiredService::new(self.virtual_servers, extras)
    }
}

impl Decisions<'_> {
    /// How connections are balanced at an address.
    ///
    /// Distance does not matter where a policy demands endpoints of this node; nor to UDP, of which IPVS has no active
    /// connections, so that `sed` would send all to one endpoint.
    pub(crate) fn balancing_at(&self, group: &PolicyGroup<'_>) -> &EffectiveBalancing {
        let depends_on_distance = group.protocol != Protocol::Udp && group.policy == TrafficPolicy::Cluster;
        let found = if group.direct_return {
            self.direct_balancing.as_ref()
        } else {
            self.balancing_by_distance.as_ref().filter(|_| depends_on_distance)
        };
        found.unwrap_or(&self.balancing)
    }

    /// How many seconds a client keeps its endpoint at an address, unless the scheduler sees to it.
    fn affinity_timeout(&self, group: &PolicyGroup<'_>) -> Option<u32> {
        let is_by_scheduler = group.direct_return && self.balancing_at(group).is_by_client(self.inputs);
        self.inputs.service.session_affinity.filter(|_| !is_by_scheduler)
    }

    /// The real servers of a group, in the order of its endpoints.
    fn real_servers(&self, group: &PolicyGroup<'_>, weights: &[EndpointWeight]) -> Vec<RealServer> {
        let EffectiveBalancing { upper_threshold, lower_threshold, .. } = *self.balancing_at(group);
        let real_server = |(endpoint, weight): (&&PortEndpoint, &EndpointWeight)| {
            let real_server = RealServer::masquerade(endpoint.address.ip, endpoint.address.port)
                .weight(weight.value().into())
                .thresholds(upper_threshold, lower_threshold);
            match endpoint.tunnel.filter(|_| group.direct_return) {
                Some(tunnel) => real_server.tunnel(tunnel),
                None => real_server,
            }
        };
        group.used.iter().zip(weights).map(real_server).collect()
    }
}

/// The endpoints of a group at which clients fail or failed.
fn ejected(group: &PolicyGroup<'_>, weights: &[EndpointWeight]) -> impl Iterator<Item = EjectedEndpoint> {
    let protocol = group.protocol;
    group.used.iter().zip(weights).filter_map(move |(endpoint, weight)| {
        let address = endpoint.address;
        let standing = group.standings.get(&(protocol, address)).filter(|_| weight.base > 0)?;
        let (cause, state) = match (standing.ejection(), standing.trial()) {
            (Some((cause, _)), _) if weight.value() == 0 => (cause, EjectionState::Out),
            (Some((cause, _)), _) => (cause, EjectionState::Kept),
            (None, trial) => (trial?.0, EjectionState::OnTrial),
        };
        Some(EjectedEndpoint { protocol, address, cause, state })
    })
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

/// Each endpoint once: one that is out at one address, and kept at another as the last one there, is out.
fn each_once(mut ejected: Vec<EjectedEndpoint>) -> Box<[EjectedEndpoint]> {
    ejected.sort_unstable();
    ejected.dedup_by_key(|it| (it.protocol, it.address));
    ejected.into()
}

fn sorted_once<T: Ord>(mut values: Vec<T>) -> Box<[T]> {
    values.sort_unstable();
    values.dedup();
    values.into()
}
