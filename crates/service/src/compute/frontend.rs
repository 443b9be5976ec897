//! At which addresses the ports of a Service are served.

use std::{net::IpAddr, num::NonZero};

use ipvs::{Family, Protocol, ServiceAddress};
use netfilter::Element;
use serde::{Deserialize, Serialize};

use super::{ExternalAddresses, Room, Traffic};
use crate::input::{ExternalIps, Options, Service, ServicePort, ThisNode, TrafficPolicy};

/// An address at which a port is served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frontend<'a> {
    pub(crate) address: ServiceAddress,
    pub(crate) port: &'a ServicePort,
    pub(crate) kind: AddressKind,
}

/// What an address is to its Service. Where one Service has an address and port as several of these, the
/// first counts, and where several Services claim it too: ClusterIPs and NodePorts are given out by the API
/// server, each once, and a load balancer's address by a controller, while an external IP is whatever
/// somebody wrote.
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

/// Every address at which a Service is served, each once, as far as there is room: those with the same endpoints in a
/// row, and among them those where the same policy counts.
pub(crate) fn frontends<'a>(
    service: &'a Service,
    external: &ExternalAddresses,
    node: &ThisNode,
    room: &mut Room,
) -> Vec<Frontend<'a>> {
    let mut frontends = Vec::with_capacity(service.cluster_ips.len() * service.ports.len());
    for (kind, ips) in [
        (AddressKind::ClusterIp, &*service.cluster_ips),
        (AddressKind::NodePort, node.node_port_frontends()),
        (AddressKind::LoadBalancer, &*external.load_balancer_ips),
        (AddressKind::ExternalIp, &*external.external_ips),
    ] {
        let ports = service.ports.iter().filter_map(|port| Some((port, kind.port_number(port)?)));
        for family in Family::BOTH {
            let ips = service.of_its_families(ips).filter(|ip| Family::from(*ip) == family);
            let asked = ports.clone().count() * ips.clone().count();
            let all = ports.clone().flat_map(|(port, number)| {
                ips.clone().map(move |ip| Frontend {
                    address: ServiceAddress { protocol: port.protocol, ip, port: number },
                    port,
                    kind,
                })
            });
            frontends.extend(all.take(room.take(kind, family, asked)));
        }
    }
    // The API server lets no port and protocol appear twice; from elsewhere, the first counts. (The sort is
    // stable.)
    frontends.sort_by_key(|frontend| (frontend.address, frontend.kind));
    frontends.dedup_by_key(|frontend| frontend.address);
    frontends.sort_by(|a, b| (a.endpoint_key(), a.traffic()).cmp(&(b.endpoint_key(), b.traffic())));
    frontends
}

impl Frontend<'_> {
    /// What its endpoints depend on. In a slice, a port is known by its name and protocol.
    pub(crate) fn endpoint_key(&self) -> (&str, Protocol, Family) {
        (&self.port.name, self.port.protocol, self.family())
    }

    pub(crate) fn family(&self) -> Family {
        Family::from(self.address.ip)
    }

    pub(crate) fn traffic(&self) -> Traffic {
        self.kind.traffic()
    }

    /// The address, if it is to be made local to this node. A ClusterIP always, and an external one unless an
    /// interface of the node has it already. A NodePort's never: an interface has it, or had it a moment ago, and
    /// then another node may have it by now.
    pub(crate) fn vip(&self, node: &ThisNode) -> Option<IpAddr> {
        let ip = self.address.ip;
        let is_bound = match self.kind {
            AddressKind::ClusterIp => true,
            AddressKind::NodePort => false,
            AddressKind::LoadBalancer | AddressKind::ExternalIp => !node.has(&ip),
        };
        is_bound.then_some(ip)
    }

    /// The element that says which of its flows are masqueraded. With the external policy Local, the endpoints
    /// are to see the client's address. This holds even where there are only endpoints on other nodes, as
    /// upstream has it.
    pub(crate) fn element(&self, policy: TrafficPolicy) -> Element {
        match (self.traffic(), policy) {
            (Traffic::Internal, _) => Element::ClusterIp(self.address),
            (Traffic::External, TrafficPolicy::Cluster) => Element::External(self.address),
            (Traffic::External, TrafficPolicy::Local) => Element::ExternalLocal(self.address),
        }
    }
}

impl AddressKind {
    /// Where traffic comes in at such an address.
    pub fn traffic(self) -> Traffic {
        match self {
            Self::ClusterIp => Traffic::Internal,
            Self::NodePort | Self::LoadBalancer | Self::ExternalIp => Traffic::External,
        }
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

    /// The number of a port at such an address; `None`: it is not served there.
    fn port_number(self, port: &ServicePort) -> Option<u16> {
        match self {
            Self::NodePort => port.node_port.map(NonZero::get),
            Self::ClusterIp | Self::LoadBalancer | Self::ExternalIp => Some(port.port),
        }
    }
}

impl Service {
    /// The external IPs, unless they are switched off. Not all of them need be served.
    pub(crate) fn possible_external_ips(&self, options: &Options) -> &[IpAddr] {
        if options.external_ips == ExternalIps::Off { &[] } else { &self.external_ips }
    }

    /// Those of `ips` whose family the Service has a ClusterIP of.
    pub(crate) fn of_its_families(&self, ips: &[IpAddr]) -> impl Iterator<Item = IpAddr> + Clone {
        ips.iter().copied().filter(|ip| self.has_cluster_ip_of(Family::from(*ip)))
    }

    /// Whether the Service has a ClusterIP of this family, without which nothing of it is served there.
    fn has_cluster_ip_of(&self, family: Family) -> bool {
        self.cluster_ips.iter().any(|ip| Family::from(*ip) == family)
    }
}
