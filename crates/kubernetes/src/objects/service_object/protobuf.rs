//! Services in protobuf.

use prost::{Message, bytes::Bytes};

use super::{
    RawService, RawSpec,
    addresses::{RawIngress, RawLoadBalancer, RawStatus},
    policies::{RawAffinityConfig, RawClientIp},
    ports::RawPort,
};
use crate::objects::{
    metadata::protobuf::ObjectMeta,
    protobuf::{given, is, messages, number, text, texts},
};

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Service {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    spec: Option<ServiceSpec>,
    #[prost(message, optional, tag = "3")]
    status: Option<ServiceStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct ServiceSpec {
    #[prost(message, repeated, tag = "1")]
    ports: Vec<ServicePort>,
    #[prost(bytes = "bytes", tag = "3")]
    cluster_ip: Bytes,
    #[prost(bytes = "bytes", tag = "4")]
    kind: Bytes,
    #[prost(bytes = "bytes", repeated, tag = "5")]
    external_ips: Vec<Bytes>,
    #[prost(bytes = "bytes", tag = "7")]
    session_affinity: Bytes,
    #[prost(bytes = "bytes", repeated, tag = "9")]
    load_balancer_source_ranges: Vec<Bytes>,
    #[prost(bytes = "bytes", tag = "11")]
    external_traffic_policy: Bytes,
    #[prost(int32, tag = "12")]
    health_check_node_port: i32,
    #[prost(message, optional, tag = "14")]
    session_affinity_config: Option<SessionAffinityConfig>,
    #[prost(bytes = "bytes", repeated, tag = "18")]
    cluster_ips: Vec<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "19")]
    ip_families: Vec<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "22")]
    internal_traffic_policy: Option<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
struct ServicePort {
    #[prost(bytes = "bytes", tag = "1")]
    name: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    protocol: Bytes,
    #[prost(int32, tag = "3")]
    port: i32,
    #[prost(int32, tag = "5")]
    node_port: i32,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct SessionAffinityConfig {
    #[prost(message, optional, tag = "1")]
    client_ip: Option<ClientIpConfig>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ClientIpConfig {
    #[prost(int32, optional, tag = "1")]
    timeout_seconds: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct ServiceStatus {
    #[prost(message, optional, tag = "1")]
    load_balancer: Option<LoadBalancerStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct LoadBalancerStatus {
    #[prost(message, repeated, tag = "1")]
    ingress: Vec<LoadBalancerIngress>,
}

#[derive(Clone, PartialEq, Message)]
struct LoadBalancerIngress {
    #[prost(bytes = "bytes", tag = "1")]
    ip: Bytes,
    #[prost(bytes = "bytes", optional, tag = "3")]
    ip_mode: Option<Bytes>,
}

impl From<Service> for RawService {
    fn from(sent: Service) -> Self {
        Self { metadata: is(sent.metadata), spec: is(sent.spec), status: is(sent.status) }
    }
}

impl From<ServiceSpec> for RawSpec {
    fn from(sent: ServiceSpec) -> Self {
        Self {
            kind: text(sent.kind),
            cluster_ip: text(sent.cluster_ip),
            cluster_ips: texts(sent.cluster_ips),
            ip_families: texts(sent.ip_families),
            external_ips: texts(sent.external_ips),
            ports: messages(sent.ports),
            session_affinity: text(sent.session_affinity),
            session_affinity_config: is(sent.session_affinity_config),
            internal_traffic_policy: given(sent.internal_traffic_policy),
            external_traffic_policy: text(sent.external_traffic_policy),
            load_balancer_source_ranges: texts(sent.load_balancer_source_ranges),
            health_check_node_port: number(sent.health_check_node_port),
        }
    }
}

impl From<ServicePort> for RawPort {
    fn from(sent: ServicePort) -> Self {
        Self {
            name: text(sent.name),
            protocol: text(sent.protocol),
            port: number(sent.port),
            node_port: number(sent.node_port),
        }
    }
}

impl From<SessionAffinityConfig> for RawAffinityConfig {
    fn from(sent: SessionAffinityConfig) -> Self {
        Self { client_ip: is(sent.client_ip) }
    }
}

impl From<ClientIpConfig> for RawClientIp {
    fn from(sent: ClientIpConfig) -> Self {
        Self { timeout_seconds: is(sent.timeout_seconds) }
    }
}

impl From<ServiceStatus> for RawStatus {
    fn from(sent: ServiceStatus) -> Self {
        Self { load_balancer: is(sent.load_balancer) }
    }
}

impl From<LoadBalancerStatus> for RawLoadBalancer {
    fn from(sent: LoadBalancerStatus) -> Self {
        Self { ingress: messages(sent.ingress) }
    }
}

impl From<LoadBalancerIngress> for RawIngress {
    fn from(sent: LoadBalancerIngress) -> Self {
        Self { ip: text(sent.ip), ip_mode: given(sent.ip_mode) }
    }
}
