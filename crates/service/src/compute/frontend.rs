//! The addresses at which the ports of a Service are served: its frontends, and what each address is to it.

use std::{net::IpAddr, num::NonZero};

use ipvs::{Family, Protocol, ServiceAddress};
use netfilter::MasqueradeSet;
use serde::{Deserialize, Serialize};

use super::{ExternalAddresses, Quota, SourceRanges};
use crate::{
    direct_return::DirectReturn,
    input::{Service, ServiceInputs, ServicePort, ThisNode, Traffic, TrafficPolicy},
};

/// The kind of an address in its Service. If an address and port has several of these, in one Service or among several
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

/// An address at which a port is served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frontend<'a> {
    pub(crate) address: ServiceAddress,
    pub(crate) port: &'a ServicePort,
    pub(crate) kind: AddressKind,
    /// The node of the endpoint answers the client itself.
    pub(crate) direct_return: bool,
    /// No client is let in: the source ranges do not fit into the quota.
    pub(super) closed: bool,
}

/// Every address and port at which a Service is served, each once, as far as its quota allows. Frontends with the same
/// endpoints follow each other, and among them those with the same policy.
pub(super) fn frontends<'a>(
    inputs: ServiceInputs<'a>,
    external: &ExternalAddresses,
    direct_return: &DirectReturn,
    sources: &SourceRanges,
    quota: &mut Quota<'a>,
) -> Vec<Frontend<'a>> {
    let ServiceInputs { service, node, .. } = inputs;
    let mut frontends = Vec::with_capacity(service.cluster_ips.len() * service.ports.len());
    let mut add = |quota: &mut Quota<'a>, kind: AddressKind, ips: &[IpAddr]| {
        let ports: Vec<_> = kind.ports(service).collect();
        if ports.is_empty() || ips.is_empty() {
            return;
        }
        for family in Family::BOTH {
            let ips: Vec<_> = service.in_its_families(ips).filter(|ip| Family::from(*ip) == family).collect();
            let fit = quota.take(kind, family, &ips, &ports);
            frontends.extend(fit.into_iter().map(|(ip, port, number)| Frontend {
                address: ServiceAddress { protocol: port.protocol, ip, port: number },
                port,
                kind,
                direct_return: direct_return.is_for(kind, &ip, node),
                closed: kind == AddressKind::LoadBalancer && !quota.let_in(family, sources.elements(family)),
            }));
        }
    };
    add(quota, AddressKind::ClusterIp, &service.cluster_ips);
    // What all nodes have in common does not depend on how many addresses this one has besides.
    let aside = quota.set_aside(service);
    add(quota, AddressKind::LoadBalancer, &external.load_balancer_ips);
    add(quota, AddressKind::ExternalIp, &external.external_ips);
    quota.release(aside);
    if AddressKind::NodePort.ports(service).next().is_some() {
        add(quota, AddressKind::NodePort, &node_port_ips(node));
    }
    // The API server lets no port and protocol appear twice; from elsewhere, the first counts. (The sort is
    // stable.)
    frontends.sort_by_key(|frontend| (frontend.address, frontend.kind));
    frontends.dedup_by_key(|frontend| frontend.address);
    frontends.sort_by(|a, b| (a.endpoint_key(), a.policy_key()).cmp(&(b.endpoint_key(), b.policy_key())));
    frontends
}

/// The addresses at which NodePorts are served, those that the Node lists first.
fn node_port_ips(node: &ThisNode) -> Vec<IpAddr> {
    let mut ips = node.node_port_ips.to_vec();
    ips.sort_by_key(|ip| node.ips().iter().position(|listed| listed == ip).unwrap_or(usize::MAX));
    ips
}

impl Frontend<'_> {
    /// The key on which its endpoints depend. A slice identifies a port by name and protocol.
    pub(crate) fn endpoint_key(&self) -> (&str, Protocol, Family) {
        (&self.port.name, self.port.protocol, self.family())
    }

    /// The key that decides which of the endpoints are used.
    pub(crate) fn policy_key(&self) -> (Traffic, bool) {
        (self.traffic(), self.direct_return)
    }

    pub(crate) fn family(&self) -> Family {
        Family::from(self.address.ip)
    }

    pub(crate) fn traffic(&self) -> Traffic {
        self.kind.traffic()
    }

    /// Which of its flows are masqueraded. With the external policy Local the endpoints see
    /// the client's address, even if only other nodes have endpoints and the client is a pod here, as in upstream.
    pub(crate) fn masquerade(&self, policy: TrafficPolicy) -> MasqueradeSet {
        match (self.traffic(), policy) {
            _ if self.direct_return => MasqueradeSet::DirectReturn,
            (Traffic::Internal, _) => MasqueradeSet::ClusterIps,
            (Traffic::External, TrafficPolicy::Cluster) => MasqueradeSet::External,
            (Traffic::External, TrafficPolicy::Local) => MasqueradeSet::ExternalLocal,
        }
    }
}
