//! Nodes, decoded, and this node: its Node, and everything else of it on which Services depend.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ipnet::IpNet;
use ipvs::Scheduler;

use super::{Absence, Options, Peers};
use crate::direct_return::Tunnels;

/// A Node, decoded: this node's, or that of another one of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: Arc<str>,
    /// The label `topology.kubernetes.io/zone`.
    pub zone: Option<Arc<str>>,
    /// The node IPs: `status.addresses` of type InternalIP, then those of type ExternalIP. The first of
    /// a family is the primary one of that family. Another node answers requests there, and may send into tunnels from
    /// there.
    pub ips: Vec<IpAddr>,
    /// Its possible addresses in an overlay. Another node may send into tunnels from these too.
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

/// This node, as far as Services depend on it: facts, and what follows from them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThisNode {
    /// Its Node, as last applied.
    node: Node,
    /// The addresses on its own interfaces.
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// The addresses that it had a moment ago.
    pub(crate) lost: BTreeSet<IpAddr>,
    /// Where this node asks the API server.
    pub(crate) api_server: BTreeSet<SocketAddr>,
    /// Where API servers listen: the endpoints of the Service `default/kubernetes`.
    pub(crate) api_endpoints: BTreeSet<SocketAddr>,
    /// The gateways of all of its routes.
    pub(crate) gateways: BTreeSet<IpAddr>,
    /// The schedulers that cannot be used on it.
    pub(crate) missing_schedulers: BTreeMap<Scheduler, Absence>,
    /// The other nodes of the cluster.
    pub(crate) peers: Arc<Peers>,
    pub(crate) tunnels: Arc<Tunnels>,
    /// The addresses at which NodePorts are served, sorted.
    pub(crate) node_port_addresses: Box<[IpAddr]>,
    /// The addresses at which NodePorts have virtual servers, sorted: the same, and those lost a moment ago.
    pub(crate) node_port_ips: Box<[IpAddr]>,
}

/// The facts about an address on this node, Services and endpoints aside.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct AddressFacts {
    /// An interface of this node has it.
    pub(crate) is_here: bool,
    /// The Node names it.
    pub(crate) is_node_ip: bool,
    /// Another node has it.
    pub(crate) is_peer_ip: bool,
    /// It is a gateway of this node's routes.
    pub(crate) is_gateway: bool,
    /// It is in a range of pods, of this node or another one.
    pub(crate) is_in_pod_range: bool,
    /// The ports at which API servers listen there.
    api_endpoints: Vec<u16>,
    /// The ports at which this node asks the API server there.
    asked_api_server: Vec<u16>,
}

impl AddressFacts {
    /// Whether an API server listens there, at any port.
    pub(crate) fn has_api_endpoint(&self) -> bool {
        !self.api_endpoints.is_empty()
    }

    /// Whether this node asks the API server there, at any port.
    pub(crate) fn is_asked_for_api(&self) -> bool {
        !self.asked_api_server.is_empty()
    }
}

impl ThisNode {
    /// Replaces its Node. A Node without IPs is incomplete, so the earlier IPs stay.
    pub(crate) fn describe(&mut self, mut node: Node) {
        if node.ips.is_empty() {
            node.ips.clone_from(&self.node.ips);
        }
        // No Service depends on these.
        (node.leaving, node.overlay_ips) = (false, Vec::new());
        self.node = node;
    }

    /// Determines again what follows from the facts.
    pub(crate) fn derive(&mut self, is_cluster_ip: impl Fn(&IpAddr) -> bool, options: &Options) {
        let either = &self.addresses | &self.lost;
        // Another proxy has bound these: ClusterIPs that an interface has, or had a moment ago, though they are not IPs
        // of the Node. kube-router leaves them on its `kube-dummy-if`.
        let is_foreign = |ip: &&IpAddr| is_cluster_ip(ip) && !self.node.ips.contains(ip);
        let foreign: BTreeSet<_> = either.iter().filter(is_foreign).copied().collect();
        let placed = |all: &BTreeSet<_>| options.addresses_for_node_ports(&self.node.ips, &(all - &foreign));
        (self.node_port_addresses, self.node_port_ips) = (placed(&self.addresses), placed(&either));
    }

    /// The facts about an address.
    pub(crate) fn facts_of(&self, ip: &IpAddr, options: &Options) -> AddressFacts {
        let ports = |all: &BTreeSet<SocketAddr>| {
            all.iter().filter(|at| at.ip() == *ip).map(SocketAddr::port).collect()
        };
        let mut pod_ranges = options.pod_ranges.iter().chain(&self.node.pod_cidrs);
        AddressFacts {
            is_here: self.has(ip),
            is_node_ip: self.node.ips.contains(ip),
            is_peer_ip: self.peers.has(ip),
            is_gateway: self.gateways.contains(ip),
            is_in_pod_range: self.peers.have_pods_in(ip) || pod_ranges.any(|range| range.contains(ip)),
            api_endpoints: ports(&self.api_endpoints),
            asked_api_server: ports(&self.api_server),
        }
    }

    /// Whether Services are answered directly as with the other: the tunnels, and the scheduler by which all nodes
    /// choose alike.
    pub(crate) fn same_direct_return_inputs(&self, other: &Self) -> bool {
        self.tunnels.serve_like(&other.tunnels) && self.lacks(Scheduler::MH) == other.lacks(Scheduler::MH)
    }

    /// Why a scheduler cannot be used on this node; `None` if it can, as far as this is known.
    pub(crate) fn lacks(&self, scheduler: Scheduler) -> Option<Absence> {
        self.missing_schedulers.get(&scheduler).copied()
    }

    /// The zone it is in.
    pub(crate) fn zone(&self) -> Option<&str> {
        self.node.zone.as_deref()
    }

    /// The node IPs.
    pub(crate) fn ips(&self) -> &[IpAddr] {
        &self.node.ips
    }

    /// Whether an interface of its own has this address.
    pub(crate) fn has(&self, ip: &IpAddr) -> bool {
        self.addresses.contains(ip)
    }

    /// Whether an interface of its own has this address, or had it a moment ago.
    pub(crate) fn had(&self, ip: &IpAddr) -> bool {
        self.has(ip) || self.lost.contains(ip)
    }

    /// Whether it is known which addresses other nodes have, as far as that will be known soon.
    pub(crate) fn knows_nodes(&self, options: &Options) -> bool {
        !options.watches_nodes || self.peers.are_settled()
    }

    /// Whether all addresses have the same owners as with the other.
    pub(crate) fn same_owners(&self, other: &Self) -> bool {
        self.same_node_addresses(other)
            && self.node.pod_cidrs == other.node.pod_cidrs
            && self.api_server == other.api_server
            && self.api_endpoints == other.api_endpoints
            && self.gateways == other.gateways
            && self.peers.are_settled() == other.peers.are_settled()
    }

    /// Whether all nodes have the same addresses as with the other.
    pub(crate) fn same_node_addresses(&self, other: &Self) -> bool {
        self.addresses == other.addresses
            && self.node.ips == other.node.ips
            && (Arc::ptr_eq(&self.peers, &other.peers) || self.peers.have_same_addresses(&other.peers))
    }

    /// Whether this node or another one has this address, so that what is sent there is not for a pod alone.
    pub(crate) fn is_node_address(&self, ip: &IpAddr) -> bool {
        self.has(ip) || self.node.ips.contains(ip) || self.peers.has(ip)
    }
}
