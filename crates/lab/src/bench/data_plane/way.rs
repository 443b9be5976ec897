//! What is sent, and from where to where.

use std::fmt;

use ipvs::Family;
use serde::{Deserialize, Serialize};

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Traffic {
    /// TCP connections, one after the other, with a byte forth and a byte back; then the client breaks them off.
    Connections,
    /// A byte forth and a byte back on an open connection.
    Requests,
    /// Datagrams of one flow; each sixteenth is answered.
    Datagrams,
    /// A stream to the server, by the megabyte.
    Stream,
}

/// From where to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// A pod of this node asks a ClusterIP.
    PodToClusterIp,
    /// The node itself asks it.
    NodeToClusterIp,
    /// A client outside asks a NodePort, with the external policy Cluster.
    OutsideToNodePort,
    /// A client outside asks a load balancer's address, and is in its source ranges.
    OutsideToLoadBalancer,
}

impl Traffic {
    pub(crate) const ALL: [Self; 4] = [Self::Connections, Self::Requests, Self::Datagrams, Self::Stream];

    /// How many take about a twentieth of a second.
    pub(super) const fn operations(self) -> u32 {
        match self {
            Self::Connections => 150,
            Self::Requests => 500,
            Self::Datagrams => 1_200,
            Self::Stream => 24,
        }
    }
}

impl Way {
    const ALL: [Self; 4] =
        [Self::PodToClusterIp, Self::NodeToClusterIp, Self::OutsideToNodePort, Self::OutsideToLoadBalancer];

    pub(super) fn in_both_families() -> impl Iterator<Item = (Self, Family)> {
        Self::ALL.into_iter().flat_map(|way| Family::BOTH.map(|family| (way, family)))
    }
}

/// With netperf's name, if it measures that.
impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Connections => "new connection (TCP_CRR)",
            Self::Requests => "request on an open one (TCP_RR)",
            Self::Datagrams => "datagram",
            Self::Stream => "megabyte of a stream (TCP_STREAM)",
        })
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::PodToClusterIp => "pod → ClusterIP",
            Self::NodeToClusterIp => "node → ClusterIP",
            Self::OutsideToNodePort => "outside → NodePort",
            Self::OutsideToLoadBalancer => "outside → load balancer",
        })
    }
}
