//! The endpoints of a port that are used, and why others are not.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{PolicyGroup, PortEndpoint};
use crate::input::{Traffic, TrafficPolicy, Traits};

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
                write!(f, "the terminating endpoints {reach} that still serve: none is ready")
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

/// Whether an endpoint is used, and what decides if it is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndpointReason {
    /// It is a real server at those addresses of its part that no other Service has.
    Used,
    /// `conditions.ready` is false, and it does not terminate.
    NotReady,
    /// `conditions.terminating` is true and `conditions.serving` false.
    NoLongerServing,
    /// `conditions.terminating` is true, and there are ready ones.
    Terminating,
    /// Its `nodeName` is not this node, and the policy is Local.
    OnAnotherNode,
    /// Its `hints.forNodes` do not name this node.
    HintedForOtherNodes,
    /// Its `hints.forZones` do not name this node's zone.
    HintedForOtherZones,
    /// The virtual server has as many real servers as it may:
    /// [`MAX_REAL_SERVERS_PER_VIRTUAL_SERVER`](crate::MAX_REAL_SERVERS_PER_VIRTUAL_SERVER).
    BeyondLimit,
    /// The same address is listed once more, and that entry counts.
    ListedAgain,
}

/// Why hints are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HintsIgnored {
    /// A ready endpoint has none.
    NotOnEveryEndpoint,
    /// No ready endpoint is hinted for this node or its zone.
    NoneForThisNode,
    /// The Node has no label `topology.kubernetes.io/zone`.
    NodeWithoutZone,
    /// The policy Local overrides hints.
    PolicyLocal,
    /// The client is answered directly, by whichever node: all nodes must choose among the same endpoints.
    DirectReturn,
}

impl PolicyGroup<'_> {
    /// Whether an endpoint of the group's port is used, and if not, what decides.
    pub(crate) fn reason(&self, endpoint: &PortEndpoint) -> EndpointReason {
        if self.used.binary_search_by_key(&endpoint.address, |used| used.address).is_ok() {
            return EndpointReason::Used;
        }
        let has = |traits| endpoint.traits.contains(traits);
        // Reasons that rule an endpoint out under every policy come first. What is left is out of reach, or worse than
        // others. Hints are for ready endpoints alone.
        match self.selection {
            selection if selection.selects(endpoint) => EndpointReason::BeyondLimit,
            _ if !has(Traits::READY) && !has(Traits::TERMINATING) => EndpointReason::NotReady,
            _ if !has(Traits::READY) && !has(Traits::SERVING) => EndpointReason::NoLongerServing,
            EndpointSelection::Nothing => EndpointReason::OnAnotherNode,
            EndpointSelection::Ready(EndpointScope::Local)
            | EndpointSelection::Draining(EndpointScope::Local)
                if !has(Traits::LOCAL) =>
            {
                EndpointReason::OnAnotherNode
            }
            EndpointSelection::Ready(EndpointScope::HintedNode) if has(Traits::READY) => {
                EndpointReason::HintedForOtherNodes
            }
            EndpointSelection::Ready(EndpointScope::HintedZone) if has(Traits::READY) => {
                EndpointReason::HintedForOtherZones
            }
            EndpointSelection::Ready(_) | EndpointSelection::Draining(_) => EndpointReason::Terminating,
        }
    }
}

impl EndpointSelection {
    /// Why hints are ignored, if some endpoints have any: they are for ready endpoints, and prefer where a policy
    /// does not demand.
    pub(crate) fn hints_ignored(
        self,
        endpoints: &[PortEndpoint],
        zone: Option<&str>,
        direct_return: bool,
    ) -> Option<HintsIgnored> {
        let hints = Traits::NODE_HINTS | Traits::ZONE_HINTS;
        let ready = || endpoints.iter().map(|it| it.traits).filter(|it| it.contains(Traits::READY));
        if !ready().any(|traits| traits.intersects(hints)) {
            return None;
        }
        match self {
            _ if direct_return => Some(HintsIgnored::DirectReturn),
            Self::Ready(EndpointScope::Cluster) if !ready().all(|traits| traits.intersects(hints)) => {
                Some(HintsIgnored::NotOnEveryEndpoint)
            }
            Self::Ready(EndpointScope::Cluster) if zone.is_none() => Some(HintsIgnored::NodeWithoutZone),
            Self::Ready(EndpointScope::Cluster) => Some(HintsIgnored::NoneForThisNode),
            Self::Ready(EndpointScope::Local) => Some(HintsIgnored::PolicyLocal),
            Self::Ready(EndpointScope::HintedNode | EndpointScope::HintedZone)
            | Self::Draining(_)
            | Self::Nothing => None,
        }
    }
}

impl EndpointReason {
    /// What decides, without whether it is used.
    pub fn cause(self) -> &'static str {
        match self {
            Self::Used => "used",
            Self::NotReady => "conditions.ready is false",
            Self::NoLongerServing => "conditions.terminating is true, and conditions.serving is false",
            Self::Terminating => "conditions.terminating is true, and others are ready",
            Self::OnAnotherNode => "nodeName is another node, and the policy is Local",
            Self::HintedForOtherNodes => "hints.forNodes names only other nodes",
            Self::HintedForOtherZones => "hints.forZones names only other zones",
            Self::BeyondLimit => "beyond the limit of endpoints of a virtual server",
            Self::ListedAgain => "another entry with the same address is used",
        }
    }
}

impl fmt::Display for EndpointReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Used => "",
            Self::ListedAgain => "ignored: ",
            _ => "not used: ",
        })?;
        f.write_str(self.cause())
    }
}

impl fmt::Display for HintsIgnored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotOnEveryEndpoint => "not every ready endpoint has them",
            Self::NoneForThisNode => "none is for this node or its zone",
            Self::NodeWithoutZone => "the Node has no label topology.kubernetes.io/zone",
            Self::PolicyLocal => "the policy is Local",
            Self::DirectReturn => "with direct return all nodes choose among the same endpoints",
        })
    }
}
