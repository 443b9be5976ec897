//! Direct return: what comes in at an external address keeps the client's address, and the node of the endpoint answers
//! the client itself.
//!
//! Everything that it adds to this crate is here. The rest of the crate asks in a few places:
//!
//! - An input is kept in [`Tunnels`], a part of this node: what other nodes unpack, and what this one can.
//! - A Service's [`ForwardingMethod`] asks for it. [`DirectReturn`] decides for which of its addresses that is possible.
//! - An endpoint of such a Service is reached through the tunnel that [`tunnel_to`] returns, if its node unpacks.
//! - A virtual server at such an address needs [`DirectReturnParts`], and its endpoints need [`tunnel_elements`].
//! - This node unpacks as long as [`Demand`] counts a Service that is answered directly (`unpacking`).

mod parts;
mod unpacking;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use ipvs::{Family, Tunnel, TunnelKind};
use serde::{Deserialize, Serialize};

pub use parts::{DirectReturnParts, Entrance};

pub(crate) use parts::{DirectReturn, exits, tunnel_elements};
pub(crate) use unpacking::{Demand, nodes_with_endpoints};

use crate::input::{CompactEndpoint, CompactSlice, Service, ServiceInputs, Traits};

/// How what comes in at a load balancer's address or an external IP reaches the endpoints (the annotation
/// `kube-ipvs.io/forwarding-method`). It only counts where the external policy is `Cluster`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ForwardingMethod {
    /// IPVS makes the pod the destination, and the client is masqueraded, so that answers come back through this node.
    #[default]
    #[serde(rename = "masq")]
    Masquerade,
    /// Packets for another node's pods go through a tunnel, and that node answers the client itself, which keeps its
    /// address: direct return.
    #[serde(rename = "tunnel")]
    Tunnel,
}

/// The operator's policy for the [`ForwardingMethod`] of Services. A tunnel concerns more than its Service:
/// nodes get devices and kernel parameters for it, and pods get packets that others have put into packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExternalForwarding {
    /// Every Service is masqueraded, whatever its annotations ask for.
    #[default]
    Masquerade,
    /// A Service is masqueraded, unless its annotation asks for a tunnel.
    ByAnnotation,
    /// Tunnels are used, unless the annotation asks for masquerading.
    Tunnel,
}

impl ExternalForwarding {
    /// Whether any Service may be answered directly.
    pub fn may_tunnel(self) -> bool {
        self != Self::Masquerade
    }

    /// Whether a Service's external addresses are to be reached through tunnels.
    pub(crate) fn tunnels(self, service: &Service) -> bool {
        match self {
            Self::Masquerade => false,
            Self::ByAnnotation => asked_method(service) == Some(ForwardingMethod::Tunnel),
            Self::Tunnel => asked_method(service) != Some(ForwardingMethod::Masquerade),
        }
    }

    /// Whether a Service asks for a tunnel that the operator lets no annotation ask for.
    pub(crate) fn refuses_tunnel_of(self, service: &Service) -> bool {
        !self.may_tunnel() && asked_method(service) == Some(ForwardingMethod::Tunnel)
    }
}

/// The method that a Service's annotations ask for.
fn asked_method(service: &Service) -> Option<ForwardingMethod> {
    service.balancing.as_ref()?.forwarding_method
}

/// The tunnels that a node unpacks for its pods, as it has answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unpacking {
    /// The families, as IP in IP.
    pub families: BTreeSet<Family>,
    /// Whether the same by generic UDP encapsulation.
    pub gue: bool,
}

/// The nodes that have answered, by name. Packets are tunnelled only to their pods.
pub type UnpackingPeers = BTreeMap<Arc<str>, Unpacking>;

/// This node's knowledge of tunnels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tunnels {
    /// The tunnels that other nodes unpack.
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
