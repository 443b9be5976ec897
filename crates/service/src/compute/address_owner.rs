//! The owner of an address, and what follows from that: every decision about an address is made here.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use ipvs::Protocol;
use serde::{Deserialize, Serialize};

use super::{AddressKind, Frontend, SpecialAddress};
use crate::input::{AddressBook, Options, ServiceInputs, ThisNode};

/// The owner of an address, as far as this node knows: the first of these that applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AddressOwner {
    /// It means something else to every host.
    Special(SpecialAddress),
    /// It is one of this node's IPs, by its Node.
    ThisNode,
    /// It is an IP of another node, by its Node.
    OtherNode,
    /// The API server listens there, or this node sends its requests there.
    ApiServer,
    /// It is a gateway of this node's routes.
    Gateway,
    /// A Service has it as ClusterIP.
    ClusterIp,
    /// It is in the range of the pods of a node.
    PodRange,
    /// An endpoint has it. This is only known of addresses that a Service asks for.
    Endpoint,
    /// An interface of this node has it, though its Node does not name it.
    Interface,
    /// Services ask for it as external address, or nothing does.
    Nobody,
}

impl AddressOwner {
    /// Determines the owner of an address.
    pub(crate) fn new(ip: IpAddr, node: &ThisNode, options: &Options, addresses: &AddressBook) -> Self {
        let is_cluster_ip = addresses.is_cluster_ip(&ip);
        let facts = node.facts_of(&ip, options);
        if let Some(special) = SpecialAddress::from_ip(ip) {
            Self::Special(special)
        } else if facts.is_node_ip && facts.is_here {
            Self::ThisNode
        } else if facts.is_peer_ip {
            Self::OtherNode
        // A pod is led to the API server by the ClusterIP of `default/kubernetes`.
        } else if facts.has_api_endpoint() || facts.is_asked_for_api() && !is_cluster_ip {
            Self::ApiServer
        } else if facts.is_gateway {
            Self::Gateway
        // No interface has it: behind NAT, for example. What another node or the API server has is not taken for that.
        } else if facts.is_node_ip {
            Self::ThisNode
        } else if is_cluster_ip {
            Self::ClusterIp
        } else if facts.is_in_pod_range {
            Self::PodRange
        } else if addresses.is_endpoint(&ip) {
            Self::Endpoint
        } else if facts.is_here {
            Self::Interface
        } else {
            Self::Nobody
        }
    }
}

impl fmt::Display for AddressOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Special(special) => special.fmt(f),
            Self::ThisNode => f.write_str("an IP of this node"),
            Self::OtherNode => f.write_str("an IP of another node"),
            Self::ApiServer => f.write_str("an address of the API server"),
            Self::Gateway => f.write_str("a gateway of this node"),
            Self::ClusterIp => f.write_str("a ClusterIP"),
            Self::Endpoint => f.write_str("an endpoint's address"),
            Self::PodRange => f.write_str("in the range of a node's pods"),
            Self::Interface => f.write_str("an address of an interface of this node"),
            Self::Nobody => f.write_str("nothing else in the cluster"),
        }
    }
}

impl Frontend<'_> {
    /// The address, if it must be made local to this node.
    ///
    /// A VIP takes whatever is sent to its address, at any port. So an address of another node, of the API server, of a
    /// gateway or of a pod is never bound: it is served by the node that has it, and here for what this node sends itself,
    /// which IPVS takes in output (`ip_vs_in_hook` in net/netfilter/ipvs/ip_vs_core.c). An address that an interface of
    /// this node has is bound already. A NodePort's never needs it: an interface has it, or had it a moment ago and
    /// another node may have it by now.
    pub(crate) fn bound_ip(&self, inputs: ServiceInputs<'_>) -> Option<IpAddr> {
        let ServiceInputs { node, options, addresses, .. } = inputs;
        if self.kind == AddressKind::NodePort {
            return None;
        }
        let ip = self.address.ip;
        let facts = node.facts_of(&ip, options);
        let is_elsewhere = facts.is_peer_ip || facts.has_api_endpoint();
        let is_bound = match self.kind {
            // Another proxy may have bound it to its own device.
            AddressKind::ClusterIp => !(is_elsewhere || facts.is_here && facts.is_node_ip),
            AddressKind::NodePort => false,
            AddressKind::LoadBalancer | AddressKind::ExternalIp => {
                let is_pod_ip = facts.is_in_pod_range && addresses.is_endpoint(&ip);
                let is_asked = facts.is_asked_for_api() && !self.leads_to_api_server(node);
                let has_other_owner = is_elsewhere || facts.is_gateway || is_asked || is_pod_ip;
                !(facts.is_here || has_other_owner) && node.knows_nodes(options)
            }
        };
        is_bound.then_some(ip)
    }

    /// Whether it would take what this node sends to the API server itself. A load balancer's address that is not an
    /// API server's own may be the way to it.
    pub(crate) fn hides_api_server(&self, node: &ThisNode) -> bool {
        let at = SocketAddr::new(self.address.ip, self.address.port);
        let is_tcp = self.address.protocol == Protocol::Tcp;
        is_tcp
            && match self.kind {
                AddressKind::ClusterIp => false,
                AddressKind::NodePort | AddressKind::LoadBalancer => node.api_endpoints.contains(&at),
                AddressKind::ExternalIp => node.api_endpoints.contains(&at) || node.api_server.contains(&at),
            }
    }

    fn leads_to_api_server(&self, node: &ThisNode) -> bool {
        let at = SocketAddr::new(self.address.ip, self.address.port);
        self.kind == AddressKind::LoadBalancer && node.api_server.contains(&at)
    }
}
