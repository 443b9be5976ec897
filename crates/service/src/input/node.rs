//! Nodes, decoded.

use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;

/// This node, or another one of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: Arc<str>,
    /// The label `topology.kubernetes.io/zone`.
    pub zone: Option<Arc<str>>,
    /// The node IPs: `status.addresses` of type InternalIP, then those of type ExternalIP. The first of
    /// a family is the primary one of that family. Another node is asked there, and may send into tunnels from there.
    pub ips: Vec<IpAddr>,
    /// The addresses that it may have in an overlay, from which another node may send into tunnels too.
    pub overlay_ips: Vec<IpAddr>,
    /// `spec.podCIDRs`: the addresses of its pods, at most one range of each family.
    pub pod_cidrs: Vec<IpNet>,
    /// The node is leaving: it is being deleted, or the cluster autoscaler will delete it
    /// (`metadata.deletionTimestamp`, the taint `ToBeDeletedByClusterAutoscaler`). Load balancers are sent
    /// elsewhere; everything is served as before.
    pub leaving: bool,
    /// The problems of the object, each naming the field; the rest of it is used.
    pub problems: Vec<String>,
}
