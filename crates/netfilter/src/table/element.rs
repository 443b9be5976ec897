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
}

impl Element {
    /// The address family, and so the table, that the element belongs to.
    pub fn family(&self) -> Family {
        match self {
            Self::Vip(ip) => Family::from(*ip),
            Self::Hairpin(flow) => Family::from(flow.pod.ip),
            Self::HealthCheckPort(check) => check.family,
            Self::Restricted(to)
            | Self::ClusterIp(to)
            | Self::External(to)
            | Self::ExternalLocal(to)
            | Self::LocalClientsOnly(to)
            | Self::AllowedSource(AllowedSource { to, .. }) => Family::from(to.ip),
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
            | Self::AllowedSource(AllowedSource { to, .. }) => Some(to),
            Self::Vip(_) | Self::Hairpin(_) | Self::HealthCheckPort(_) => None,
        }
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
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.set())?;
        match self {
            Self::Vip(ip) => write!(f, "{ip}"),
            Self::Restricted(to)
            | Self::ClusterIp(to)
            | Self::External(to)
            | Self::ExternalLocal(to)
            | Self::LocalClientsOnly(to) => write!(f, "{to}"),
            Self::AllowedSource(source) => write!(f, "{} from {}-{}", source.to, source.first, source.last),
            Self::Hairpin(flow) => write!(f, "{} {}", flow.protocol, flow.pod),
            Self::HealthCheckPort(check) => write!(f, "{} TCP {}", check.family, check.port),
        }
    }
}
