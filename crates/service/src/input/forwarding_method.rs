//! How what comes in at external addresses reaches endpoints.

use serde::{Deserialize, Serialize};

use super::Service;

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

impl Service {
    /// The method that its annotations ask for.
    pub(crate) fn forwarding_method(&self) -> Option<ForwardingMethod> {
        self.balancing.as_ref()?.forwarding_method
    }
}
