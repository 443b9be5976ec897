//! What an [`EndpointSelection`] means for one endpoint, and for its hints.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    compute::{EndpointScope, EndpointSelection, PolicyGroup, PortEndpoint},
    input::Traits,
};

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
    /// The same address is listed once more, and what is said there counts.
    ListedAgain,
}

/// Why hints do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HintsIgnored {
    /// A ready endpoint has none.
    NotOnEveryEndpoint,
    /// No ready endpoint is hinted for this node or its zone.
    NoneForThisNode,
    /// The Node has no label `topology.kubernetes.io/zone`.
    NodeWithoutZone,
    /// A policy demands where hints only prefer.
    PolicyLocal,
    /// The client is answered directly, by whichever node: all nodes must choose among the same endpoints.
    DirectReturn,
}

impl PolicyGroup<'_> {
    /// Whether an endpoint of the group's port is used, and if not, what decides.
    pub(super) fn reason(&self, endpoint: &PortEndpoint) -> EndpointReason {
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
    /// Why hints do not count, if some endpoints have any: they are for ready endpoints, and prefer where a policy
    /// does not demand.
    pub(super) fn hints_ignored(
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

impl fmt::Display for EndpointReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Used => "used",
            Self::NotReady => "not used: conditions.ready is false",
            Self::NoLongerServing => "not used: conditions.terminating is true, and conditions.serving false",
            Self::Terminating => "not used: conditions.terminating is true, and others are ready",
            Self::OnAnotherNode => "not used: nodeName is another node, and the policy is Local",
            Self::HintedForOtherNodes => "not used: hints.forNodes are other nodes",
            Self::HintedForOtherZones => "not used: hints.forZones are other zones",
            Self::BeyondLimit => "not used: as many as a virtual server can have come before it",
            Self::ListedAgain => "passed over: another entry has the same address, and that one counts",
        })
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
