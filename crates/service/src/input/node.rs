//! This node's Node, decoded.

use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;

/// This node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// The label `topology.kubernetes.io/zone`.
    pub zone: Option<Arc<str>>,
    /// The node IPs: `status.addresses` of type InternalIP, then those of type ExternalIP. The first of
    /// a family is the primary one of that family.
    pub ips: Vec<IpAddr>,
    /// `spec.podCIDRs`: the addresses of the pods of this node, at most one range of each family.
    pub pod_cidrs: Vec<IpNet>,
    /// The node is leaving: it is being deleted, or the cluster autoscaler will delete it
    /// (`metadata.deletionTimestamp`, the taint `ToBeDeletedByClusterAutoscaler`). Load balancers are sent
    /// elsewhere; everything is served as before.
    pub leaving: bool,
    /// What was wrong with it, in words, each naming the field; the rest of it is used.
    pub problems: Vec<String>,
}
