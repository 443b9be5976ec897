//! What the sets of our table hold.

use std::{fmt, net::IpAddr};

use ipvs::{Family, RealServerAddress, ServiceAddress};
use serde::{Deserialize, Serialize};

/// One element of one set. The variant names the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Element {
    /// `cluster-ips`: a ClusterIP with protocol and port; masqueraded unless the source is a local pod.
    ClusterIp(ServiceAddress),
    /// `external`: a NodePort, external or load-balancer address, with protocol and port, whose flows may
    /// be sent to another node; masqueraded whatever the source.
    External(ServiceAddress),
    /// `hairpin`: a local pod as real server. A flow from that pod that IPVS sent back to the same pod
    /// must be masqueraded, or the pod would answer itself directly.
    Hairpin(HairpinFlow),
}

/// A flow whose client and real server are the same pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HairpinFlow {
    /// The transport protocol.
    pub protocol: ipvs::Protocol,
    /// The pod as real server; its address is the source too.
    pub pod: RealServerAddress,
}

/// The names of the sets.
impl Element {
    pub(crate) const CLUSTER_IPS: &'static str = "cluster-ips";
    pub(crate) const EXTERNAL: &'static str = "external";
    pub(crate) const HAIRPIN: &'static str = "hairpin";
}

impl Element {
    /// The address family, and so the table, that the element belongs to.
    pub fn family(&self) -> Family {
        Family::of(self.ip())
    }

    /// The VIP, or the pod's address.
    pub fn ip(&self) -> IpAddr {
        match self {
            Self::ClusterIp(address) | Self::External(address) => address.ip,
            Self::Hairpin(flow) => flow.pod.ip,
        }
    }

    /// The name of the set that holds it.
    pub fn set(&self) -> &'static str {
        match self {
            Self::ClusterIp(_) => Self::CLUSTER_IPS,
            Self::External(_) => Self::EXTERNAL,
            Self::Hairpin(_) => Self::HAIRPIN,
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClusterIp(address) | Self::External(address) => write!(f, "{} {address}", self.set()),
            Self::Hairpin(flow) => write!(f, "{} {} {}", self.set(), flow.protocol, flow.pod),
        }
    }
}
