//! The network of the pods.

mod bridge;
pub(crate) mod flannel;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::state::Cluster;

/// What connects the pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PodNetwork {
    /// The CNI plugins bridge and host-local, and routes between the nodes
    Bridge,
    /// Flannel, with VXLAN
    Flannel,
}

/// Connects the pods of all nodes. Afterwards a node gets ready.
pub(crate) fn connect(cluster: &Cluster) -> Result<()> {
    match cluster.pod_network {
        PodNetwork::Bridge => bridge::connect(cluster),
        PodNetwork::Flannel => flannel::connect(),
    }
}
