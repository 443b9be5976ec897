//! Which endpoints of a port are used.

use crate::{TrafficPolicy, endpoints::PortEndpoint, slice::Traits};

/// The decision over the endpoints of one port: it is taken once, for all of them together, and then
/// says of each whether it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    /// The ready endpoints within reach.
    Ready(Reach),
    /// None of them is ready. Those that terminate but still serve are better than nothing (KEP-1669).
    Draining(Reach),
    /// There are neither.
    Nothing,
}

/// How far traffic may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// To every endpoint of the cluster.
    Cluster,
    /// To the endpoints that run on this node: the policy demands it.
    Local,
    /// To the endpoints that are hinted for this node (KEP-3015).
    HintedNode,
    /// To the endpoints that are hinted for this node's zone (KEP-2433).
    HintedZone,
}

impl Selection {
    /// Decides for a traffic policy.
    pub(crate) fn decide(endpoints: &[PortEndpoint], policy: TrafficPolicy) -> Self {
        // Hints prefer, a policy demands: they do not mix.
        let reach = match policy {
            TrafficPolicy::Local => Reach::Local,
            TrafficPolicy::Cluster => Reach::hinted(endpoints),
        };
        let draining = match reach {
            Reach::Local => Reach::Local,
            // Hints are counted over ready endpoints, and when none is left they mean nothing.
            Reach::Cluster | Reach::HintedNode | Reach::HintedZone => Reach::Cluster,
        };
        [Self::Ready(reach), Self::Draining(draining)]
            .into_iter()
            .find(|selection| endpoints.iter().any(|endpoint| selection.uses(endpoint)))
            .unwrap_or(Self::Nothing)
    }

    /// Whether it takes this endpoint.
    pub(crate) fn uses(self, endpoint: &PortEndpoint) -> bool {
        let (needed, reach) = match self {
            Self::Ready(reach) => (Traits::READY, reach),
            Self::Draining(reach) => (Traits::SERVING | Traits::TERMINATING, reach),
            Self::Nothing => return false,
        };
        endpoint.traits.contains(needed | reach.needs())
    }
}

impl Reach {
    /// What an endpoint must be to be reached.
    fn needs(self) -> Traits {
        match self {
            Self::Cluster => Traits::empty(),
            Self::Local => Traits::LOCAL,
            Self::HintedNode => Traits::FOR_THIS_NODE,
            Self::HintedZone => Traits::FOR_THIS_ZONE,
        }
    }

    /// Hints count only when every ready endpoint has them and one is for us: half the hints would
    /// send all traffic to a part of the endpoints that nobody sized for it.
    fn hinted(endpoints: &[PortEndpoint]) -> Self {
        let ready =
            || endpoints.iter().map(|endpoint| endpoint.traits).filter(|it| it.contains(Traits::READY));
        let counts = |hinted, for_us| {
            ready().all(|traits| traits.contains(hinted)) && ready().any(|traits| traits.contains(for_us))
        };
        if counts(Traits::NODE_HINTS, Traits::FOR_THIS_NODE) {
            Self::HintedNode
        } else if counts(Traits::ZONE_HINTS, Traits::FOR_THIS_ZONE) {
            Self::HintedZone
        } else {
            Self::Cluster
        }
    }
}
