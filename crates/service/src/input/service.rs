//! A Service, decoded: its ports, its policies, and what its annotations ask for.

use std::{net::IpAddr, num::NonZero, sync::Arc, time::Duration};

use ipnet::IpNet;
use ipvs::{Family, Protocol, Scheduler};
use serde::{Deserialize, Serialize};

use super::{Balancing, ByDistance, DistanceWeights, Ejection, ObjectName, Options};

/// The port of name servers.
pub const DNS_PORT: u16 = 53;

/// A Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// Its name.
    pub name: ObjectName,
    /// When it was created, in seconds since 1970; of two Services that claim one address and port in the
    /// same way, the older has it. `None`, as in a manifest, counts as the oldest.
    pub created: Option<i64>,
    /// `spec.type`.
    pub kind: ServiceKind,
    /// The ClusterIPs, at most one per family; none for a headless Service. A family without
    /// ClusterIP is not served at all, whatever other addresses the Service has in it.
    pub cluster_ips: Vec<IpAddr>,
    /// `spec.externalIPs`, of either family, in any order.
    pub external_ips: Vec<IpAddr>,
    /// The addresses in `status.loadBalancer.ingress` whose traffic reaches this node as it was sent
    /// (`ipMode: VIP`, or none). Whatever `spec.type` says: a status left over is served, as upstream
    /// does it.
    pub load_balancer_ips: Vec<IpAddr>,
    /// `spec.loadBalancerSourceRanges`: the clients that may reach the load balancer's addresses, in any order.
    /// `None`: every client.
    pub load_balancer_source_ranges: Option<Vec<IpNet>>,
    /// The ports.
    pub ports: Vec<ServicePort>,
    /// `sessionAffinity: ClientIP`: how many seconds a client keeps its endpoint.
    pub session_affinity: Option<u32>,
    /// `spec.internalTrafficPolicy`.
    pub internal_traffic_policy: TrafficPolicy,
    /// `spec.externalTrafficPolicy`. Means nothing to a Service that is not exposed externally.
    pub external_traffic_policy: TrafficPolicy,
    /// `spec.healthCheckNodePort`: where a load balancer asks whether this node has endpoints.
    pub health_check_node_port: Option<NonZero<u16>>,
    /// How its annotations want its connections balanced; `None`: by the defaults.
    pub balancing: Option<Box<Balancing>>,
    /// `metadata.labels` has `service.kubernetes.io/service-proxy-name`: another proxy serves it.
    pub other_proxy: bool,
    /// Its problems, each naming the field; the rest of it is served.
    pub problems: Vec<String>,
}

impl Service {
    /// A Service of type ClusterIP without addresses, ports and creation time.
    pub fn new(name: ObjectName) -> Self {
        Self { name, ..Self::default() }
    }

    /// The `ips` in the families of the Service's ClusterIPs.
    pub(crate) fn in_its_families(&self, ips: &[IpAddr]) -> impl Iterator<Item = IpAddr> + Clone {
        ips.iter().copied().filter(|ip| self.has_cluster_ip_of(Family::from(*ip)))
    }

    /// The clients that a load balancer's addresses of one family admit; `None`: every client. As upstream, ranges of
    /// the other family alone do not restrict this one. Without a single range that could be read, no client is
    /// admitted.
    pub(crate) fn source_ranges_of(&self, family: Family) -> Option<impl Iterator<Item = &IpNet> + Clone> {
        let all = self.load_balancer_source_ranges.as_deref()?;
        let of_family = all.iter().filter(move |range| Family::from(range.addr()) == family);
        let only_of_the_other = !all.is_empty() && of_family.clone().next().is_none();
        (!only_of_the_other).then_some(of_family)
    }

    /// Its valid requests that are not fulfilled: the path of each field, and the reason.
    pub fn unserved(&self) -> Vec<(&'static str, String)> {
        let mut unserved = Vec::new();
        // A Service without any ClusterIP is headless, which no proxy serves.
        let is_headless = self.cluster_ips.is_empty();
        let external = [
            ("spec.externalIPs", &self.external_ips),
            ("status.loadBalancer.ingress", &self.load_balancer_ips),
        ];
        for (at, ips) in external {
            for ip in ips.iter().filter(|ip| !is_headless && !self.has_cluster_ip_of(Family::from(**ip))) {
                let family = Family::from(*ip);
                unserved.push((at, format!("{ip} is not served: the Service has no {family} ClusterIP")));
            }
        }
        let is_restricted = self.load_balancer_source_ranges.is_some();
        for ip in self.in_its_families(&self.load_balancer_ips).filter(|_| is_restricted) {
            let family = Family::from(ip);
            if self.source_ranges_of(family).is_none() {
                let why = format!("none is {family}; every client is let in at {ip}");
                unserved.push(("spec.loadBalancerSourceRanges", why));
            }
        }
        unserved
    }

    /// Whether it asks for any external IP that these options do not switch off, or a load balancer has given it an
    /// address.
    pub fn has_external_addresses(&self, options: &Options) -> bool {
        !self.possible_external_ips(options).is_empty() || !self.load_balancer_ips.is_empty()
    }

    /// The policy for internal or external traffic. The external policy counts only if the type or an external IP,
    /// refused or not, exposes the Service. An address that an earlier type left in the status does not expose it:
    /// traffic to it goes to every endpoint, as in upstream.
    pub(crate) fn policy(&self, traffic: Traffic, options: &Options) -> TrafficPolicy {
        let exposed = match self.kind {
            ServiceKind::NodePort | ServiceKind::LoadBalancer => true,
            ServiceKind::ClusterIp | ServiceKind::ExternalName => {
                !self.possible_external_ips(options).is_empty()
            }
        };
        match traffic {
            Traffic::Internal => self.internal_traffic_policy,
            Traffic::External if exposed => self.external_traffic_policy,
            Traffic::External => TrafficPolicy::Cluster,
        }
    }

    /// The scheduler that its annotations ask for.
    pub(crate) fn scheduler(&self) -> Option<Scheduler> {
        self.balancing.as_ref()?.scheduler
    }

    /// The factors by which its weights depend on distance, where nothing else forbids them.
    pub(crate) fn distance_weights(&self, options: &Options) -> Option<DistanceWeights> {
        match self.balancing.as_ref().and_then(|it| it.distance_weights) {
            Some(ByDistance::By(weights)) => Some(weights),
            Some(ByDistance::Off) => None,
            None => options.distance_weights,
        }
    }

    /// Which of its failing endpoints get no new connections.
    pub(crate) fn ejection(&self, options: &Options) -> Ejection {
        self.balancing.as_ref().and_then(|it| it.ejection).unwrap_or(options.ejection)
    }

    /// Whether an endpoint of a port that sends nothing back has failed.
    pub(crate) fn expects_answers(&self, protocol: Protocol, port: u16) -> bool {
        let says_so = || self.balancing.as_ref().is_some_and(|it| it.answers_datagrams);
        protocol != Protocol::Udp || port == DNS_PORT || says_so()
    }

    /// Whether it is the cluster's DNS, which has different names in different clusters (`kube-dns`, `coredns`,
    /// `rke2-coredns-rke2-coredns`), but is always in kube-system and always at port 53.
    pub(crate) fn is_cluster_dns(&self) -> bool {
        self.name.namespace() == "kube-system" && self.ports.iter().any(|port| port.port == DNS_PORT)
    }

    /// How long a new endpoint takes to get all of its weight, if it does not get it at once.
    pub(crate) fn slow_start(&self) -> Option<Duration> {
        self.balancing.as_ref()?.slow_start
    }

    /// Whether the Service has a ClusterIP of this family, without which nothing of it is served there.
    pub(crate) fn has_cluster_ip_of(&self, family: Family) -> bool {
        self.cluster_ips.iter().any(|ip| Family::from(*ip) == family)
    }
}

/// `spec.type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceKind {
    /// Reachable at its ClusterIP.
    #[default]
    ClusterIp,
    /// Also at a port of every node.
    NodePort,
    /// Also at the addresses that a load balancer was given.
    LoadBalancer,
    /// A DNS alias: nothing to serve.
    ExternalName,
}

/// `internalTrafficPolicy` and `externalTrafficPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrafficPolicy {
    /// Every endpoint of the cluster.
    #[default]
    Cluster,
    /// The endpoints of this node only.
    Local,
}

/// Where traffic comes in. Each has a policy of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Traffic {
    /// At the ClusterIP: `internalTrafficPolicy`.
    Internal,
    /// At an external IP, a load balancer's address or a NodePort: `externalTrafficPolicy`.
    External,
}

/// One port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Its name, which slices refer to; empty for the only port.
    pub name: Arc<str>,
    /// The transport protocol.
    pub protocol: Protocol,
    /// The port of the virtual server, not 0.
    pub port: u16,
    /// The port at the node's own addresses. Whatever `spec.type` says, as upstream does it.
    pub node_port: Option<NonZero<u16>>,
}
