//! What the API server, or a directory of manifests, tells: plain values, already decoded.
//!
//! They hold what the data plane needs and nothing else. Elements that could not be decoded are left
//! out by whoever decodes, and reported in [`Service::problems`] and [`EndpointSlice::problems`].

use std::{net::IpAddr, num::NonZero, sync::Arc, time::SystemTime};

use ipnet::IpNet;
use ipvs::{Family, Protocol};
use serde::{Deserialize, Serialize};

use super::ObjectName;
use crate::compute::{Balancing, Weight};

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

/// An EndpointSlice of one Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSlice {
    /// Its own name.
    pub name: ObjectName,
    /// The Service that owns it, by the label `kubernetes.io/service-name`.
    pub service: ObjectName,
    /// The family of its addresses.
    pub family: Family,
    /// The ports that its endpoints listen on.
    pub ports: Vec<EndpointPort>,
    /// The endpoints.
    pub endpoints: Vec<Endpoint>,
    /// The weight of its endpoints (the annotation `kube-ipvs.io/weight`), where the Service says nothing of their
    /// nodes and zones.
    pub weight: Option<Weight>,
    /// When that happened for which it was last written, a pod that became ready for example (the annotation
    /// `endpoints.kubernetes.io/last-change-trigger-time`).
    pub triggered_at: Option<SystemTime>,
    /// What was wrong with it, in words, each naming the field; the rest of it is used.
    pub problems: Vec<String>,
}

impl EndpointSlice {
    /// A slice of a Service, without ports and endpoints.
    pub fn new(name: ObjectName, service: ObjectName, family: Family) -> Self {
        Self {
            name,
            service,
            family,
            ports: Vec::new(),
            endpoints: Vec::new(),
            weight: None,
            triggered_at: None,
            problems: Vec::new(),
        }
    }
}

/// One port of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointPort {
    /// The name of the Service port that it belongs to.
    pub name: Arc<str>,
    /// The transport protocol.
    pub protocol: Protocol,
    /// Where the endpoint listens, not 0.
    pub port: u16,
}

/// One endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its address: the first of the slice's list, since all are the same endpoint.
    pub address: IpAddr,
    /// `conditions.ready`; absent means true.
    pub ready: bool,
    /// `conditions.serving`; absent means true.
    pub serving: bool,
    /// `conditions.terminating`; absent means false.
    pub terminating: bool,
    /// The node it runs on.
    pub node: Option<Arc<str>>,
    /// The zone that it is in.
    pub zone: Option<Arc<str>>,
    /// `hints.forZones`.
    pub zone_hints: Box<[Arc<str>]>,
    /// `hints.forNodes`.
    pub node_hints: Box<[Arc<str>]>,
}

impl Endpoint {
    /// A ready endpoint, nobody knows where.
    pub fn new(address: IpAddr) -> Self {
        Self {
            address,
            ready: true,
            serving: true,
            terminating: false,
            node: None,
            zone: None,
            zone_hints: Box::default(),
            node_hints: Box::default(),
        }
    }
}

/// This node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// The label `topology.kubernetes.io/zone`.
    pub zone: Option<Arc<str>>,
    /// The node IPs: `status.addresses` of type InternalIP, then those of type ExternalIP. The first of
    /// a family is the primary one of that family.
    pub ips: Vec<IpAddr>,
    /// `spec.podCIDRs`: the addresses of the pods of this node, at most one range of each family.
    pub pod_cidrs: Vec<IpNet>,
    /// It is about to go: it is being deleted, or the cluster autoscaler will delete it
    /// (`metadata.deletionTimestamp`, the taint `ToBeDeletedByClusterAutoscaler`). Load balancers are to look
    /// elsewhere; what it serves is served as before.
    pub leaving: bool,
    /// What was wrong with it, in words, each naming the field; the rest of it is used.
    pub problems: Vec<String>,
}
