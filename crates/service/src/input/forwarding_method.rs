//! How what comes in at external addresses reaches endpoints.

use serde::{Deserialize, Serialize};

use super::{Options, Service};

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

    /// The method of a Service that asks for this one, if for any.
    fn method(self, asked: Option<ForwardingMethod>) -> ForwardingMethod {
        match self {
            Self::Masquerade => ForwardingMethod::Masquerade,
            Self::ByAnnotation => asked.unwrap_or(ForwardingMethod::Masquerade),
            Self::Tunnel => asked.unwrap_or(ForwardingMethod::Tunnel),
        }
    }
}

impl Options {
    /// How what comes in at a Service's external addresses is to reach the endpoints.
    pub(crate) fn forwarding_method_of(&self, service: &Service) -> ForwardingMethod {
        self.external_forwarding.method(service.forwarding_method())
    }

    /// Whether a Service asks for a tunnel that the operator lets no annotation ask for.
    pub(crate) fn refuses_tunnel_of(&self, service: &Service) -> bool {
        !self.external_forwarding.may_tunnel()
            && service.forwarding_method() == Some(ForwardingMethod::Tunnel)
    }
}

impl Service {
    /// The method that its annotations ask for.
    pub(crate) fn forwarding_method(&self) -> Option<ForwardingMethod> {
        self.balancing.as_ref()?.forwarding_method
    }
}
