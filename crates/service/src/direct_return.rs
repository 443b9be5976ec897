//! Direct return: what comes in at an external address keeps the client's address, and the node of the endpoint answers
//! the client itself.
//!
//! All that it adds to this crate is here. The rest of the crate asks in a few places:
//!
//! - An input is kept in [`Tunnels`], a part of this node: what other nodes unpack, and what this one can.
//! - A Service's [`ForwardingMethod`] asks for it. [`DirectReturn`] decides for which of its addresses that is possible.
//! - An endpoint of such a Service is reached through the tunnel that [`tunnel_to`] returns, if its node unpacks.
//! - A virtual server at such an address needs [`DirectReturnParts`], and its endpoints need [`tunnel_elements`].
//! - This node unpacks as long as [`Demand`] counts a Service that is answered directly (`unpacking`).

mod parts;
mod tunnels;
mod unpacking;

use serde::{Deserialize, Serialize};

pub use parts::{DirectReturnParts, Entrance};
pub use tunnels::{Unpacking, UnpackingPeers};

pub(crate) use parts::{DirectReturn, exits, tunnel_elements};
pub(crate) use tunnels::{Tunnels, tunnel_to};
pub(crate) use unpacking::{Demand, nodes_with_endpoints};

use crate::input::Service;

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

/// What the operator lets Services decide about their [`ForwardingMethod`]. A tunnel concerns more than its Service:
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
