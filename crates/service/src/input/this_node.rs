//! This node.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ipvs::{Family, Scheduler};

use super::{Absence, Node, Options, Peers};

/// This node, as far as Services depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThisNode {
    node: Node,
    addresses: BTreeSet<IpAddr>,
    /// The addresses that it had a moment ago.
    lost: BTreeSet<IpAddr>,
    /// Those of its addresses, lost ones too, that another proxy has bound for a Service.
    foreign_vips: BTreeSet<IpAddr>,
    /// Where this node asks the API server.
    api_server: BTreeSet<SocketAddr>,
    /// Where API servers listen: the endpoints of the Service `default/kubernetes`.
    api_endpoints: BTreeSet<SocketAddr>,
    /// The gateways of all of its routes.
    gateways: BTreeSet<IpAddr>,
    node_port_addresses: Box<[IpAddr]>,
    /// The same, and the lost addresses that would be among them.
    node_port_ips: Box<[IpAddr]>,
    /// The schedulers that cannot be used on it.
    missing_schedulers: BTreeMap<Scheduler, Absence>,
    peers: Arc<Peers>,
    link_mtu: Option<u32>,
    missing_tunnels: BTreeSet<Family>,
    /// The families in which connections through the tunnel may be open.
    tunnels_in_use: BTreeSet<Family>,
}

impl ThisNode {
    /// Determines again where NodePorts are served.
    fn with_node_ports_placed(mut self, options: &Options) -> Self {
        let placed = |addresses: &BTreeSet<IpAddr>| node_port_addresses(&self.node.ips, addresses, options);
        let own = &self.addresses - &self.foreign_vips;
        let either = &(&self.addresses | &self.lost) - &self.foreign_vips;
        (self.node_port_addresses, self.node_port_ips) = (placed(&own), placed(&either));
        self
    }

    /// This node with another description. A Node without IPs is incomplete, so the earlier IPs stay.
    pub(crate) fn described(&self, mut node: Node, options: &Options) -> Self {
        if node.ips.is_empty() {
            node.ips.clone_from(&self.node.ips);
        }
        // No Service depends on these.
        (node.leaving, node.overlay_ips) = (false, Vec::new());
        Self { node, ..self.clone() }.with_node_ports_placed(options)
    }

    /// This node with these addresses on its interfaces, and these lost a moment ago.
    pub(crate) fn with_addresses(
        &self,
        addresses: BTreeSet<IpAddr>,
        lost: BTreeSet<IpAddr>,
        options: &Options,
    ) -> Self {
        Self { addresses, lost, ..self.clone() }.with_node_ports_placed(options)
    }

    /// This node where another proxy has bound these VIPs: ClusterIPs that an interface has, or had a moment ago, though they
    /// are none of the Node's IPs. kube-router leaves them on its `kube-dummy-if`.
    pub(crate) fn with_foreign_vips(
        &self,
        is_cluster_ip: impl Fn(&IpAddr) -> bool,
        options: &Options,
    ) -> Option<Self> {
        let is_foreign = |ip: &&IpAddr| is_cluster_ip(ip) && !self.node.ips.contains(ip);
        let foreign_vips = self.addresses.union(&self.lost).filter(is_foreign).copied().collect();
        let changed = foreign_vips != self.foreign_vips;
        changed.then(|| Self { foreign_vips, ..self.clone() }.with_node_ports_placed(options))
    }

    /// This node asking the API server at these addresses.
    pub(crate) fn with_api_server(&self, api_server: BTreeSet<SocketAddr>) -> Self {
        Self { api_server, ..self.clone() }
    }

    /// This node in a cluster whose API servers listen there.
    pub(crate) fn with_api_endpoints(&self, api_endpoints: BTreeSet<SocketAddr>) -> Self {
        Self { api_endpoints, ..self.clone() }
    }

    /// This node with these gateways.
    pub(crate) fn with_gateways(&self, gateways: BTreeSet<IpAddr>) -> Self {
        Self { gateways, ..self.clone() }
    }

    /// This node without these schedulers.
    pub(crate) fn without_schedulers(&self, missing_schedulers: BTreeMap<Scheduler, Absence>) -> Self {
        Self { missing_schedulers, ..self.clone() }
    }

    /// This node among other ones.
    pub(crate) fn among(&self, peers: Peers) -> Self {
        Self { peers: Arc::new(peers), ..self.clone() }
    }

    /// This node with links of which the smallest MTU is this.
    pub(crate) fn with_link_mtu(&self, mtu: u32) -> Self {
        Self { link_mtu: Some(mtu), ..self.clone() }
    }

    /// This node unable to unpack what comes through a tunnel, in these families.
    pub(crate) fn without_tunnels(&self, missing_tunnels: BTreeSet<Family>) -> Self {
        Self { missing_tunnels, ..self.clone() }
    }

    /// This node with packets that came out of its tunnels of late, in these families.
    pub(crate) fn with_tunnels_in_use(&self, tunnels_in_use: BTreeSet<Family>) -> Self {
        Self { tunnels_in_use, ..self.clone() }
    }

    /// Whether packets came out of its tunnel of late.
    pub(crate) fn has_tunnel_in_use(&self, family: Family) -> bool {
        self.tunnels_in_use.contains(&family)
    }

    /// The other nodes of the cluster.
    pub(crate) fn peers(&self) -> &Arc<Peers> {
        &self.peers
    }

    /// Whether direct return is as with the other: the tunnels, and the scheduler by which all nodes choose alike.
    pub(crate) fn returns_directly_like(&self, other: &Self) -> bool {
        self.peers.tunnel_like(&other.peers)
            && self.lacks(Scheduler::MH) == other.lacks(Scheduler::MH)
            && self.link_mtu == other.link_mtu
            && self.missing_tunnels == other.missing_tunnels
    }

    /// The smallest MTU among its links; `None` before they were read.
    pub(crate) fn link_mtu(&self) -> Option<u32> {
        self.link_mtu
    }

    /// Whether it cannot unpack what comes through a tunnel.
    pub(crate) fn lacks_tunnel(&self, family: Family) -> bool {
        self.missing_tunnels.contains(&family)
    }

    /// Why a scheduler cannot be used on this node; `None` if it can, as far as is known.
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

    /// Whether one of these addresses and any port is where this node asks the API server.
    pub(crate) fn asks_api_server_at(&self, ip: &IpAddr) -> bool {
        self.api_server.iter().any(|at| at.ip() == *ip)
    }

    /// Whether it asks the API server at this address and port.
    pub(crate) fn asks_api_server_at_port(&self, at: SocketAddr) -> bool {
        self.api_server.contains(&at)
    }

    /// Whether an API server listens at this address, at any port.
    pub(crate) fn has_api_endpoint_at(&self, ip: &IpAddr) -> bool {
        self.api_endpoints.iter().any(|at| at.ip() == *ip)
    }

    /// Whether an API server listens at this address and port.
    pub(crate) fn is_api_endpoint(&self, at: SocketAddr) -> bool {
        self.api_endpoints.contains(&at)
    }

    /// Whether what this node sends elsewhere goes by way of this address.
    pub(crate) fn has_gateway_at(&self, ip: &IpAddr) -> bool {
        self.gateways.contains(ip)
    }

    /// Whether an address is in a range of pods, of this node or another one.
    pub(crate) fn is_in_pod_range(&self, ip: &IpAddr, options: &Options) -> bool {
        let of_options = options.pod_ranges.iter().chain(&self.node.pod_cidrs);
        self.peers.have_pods_in(ip) || of_options.into_iter().any(|range| range.contains(ip))
    }

    /// Whether it is known which addresses other nodes have, as far as that will be known soon.
    pub(crate) fn knows_nodes(&self, options: &Options) -> bool {
        !options.watches_nodes || self.peers.are_settled()
    }

    /// Whether API servers listen at the same addresses and ports as with the other.
    pub(crate) fn has_api_endpoints_like(&self, other: &Self) -> bool {
        self.api_endpoints == other.api_endpoints
    }

    /// Whether an address has the same owner as with the other, if it is known whose addresses are or not.
    pub(crate) fn sees_alike(&self, other: &Self, ip: &IpAddr, options: &Options) -> bool {
        let seen = |node: &Self| -> [bool; 5] {
            [
                node.has(ip),
                node.node.ips.contains(ip),
                node.peers.has(ip),
                node.has_gateway_at(ip),
                node.is_in_pod_range(ip, options),
            ]
        };
        let at_ip = |one: &BTreeSet<SocketAddr>, other: &BTreeSet<SocketAddr>| {
            let [one, other] = [one, other].map(|all| all.iter().filter(|at| at.ip() == *ip));
            one.eq(other)
        };
        seen(self) == seen(other)
            && at_ip(&self.api_server, &other.api_server)
            && at_ip(&self.api_endpoints, &other.api_endpoints)
    }

    /// Whether all addresses have the same owners as with the other.
    pub(crate) fn sees_all_alike(&self, other: &Self) -> bool {
        self.has_nodes_like(other)
            && self.node.pod_cidrs == other.node.pod_cidrs
            && self.api_server == other.api_server
            && self.api_endpoints == other.api_endpoints
            && self.gateways == other.gateways
            && self.peers.are_settled() == other.peers.are_settled()
    }

    /// Whether this node or another one has this address, so that what is sent there is not for a pod alone.
    pub(crate) fn is_a_nodes(&self, ip: &IpAddr) -> bool {
        self.addresses.contains(ip) || self.node.ips.contains(ip) || self.peers.has(ip)
    }

    /// Whether all nodes have the same addresses as with the other.
    pub(crate) fn has_nodes_like(&self, other: &Self) -> bool {
        self.addresses == other.addresses
            && self.node.ips == other.node.ips
            && (Arc::ptr_eq(&self.peers, &other.peers) || self.peers.have_ips_like(&other.peers))
    }

    /// The addresses of this node at which NodePorts are served, sorted.
    pub(crate) fn node_port_addresses(&self) -> &[IpAddr] {
        &self.node_port_addresses
    }

    /// The addresses at which NodePorts have virtual servers, sorted: the same, and those lost a moment ago.
    pub(crate) fn node_port_ips(&self) -> &[IpAddr] {
        &self.node_port_ips
    }
}

/// The addresses of a node at which NodePorts are served, sorted.
fn node_port_addresses(
    node_ips: &[IpAddr],
    addresses: &BTreeSet<IpAddr>,
    options: &Options,
) -> Box<[IpAddr]> {
    let asked_for = &options.node_port_addresses;
    let served = |ip: &IpAddr| {
        let family = Family::from(*ip);
        asked_for.is_everywhere(family)
            || asked_for.ranges.iter().any(|range| range.contains(ip))
            || (asked_for.primary && primary(family, node_ips, options) == Some(*ip))
    };
    addresses.iter().filter(|ip| served(ip)).copied().collect()
}

/// The node's primary address of a family. Behind NAT, for example, no interface of the node has it.
fn primary(family: Family, node_ips: &[IpAddr], options: &Options) -> Option<IpAddr> {
    options.bind_address.iter().chain(node_ips).copied().find(|ip| Family::from(*ip) == family)
}
