//! The tunnels to the pods of other nodes, and this node's end of theirs.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use ipvs::{Family, Tunnel, TunnelKind};

use crate::input::{CompactEndpoint, CompactSlice, ServiceInputs, Traits};

/// What a node unpacks of the packets to its pods, as it has answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unpacking {
    /// The families, as IP in IP.
    pub families: BTreeSet<Family>,
    /// Whether the same by generic UDP encapsulation.
    pub gue: bool,
}

/// The nodes that have answered, by name. Packets are tunnelled only to their pods.
pub type UnpackingPeers = BTreeMap<Arc<str>, Unpacking>;

/// What this node knows of tunnels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tunnels {
    /// What other nodes unpack.
    pub(crate) unpacking: UnpackingPeers,
    /// The endpoints to which an earlier daemon has tunnelled. Counts for those whose nodes have not answered yet.
    pub(crate) before: BTreeMap<IpAddr, Tunnel>,
    /// The smallest MTU among this node's links, in bytes; `None` before they were read.
    pub(crate) link_mtu: Option<u32>,
    /// The families in which this node cannot unpack what comes through a tunnel.
    pub(crate) missing: BTreeSet<Family>,
    /// The families in which packets have recently come out of this node's tunnel: connections may be open. No Service
    /// depends on it.
    pub(crate) in_use: BTreeSet<Family>,
}

impl Tunnels {
    /// Whether Services are answered directly as with the other.
    pub(crate) fn serve_like(&self, other: &Self) -> bool {
        let Self { unpacking, before, link_mtu, missing, in_use: _ } = self;
        (unpacking, before, link_mtu, missing)
            == (&other.unpacking, &other.before, &other.link_mtu, &other.missing)
    }

    /// How packets are tunnelled to an endpoint of a node, if the node unpacks: as is wanted, if it understands that.
    fn to(&self, node: &str, endpoint: IpAddr, wanted: Tunnel) -> Option<Tunnel> {
        let Some(unpacking) = self.unpacking.get(node) else { return self.before.get(&endpoint).copied() };
        let understood = wanted.kind != TunnelKind::Gue || unpacking.gue;
        let tunnel = if understood { wanted } else { Tunnel::default() };
        unpacking.families.contains(&Family::from(endpoint)).then_some(tunnel)
    }
}

/// The tunnel by which an endpoint is reached at addresses that are answered directly, if it is on another node that
/// unpacks.
pub(crate) fn tunnel_to(
    ServiceInputs { service, node, options, .. }: ServiceInputs<'_>,
    slice: &CompactSlice,
    endpoint: &CompactEndpoint,
) -> Option<Tunnel> {
    let is_here = endpoint.traits.contains(Traits::LOCAL);
    // A node's own address is not unpacked there.
    if !options.external_forwarding.tunnels(service) || is_here || node.is_node_address(&endpoint.address) {
        return None;
    }
    let name = slice.place_of(endpoint)?.node.as_deref()?;
    node.tunnels.to(name, endpoint.address, options.tunnel)
}
