//! Internal and external traffic, and the policy for each.

use serde::{Deserialize, Serialize};

use crate::input::{Options, Service, ServiceKind, TrafficPolicy};

/// Where traffic comes in. Each has a policy of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Traffic {
    /// At the ClusterIP: `internalTrafficPolicy`.
    Internal,
    /// At an external IP, a load balancer's address or a NodePort: `externalTrafficPolicy`.
    External,
}

impl Service {
    /// The policy for internal or external traffic. The external policy counts only if the type or an external IP,
    /// refused or not, exposes the Service. An address that an earlier type left in the status does not expose it:
    /// traffic to it goes to every endpoint, as in upstream.
    pub(crate) fn policy(&self, traffic: Traffic, options: &Options) -> TrafficPolicy {
        let exposed = match self.kind {
            ServiceKind::NodePort | ServiceKind::LoadBalancer => true,
            ServiceKind::ClusterIp | ServiceKind::ExternalName => {
                !self.possible_external_ips(options).is_empty()
            }
        };
        match traffic {
            Traffic::Internal => self.internal_traffic_policy,
            Traffic::External if exposed => self.external_traffic_policy,
            Traffic::External => TrafficPolicy::Cluster,
        }
    }
}
