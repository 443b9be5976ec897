//! What an address is to its Service.

use std::num::NonZero;

use serde::{Deserialize, Serialize};

use super::Traffic;
use crate::input::{Service, ServicePort};

/// What an address is to its Service. If an address and port is several of these, in one Service or among several
/// that claim it, the first counts: the API server gives out ClusterIPs and NodePorts, each once; a controller
/// assigns a load balancer's address; but anybody may write an external IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AddressKind {
    /// A ClusterIP.
    ClusterIp,
    /// One of this node's own addresses, with the NodePort.
    NodePort,
    /// A load balancer's address.
    LoadBalancer,
    /// An external IP.
    ExternalIp,
}

impl AddressKind {
    /// How traffic comes in at such an address.
    pub fn traffic(self) -> Traffic {
        match self {
            Self::ClusterIp => Traffic::Internal,
            Self::NodePort | Self::LoadBalancer | Self::ExternalIp => Traffic::External,
        }
    }

    /// Whether it is an address from outside of the cluster: not a ClusterIP, and not one of this node's.
    pub(crate) fn is_external(self) -> bool {
        matches!(self, Self::LoadBalancer | Self::ExternalIp)
    }

    /// Whether the node of an endpoint may answer clients of such an address itself. Not at a NodePort: the answer would
    /// come from another node with an address of this one, which networks do not let pass.
    pub(crate) fn may_be_answered_directly(self) -> bool {
        self.is_external()
    }

    /// The field of a Service that asks for such addresses.
    pub(crate) fn field(self) -> &'static str {
        match self {
            Self::ClusterIp => "spec.clusterIPs",
            Self::NodePort => "spec.ports[].nodePort",
            Self::LoadBalancer => "status.loadBalancer.ingress",
            Self::ExternalIp => "spec.externalIPs",
        }
    }

    /// The ports of a Service that are served at such an address, each with its number there.
    pub(super) fn ports(self, service: &Service) -> impl Iterator<Item = (&ServicePort, u16)> {
        let number = move |port: &ServicePort| match self {
            Self::NodePort => port.node_port.map(NonZero::get),
            Self::ClusterIp | Self::LoadBalancer | Self::ExternalIp => Some(port.port),
        };
        service.ports.iter().filter_map(move |port| Some((port, number(port)?)))
    }
}
