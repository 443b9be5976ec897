//! A Service, decoded.

use std::{net::IpAddr, num::NonZero, sync::Arc};

use ipnet::IpNet;
use ipvs::{Family, Protocol};
use serde::{Deserialize, Serialize};

use super::{Balancing, ObjectName};

/// A Service.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// `None`: everybody.
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
    /// How its annotations want its connections balanced; `None`: as everybody's.
    pub balancing: Option<Box<Balancing>>,
    /// `metadata.labels` has `service.kubernetes.io/service-proxy-name`: another proxy serves it.
    pub other_proxy: bool,
    /// What was wrong with it, in words, each naming the field; the rest of it is served.
    pub problems: Vec<String>,
}

impl Service {
    /// A Service of type ClusterIP without addresses and ports, as old as can be.
    pub fn new(name: ObjectName) -> Self {
        Self {
            name,
            created: None,
            kind: ServiceKind::default(),
            cluster_ips: Vec::new(),
            external_ips: Vec::new(),
            load_balancer_ips: Vec::new(),
            load_balancer_source_ranges: None,
            ports: Vec::new(),
            session_affinity: None,
            internal_traffic_policy: TrafficPolicy::default(),
            external_traffic_policy: TrafficPolicy::default(),
            health_check_node_port: None,
            balancing: None,
            other_proxy: false,
            problems: Vec::new(),
        }
    }

    /// The `ips` in the families of the Service's ClusterIPs.
    pub(crate) fn in_its_families(&self, ips: &[IpAddr]) -> impl Iterator<Item = IpAddr> + Clone {
        ips.iter().copied().filter(|ip| self.has_cluster_ip_of(Family::from(*ip)))
    }

    /// Whether it asks for any external IP, or a load balancer has given it an address.
    pub fn has_external_addresses(&self) -> bool {
        !self.external_ips.is_empty() || !self.load_balancer_ips.is_empty()
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
