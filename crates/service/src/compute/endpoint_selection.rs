//! The endpoints of a port that are used.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{PortEndpoint, Traffic};
use crate::input::{TrafficPolicy, Traits};

/// Which endpoints of a port are used. It depends on all of them together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "use", content = "reach", rename_all = "kebab-case")]
pub enum EndpointSelection {
    /// The ready endpoints in the scope.
    Ready(EndpointScope),
    /// None of them is ready. Those that terminate but still serve are better than nothing (KEP-1669).
    Draining(EndpointScope),
    /// There are neither.
    Nothing,
}

/// The endpoints among which traffic stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndpointScope {
    /// To every endpoint of the cluster.
    Cluster,
    /// To the endpoints that run on this node: the policy demands it.
    Local,
    /// To the endpoints that are hinted for this node (KEP-3015).
    HintedNode,
    /// To the endpoints that are hinted for this node's zone (KEP-2433).
    HintedZone,
}

impl EndpointSelection {
    /// The selection for internal or external traffic under its policy. Hints prefer, a policy demands: they do not
    /// mix.
    pub(super) fn new(endpoints: &[PortEndpoint], traffic: Traffic, policy: TrafficPolicy) -> Self {
        let local = || [Self::Ready(EndpointScope::Local), Self::Draining(EndpointScope::Local)];
        // Hints are counted over ready endpoints, and when none is left they mean nothing.
        let cluster =
            || [Self::Ready(EndpointScope::hinted(endpoints)), Self::Draining(EndpointScope::Cluster)];
        match (policy, traffic) {
            (TrafficPolicy::Cluster, _) => Self::first_of(cluster(), endpoints),
            (TrafficPolicy::Local, Traffic::Internal) => Self::first_of(local(), endpoints),
            // Without an endpoint on this node the address still works for this node and its pods, as in
            // upstream (kubernetes#97081). Our table keeps other clients away from it, if it knows those pods.
            (TrafficPolicy::Local, Traffic::External) => {
                Self::first_of(local().into_iter().chain(cluster()), endpoints)
            }
        }
    }

    /// The selection where all nodes must choose among the same endpoints.
    pub(super) fn without_hints(endpoints: &[PortEndpoint]) -> Self {
        let scope = EndpointScope::Cluster;
        Self::first_of([Self::Ready(scope), Self::Draining(scope)], endpoints)
    }

    /// Whether a policy Local finds no endpoint on this node although the cluster has one.
    pub(super) fn misses_local(endpoints: &[PortEndpoint]) -> bool {
        let any = |policy| Self::new(endpoints, Traffic::Internal, policy) != Self::Nothing;
        !any(TrafficPolicy::Local) && any(TrafficPolicy::Cluster)
    }

    /// Whether this endpoint is selected.
    pub(crate) fn selects(self, endpoint: &PortEndpoint) -> bool {
        let (needed, reach) = match self {
            Self::Ready(reach) => (Traits::READY, reach),
            Self::Draining(reach) => (Traits::SERVING | Traits::TERMINATING, reach),
            Self::Nothing => return false,
        };
        endpoint.traits.contains(needed | reach.needs())
    }

    /// Among which endpoints it selects; `None` if there are none.
    pub(crate) fn scope(self) -> Option<EndpointScope> {
        match self {
            Self::Ready(scope) | Self::Draining(scope) => Some(scope),
            Self::Nothing => None,
        }
    }

    /// The first that selects any endpoint.
    fn first_of(selections: impl IntoIterator<Item = Self>, endpoints: &[PortEndpoint]) -> Self {
        selections
            .into_iter()
            .find(|selection| endpoints.iter().any(|endpoint| selection.selects(endpoint)))
            .unwrap_or(Self::Nothing)
    }
}

impl EndpointScope {
    /// The traits that an endpoint in this scope has.
    fn needs(self) -> Traits {
        match self {
            Self::Cluster => Traits::empty(),
            Self::Local => Traits::LOCAL,
            Self::HintedNode => Traits::FOR_THIS_NODE,
            Self::HintedZone => Traits::FOR_THIS_ZONE,
        }
    }

    /// Hints count only when every ready endpoint has them and one is for us: half the hints would
    /// send all traffic to a part of the endpoints that was not sized for it.
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

impl fmt::Display for EndpointSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(reach) => write!(f, "the ready endpoints {reach}"),
            Self::Draining(reach) => {
                write!(f, "none is ready {reach}: those that terminate and still serve")
            }
            Self::Nothing => f.write_str("no endpoint can be used: clients are refused"),
        }
    }
}

impl fmt::Display for EndpointScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cluster => "of the cluster",
            Self::Local => "on this node",
            Self::HintedNode => "hinted for this node",
            Self::HintedZone => "hinted for this node's zone",
        })
    }
}
