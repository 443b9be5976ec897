//! Which endpoints of a port are used.

use crate::{
    Choice, HintsIgnored, Reach, Traffic, TrafficPolicy, Verdict, endpoints::PortEndpoint, slice::Traits,
};

impl Choice {
    /// Decides for traffic that comes in one way, by the policy for it. Hints prefer, a policy demands:
    /// they do not mix.
    pub(crate) fn decide(endpoints: &[PortEndpoint], traffic: Traffic, policy: TrafficPolicy) -> Self {
        let local = || [Self::Ready(Reach::Local), Self::Draining(Reach::Local)];
        // Hints are counted over ready endpoints, and when none is left they mean nothing.
        let cluster = || [Self::Ready(Reach::hinted(endpoints)), Self::Draining(Reach::Cluster)];
        match (policy, traffic) {
            (TrafficPolicy::Cluster, _) => Self::first_of(cluster(), endpoints),
            (TrafficPolicy::Local, Traffic::Internal) => Self::first_of(local(), endpoints),
            // Through a node without endpoints the address still works for the pods of that node, as
            // upstream has it. A load balancer asks at the health check port and sends nobody here.
            (TrafficPolicy::Local, Traffic::External) => {
                Self::first_of(local().into_iter().chain(cluster()), endpoints)
            }
        }
    }

    /// Whether a policy Local finds no endpoint on this node although the cluster has one.
    pub(crate) fn misses_local(endpoints: &[PortEndpoint]) -> bool {
        let any = |policy| Self::decide(endpoints, Traffic::Internal, policy) != Self::Nothing;
        !any(TrafficPolicy::Local) && any(TrafficPolicy::Cluster)
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

    /// The same with the reason.
    pub(crate) fn verdict(self, endpoint: &PortEndpoint) -> Verdict {
        if self.uses(endpoint) {
            return Verdict::Used;
        }
        let has = |traits| endpoint.traits.contains(traits);
        // What no decision could use comes first. What is left is out of reach, or worse than others; hints are for
        // ready endpoints alone.
        match self {
            _ if !has(Traits::READY) && !has(Traits::TERMINATING) => Verdict::NotReady,
            _ if !has(Traits::READY) && !has(Traits::SERVING) => Verdict::NoLongerServing,
            Self::Nothing => Verdict::OnAnotherNode,
            Self::Ready(Reach::Local) | Self::Draining(Reach::Local) if !has(Traits::LOCAL) => {
                Verdict::OnAnotherNode
            }
            Self::Ready(Reach::HintedNode) if has(Traits::READY) => Verdict::HintedForOtherNodes,
            Self::Ready(Reach::HintedZone) if has(Traits::READY) => Verdict::HintedForOtherZones,
            Self::Ready(_) | Self::Draining(_) => Verdict::Terminating,
        }
    }

    /// Why hints do not count, if some endpoints have any: they are for ready endpoints, and prefer where a policy
    /// does not demand.
    pub(crate) fn hints_ignored(
        self,
        endpoints: &[PortEndpoint],
        zone: Option<&str>,
    ) -> Option<HintsIgnored> {
        let hints = Traits::NODE_HINTS | Traits::ZONE_HINTS;
        let ready = || endpoints.iter().map(|it| it.traits).filter(|it| it.contains(Traits::READY));
        if !ready().any(|traits| traits.intersects(hints)) {
            return None;
        }
        match self {
            Self::Ready(Reach::Cluster) if !ready().all(|traits| traits.intersects(hints)) => {
                Some(HintsIgnored::NotOnEveryEndpoint)
            }
            Self::Ready(Reach::Cluster) if zone.is_none() => Some(HintsIgnored::NodeWithoutZone),
            Self::Ready(Reach::Cluster) => Some(HintsIgnored::NoneForThisNode),
            Self::Ready(Reach::Local) => Some(HintsIgnored::PolicyLocal),
            Self::Ready(Reach::HintedNode | Reach::HintedZone) | Self::Draining(_) | Self::Nothing => None,
        }
    }

    /// The first that takes any endpoint.
    fn first_of(selections: impl IntoIterator<Item = Self>, endpoints: &[PortEndpoint]) -> Self {
        selections
            .into_iter()
            .find(|selection| endpoints.iter().any(|endpoint| selection.uses(endpoint)))
            .unwrap_or(Self::Nothing)
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
