//! The part of the configuration that shapes the desired state.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use ipnet::IpNet;
use ipvs::{Family, Scheduler, Tunnel};

use super::{DistanceWeights, Ejection, UntrackedServices};
use crate::direct_return::ExternalForwarding;

/// The configuration that is the same for every Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The name of this node, lower case; decides which endpoints are local.
    pub node_name: Arc<str>,
    /// The scheduler of every virtual server.
    pub scheduler: Scheduler,
    /// The factors by which the weights of Services that do not say otherwise depend on distance; `None`: they do not.
    pub distance_weights: Option<DistanceWeights>,
    /// Which failing endpoints of Services that do not say otherwise get no new connections.
    pub ejection: Ejection,
    /// At which of the node's addresses NodePorts are served.
    pub node_port_addresses: NodePortAddresses,
    /// `bindAddress`: counts before the node IPs of its family where [`NodePortAddresses::primary`] asks
    /// for them. A single address: not `0.0.0.0` or `::`.
    pub bind_address: Option<IpAddr>,
    /// Which of `spec.externalIPs` are served.
    pub external_ips: ExternalIps,
    /// How what comes in at external addresses reaches the endpoints, and whether Services may choose.
    pub external_forwarding: ExternalForwarding,
    /// How packets are put into others for another node.
    pub tunnel: Tunnel,
    /// The families in which pods of this node can be distinguished from others.
    pub knows_pods: BTreeSet<Family>,
    /// The Services of which conntrack does not track flows of pods, or whose annotations may ask for that.
    pub untracked_services: UntrackedServices,
    /// The ranges of the pods of all nodes in which flows need not be tracked, at most one of each family.
    pub untracked_pods: Vec<IpNet>,
    /// Whether other nodes can ask this one what it unpacks.
    pub answers_peers: bool,
    /// The ranges of the pods of all nodes (`clusterCIDR`).
    pub pod_ranges: Vec<IpNet>,
    /// Whether the other nodes of the cluster are listed where an external address depends on them. Until they are,
    /// none is bound.
    pub watches_nodes: bool,
}

impl Options {
    /// The defaults of every option that has one, for the node of this name: rr, NodePorts at all addresses,
    /// external IPs that belong to nothing else, no tunnels, no watch
    /// of the other nodes.
    pub fn new(node_name: impl Into<Arc<str>>) -> Self {
        Self {
            node_name: node_name.into(),
            scheduler: Scheduler::RR,
            distance_weights: None,
            ejection: Ejection::empty(),
            node_port_addresses: NodePortAddresses::default(),
            bind_address: None,
            external_ips: ExternalIps::Unowned,
            external_forwarding: ExternalForwarding::default(),
            tunnel: Tunnel::default(),
            knows_pods: BTreeSet::new(),
            untracked_services: UntrackedServices::empty(),
            untracked_pods: Vec::new(),
            answers_peers: true,
            pod_ranges: Vec::new(),
            watches_nodes: false,
        }
    }

    /// Whether conntrack may leave out flows of pods to some Service.
    pub(crate) fn may_untrack(&self) -> bool {
        !self.untracked_services.is_empty()
    }

    /// Whether NodePorts are served at every address of the node in this family.
    pub fn serves_node_ports_everywhere(&self, family: Family) -> bool {
        self.node_port_addresses.is_everywhere(family)
    }

    /// Whether NodePorts are to be served at any address.
    pub(crate) fn wants_node_ports(&self) -> bool {
        !self.node_port_addresses.is_loopback_alone()
    }

    /// Those of a node's addresses at which NodePorts are served, sorted.
    pub(crate) fn addresses_for_node_ports(
        &self,
        node_ips: &[IpAddr],
        addresses: &BTreeSet<IpAddr>,
    ) -> Box<[IpAddr]> {
        let asked_for = &self.node_port_addresses;
        let is_served = |ip: &IpAddr| {
            let family = Family::from(*ip);
            asked_for.is_everywhere(family)
                || asked_for.ranges.iter().any(|range| range.contains(ip))
                || (asked_for.primary && self.primary_ip(family, node_ips) == Some(*ip))
        };
        addresses.iter().filter(|ip| is_served(ip)).copied().collect()
    }

    /// The node's primary address of a family. Behind NAT, for example, no interface of the node has it.
    fn primary_ip(&self, family: Family, node_ips: &[IpAddr]) -> Option<IpAddr> {
        self.bind_address.iter().chain(node_ips).copied().find(|ip| Family::from(*ip) == family)
    }
}

/// Which of `spec.externalIPs` are served (CVE-2020-8554). Never a [`SpecialAddress`](crate::SpecialAddress), never
/// another Service's ClusterIP, and never the address and port of an API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExternalIps {
    /// None: the feature gate `AllowServiceExternalIPs` is off.
    Off,
    /// External IPs that belong to nothing else: to no node, API server, pod, endpoint, or Service of another
    /// namespace.
    Unowned,
    /// External IPs in these ranges and no others, whatever they belong to: the operator has allowed them.
    In(Vec<IpNet>),
}

/// At which of the node's addresses NodePorts are served (`nodePortAddresses`). By default at all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePortAddresses {
    /// At the primary node IP of each family, if an interface of the node has it. A family without node IP is then
    /// served in the ranges alone.
    pub primary: bool,
    /// At those in these ranges. A family without any range is served at all its addresses, as upstream does it,
    /// unless the primary ones are asked for.
    pub ranges: Vec<IpNet>,
}

impl NodePortAddresses {
    /// Whether every address of a family is meant: neither its primary one nor a range of it is asked for, or one range
    /// is the whole of it.
    pub fn is_everywhere(&self, family: Family) -> bool {
        self.of_family(family).any(|range| range.prefix_len() == 0)
            || (!self.primary && self.of_family(family).next().is_none())
    }

    /// Whether there are ranges, none is of this family, and nothing else limits it.
    pub fn leaves_out(&self, family: Family) -> bool {
        !self.primary && !self.ranges.is_empty() && self.of_family(family).next().is_none()
    }

    /// Whether one of the ranges is in the node's loopback addresses, at which NodePorts are never served.
    pub fn asks_for_loopback(&self) -> bool {
        self.ranges.iter().any(is_loopback)
    }

    /// Whether all that is asked for is loopback addresses, so that NodePorts are served nowhere.
    pub fn is_loopback_alone(&self) -> bool {
        !self.primary && !self.ranges.is_empty() && self.ranges.iter().all(is_loopback)
    }

    fn of_family(&self, family: Family) -> impl Iterator<Item = &IpNet> {
        self.ranges.iter().filter(move |range| Family::from(range.addr()) == family)
    }
}

/// Whether a range has no address but loopback ones.
fn is_loopback(range: &IpNet) -> bool {
    match range {
        IpNet::V4(range) => range.addr().is_loopback() && range.prefix_len() >= 8,
        IpNet::V6(range) => range.addr().is_loopback() && range.prefix_len() == 128,
    }
}
