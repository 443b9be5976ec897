//! What the sets of our table hold.

use std::{fmt, net::IpAddr};

use ipvs::{Family, Protocol, RealServerAddress, ServiceAddress};
use serde::{Deserialize, Serialize};

/// One element of one set. The variant names the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Element {
    /// `vips`: an address that is bound to this node for Services. New flows to it are rejected on every port
    /// that is not served.
    Vip(IpAddr),
    /// `restricted`: a load balancer's address, with protocol and port, that only some clients may reach.
    Restricted(ServiceAddress),
    /// `allowed-sources`: clients that may reach a restricted address.
    AllowedSource(AllowedSource),
    /// `cluster-ips`: a ClusterIP with protocol and port; masqueraded unless the source is a local pod.
    ClusterIp(ServiceAddress),
    /// `external`: a NodePort, external or load-balancer address, with protocol and port, whose flows may
    /// be sent to another node; masqueraded whatever the source.
    External(ServiceAddress),
    /// `external-local`: the same with the external policy Local. The real servers see the client's address,
    /// unless the client is this node itself.
    ExternalLocal(ServiceAddress),
    /// `local-clients-only`: one of those in `external-local` for which endpoints elsewhere stand in, since this
    /// node has none. Only this node and its pods, if they are known, may begin flows to it.
    LocalClientsOnly(ServiceAddress),
    /// `hairpin`: a local pod as real server. A flow from that pod that IPVS sent back to the same pod
    /// must be masqueraded, or the pod would answer itself directly.
    Hairpin(HairpinFlow),
    /// `health-check-ports`: a TCP port at which load balancers check the health of a Service. It stays
    /// reachable at the VIPs.
    HealthCheckPort(HealthCheckPort),
    /// `direct-return`: an external or load-balancer address, with protocol and port, whose flows keep the client's
    /// address and go to every endpoint, those elsewhere through a tunnel.
    DirectReturn(ServiceAddress),
    /// `cluster-ip-for`, a map: where the same is asked by this node and its pods, which could not take an answer
    /// from a VIP that is an address of their own node.
    ClusterIpFor(ClusterIpFor),
    /// `max-segment-sizes`, a map: how much data a TCP segment to such an address may have, so that it fits into a
    /// tunnel.
    MaxSegmentSize(MaxSegmentSize),
    /// `tunnel-exits`, a map: a pod of this node as the destination of what leaves the tunnel for it.
    TunnelExit(TunnelExit),
    /// `endpoints-here`: an endpoint of this node to which other nodes tunnel.
    EndpointHere(IpAddr),
    /// `endpoints-elsewhere`: an endpoint of another node to which this one may tunnel.
    EndpointElsewhere(IpAddr),
    /// `tunnel-senders`: an address of a node of the cluster.
    TunnelSender(IpAddr),
}

/// What this node and its pods reach in the place of an external address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClusterIpFor {
    /// The external address.
    pub to: ServiceAddress,
    /// The ClusterIP, of the same family, with its port.
    pub cluster_ip: RealServerAddress,
}

/// How much data a TCP segment may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MaxSegmentSize {
    /// The address that clients ask.
    pub to: ServiceAddress,
    /// The size in bytes, without the headers of TCP and IP.
    pub bytes: u16,
}

/// A pod as the destination of what leaves the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TunnelExit {
    /// The address that the client asked.
    pub to: ServiceAddress,
    /// The pod, of the same family, with its port. In the key only the last four bytes of its address count.
    pub pod: RealServerAddress,
}

/// A flow whose client and real server are the same pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HairpinFlow {
    /// The transport protocol.
    pub protocol: Protocol,
    /// The pod as real server; its address is the source too.
    pub pod: RealServerAddress,
}

/// Clients that may reach a restricted address.
///
/// The ranges of one address must not overlap: the kernel's interval sets refuse that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AllowedSource {
    /// The restricted address.
    pub to: ServiceAddress,
    /// The clients' first address, of the same family.
    pub first: IpAddr,
    /// The clients' last address, not before the first.
    pub last: IpAddr,
}

/// A port at which load balancers ask, in one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HealthCheckPort {
    /// The family.
    pub family: Family,
    /// The TCP port.
    pub port: u16,
}

/// The names of the sets.
impl Element {
    pub(crate) const VIPS: &'static str = "vips";
    pub(crate) const RESTRICTED: &'static str = "restricted";
    pub(crate) const ALLOWED_SOURCES: &'static str = "allowed-sources";
    pub(crate) const CLUSTER_IPS: &'static str = "cluster-ips";
    pub(crate) const EXTERNAL: &'static str = "external";
    pub(crate) const EXTERNAL_LOCAL: &'static str = "external-local";
    pub(crate) const LOCAL_CLIENTS_ONLY: &'static str = "local-clients-only";
    pub(crate) const HAIRPIN: &'static str = "hairpin";
    pub(crate) const HEALTH_CHECK_PORTS: &'static str = "health-check-ports";
    pub(crate) const DIRECT_RETURN: &'static str = "direct-return";
    pub(crate) const CLUSTER_IP_FOR: &'static str = "cluster-ip-for";
    pub(crate) const MAX_SEGMENT_SIZES: &'static str = "max-segment-sizes";
    pub(crate) const TUNNEL_EXITS: &'static str = "tunnel-exits";
    pub(crate) const ENDPOINTS_HERE: &'static str = "endpoints-here";
    pub(crate) const ENDPOINTS_ELSEWHERE: &'static str = "endpoints-elsewhere";
    pub(crate) const TUNNEL_SENDERS: &'static str = "tunnel-senders";
}

impl Element {
    /// The address family, and so the table, that the element belongs to.
    pub fn family(&self) -> Family {
        match self {
            Self::Vip(ip) | Self::EndpointHere(ip) | Self::EndpointElsewhere(ip) | Self::TunnelSender(ip) => {
                Family::from(*ip)
            }
            Self::Hairpin(flow) => Family::from(flow.pod.ip),
            Self::HealthCheckPort(check) => check.family,
            Self::Restricted(to)
            | Self::ClusterIp(to)
            | Self::External(to)
            | Self::ExternalLocal(to)
            | Self::LocalClientsOnly(to)
            | Self::DirectReturn(to)
            | Self::AllowedSource(AllowedSource { to, .. })
            | Self::ClusterIpFor(ClusterIpFor { to, .. })
            | Self::MaxSegmentSize(MaxSegmentSize { to, .. })
            | Self::TunnelExit(TunnelExit { to, .. }) => Family::from(to.ip),
        }
    }

    /// The virtual server that the element belongs to; `None` if several can have it in common.
    pub fn virtual_server(&self) -> Option<&ServiceAddress> {
        match self {
            Self::Restricted(to)
            | Self::ClusterIp(to)
            | Self::External(to)
            | Self::ExternalLocal(to)
            | Self::LocalClientsOnly(to)
            | Self::DirectReturn(to)
            | Self::AllowedSource(AllowedSource { to, .. })
            | Self::ClusterIpFor(ClusterIpFor { to, .. })
            | Self::MaxSegmentSize(MaxSegmentSize { to, .. })
            | Self::TunnelExit(TunnelExit { to, .. }) => Some(to),
            Self::Vip(_)
            | Self::Hairpin(_)
            | Self::HealthCheckPort(_)
            | Self::EndpointHere(_)
            | Self::EndpointElsewhere(_)
            | Self::TunnelSender(_) => None,
        }
    }

    /// Whether its set only exists where something is answered directly.
    pub fn is_of_direct_return(&self) -> bool {
        match self {
            Self::DirectReturn(_)
            | Self::ClusterIpFor(_)
            | Self::MaxSegmentSize(_)
            | Self::TunnelExit(_)
            | Self::EndpointHere(_)
            | Self::EndpointElsewhere(_)
            | Self::TunnelSender(_) => true,
            Self::Vip(_)
            | Self::Restricted(_)
            | Self::AllowedSource(_)
            | Self::ClusterIp(_)
            | Self::External(_)
            | Self::ExternalLocal(_)
            | Self::LocalClientsOnly(_)
            | Self::Hairpin(_)
            | Self::HealthCheckPort(_) => false,
        }
    }

    /// Whether it is there because this node unpacks what others send to its pods, whichever Service they send it for.
    pub fn is_for_unpacking(&self) -> bool {
        matches!(
            self,
            Self::TunnelExit(_) | Self::EndpointHere(_) | Self::EndpointElsewhere(_) | Self::TunnelSender(_)
        )
    }

    /// The name of the set that holds it.
    pub fn set(&self) -> &'static str {
        match self {
            Self::Vip(_) => Self::VIPS,
            Self::Restricted(_) => Self::RESTRICTED,
            Self::AllowedSource(_) => Self::ALLOWED_SOURCES,
            Self::ClusterIp(_) => Self::CLUSTER_IPS,
            Self::External(_) => Self::EXTERNAL,
            Self::ExternalLocal(_) => Self::EXTERNAL_LOCAL,
            Self::LocalClientsOnly(_) => Self::LOCAL_CLIENTS_ONLY,
            Self::Hairpin(_) => Self::HAIRPIN,
            Self::HealthCheckPort(_) => Self::HEALTH_CHECK_PORTS,
            Self::DirectReturn(_) => Self::DIRECT_RETURN,
            Self::ClusterIpFor(_) => Self::CLUSTER_IP_FOR,
            Self::MaxSegmentSize(_) => Self::MAX_SEGMENT_SIZES,
            Self::TunnelExit(_) => Self::TUNNEL_EXITS,
            Self::EndpointHere(_) => Self::ENDPOINTS_HERE,
            Self::EndpointElsewhere(_) => Self::ENDPOINTS_ELSEWHERE,
            Self::TunnelSender(_) => Self::TUNNEL_SENDERS,
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.set())?;
        match self {
            Self::Vip(ip) | Self::EndpointHere(ip) | Self::EndpointElsewhere(ip) | Self::TunnelSender(ip) => {
                write!(f, "{ip}")
            }
            Self::Restricted(to)
            | Self::ClusterIp(to)
            | Self::External(to)
            | Self::ExternalLocal(to)
            | Self::LocalClientsOnly(to)
            | Self::DirectReturn(to) => write!(f, "{to}"),
            Self::ClusterIpFor(ClusterIpFor { to, cluster_ip }) => write!(f, "{to} is {cluster_ip}"),
            Self::MaxSegmentSize(MaxSegmentSize { to, bytes }) => write!(f, "{to} {bytes} bytes"),
            Self::TunnelExit(TunnelExit { to, pod }) => write!(f, "{to} at {pod}"),
            Self::AllowedSource(source) => write!(f, "{} from {}-{}", source.to, source.first, source.last),
            Self::Hairpin(flow) => write!(f, "{} {}", flow.protocol, flow.pod),
            Self::HealthCheckPort(check) => write!(f, "{} TCP {}", check.family, check.port),
        }
    }
}
