//! Why each endpoint of a Service is a real server or not: for reports on single endpoints.

use std::{borrow::Cow, fmt};

use ipvs::{RealServerAddress, ServiceAddress};

use crate::{
    compute::{EndpointReason, EndpointSelection, EndpointWeight, NotServed, PolicyGroup},
    input::{ObjectName, Share},
    state::State,
};

/// Why an endpoint is a real server of a frontend, or is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointCause {
    /// An EndpointSlice lists it, and these decide.
    Listed(EndpointReason, EndpointSelection),
    /// The same, and it is used with a weight that is not the usual one.
    Weighted(EndpointWeight),
    /// No EndpointSlice of the Service lists it for the port of the frontend.
    NotListed,
}

/// The causes for all endpoints of one Service, as of one moment.
#[derive(Clone, Debug, Default)]
pub struct EndpointCauses(Vec<Group>);

/// Frontends with the same decisions.
#[derive(Clone, Debug)]
struct Group {
    frontends: Vec<ServiceAddress>,
    selection: EndpointSelection,
    /// Sorted by address.
    reasons: Vec<(RealServerAddress, EndpointReason)>,
    /// The weights of those in use that are not the usual ones; sorted by address.
    weights: Vec<(RealServerAddress, EndpointWeight)>,
}

impl EndpointCauses {
    /// Why an endpoint is a real server of a frontend, or is not.
    pub fn cause(&self, frontend: &ServiceAddress, endpoint: &RealServerAddress) -> EndpointCause {
        let group = self.0.iter().find(|group| group.frontends.contains(frontend));
        let found = group.and_then(|group| {
            if let Ok(at) = group.weights.binary_search_by_key(endpoint, |(address, _)| *address) {
                return group.weights.get(at).map(|(_, weight)| EndpointCause::Weighted(*weight));
            }
            let at = group.reasons.binary_search_by_key(endpoint, |(address, _)| *address).ok()?;
            group.reasons.get(at).map(|(_, reason)| EndpointCause::Listed(*reason, group.selection))
        });
        found.unwrap_or(EndpointCause::NotListed)
    }
}

impl EndpointCause {
    /// Whether it is in use and gets no new connections.
    pub fn is_out(&self) -> bool {
        matches!(self, Self::Weighted(weight) if weight.value() == 0)
    }

    /// Whether its weight grows from second to second.
    pub fn starts_slowly(&self) -> bool {
        matches!(self, Self::Weighted(EndpointWeight { share: Share::SlowStart { .. }, .. }))
    }
}

impl From<&PolicyGroup<'_>> for Group {
    fn from(group: &PolicyGroup<'_>) -> Self {
        Self {
            frontends: group.frontends.iter().map(|frontend| frontend.address).collect(),
            selection: group.selection,
            reasons: Vec::new(),
            weights: Vec::new(),
        }
    }
}

impl State {
    /// Decides about a Service again, and returns why each of its endpoints is a real server or not; nothing for one
    /// that is not served.
    pub fn endpoint_causes(&self, service: &ObjectName) -> EndpointCauses {
        let Ok(decisions) = self.inputs.decide(service) else { return EndpointCauses::default() };
        let mut groups = Vec::new();
        for ports in decisions.port_groups() {
            groups.extend(ports.policy_groups().map(|policies| {
                let reasons = ports.endpoints.iter().map(|it| (it.address, policies.reason(it))).collect();
                let weights = policies.weights(decisions.balancing_at(&policies));
                let weights = policies.used.iter().map(|it| it.address).zip(weights);
                let weights = weights.filter(|(_, weight)| !weight.is_plain()).collect();
                Group { reasons, weights, ..Group::from(&policies) }
            }));
        }
        EndpointCauses(groups)
    }

    /// Why a Service that was served at an address and port is not any more.
    pub fn withdrawal_cause(&self, service: &ObjectName) -> Cow<'static, str> {
        match self.inputs.decide(service) {
            Ok(_) => "the Service no longer has this address and port on this node".into(),
            Err(Some(NotServed::Unknown) | None) => {
                "the Service was deleted, or another proxy serves it".into()
            }
            Err(Some(why)) => why.to_string().into(),
        }
    }
}

impl fmt::Display for EndpointCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listed(EndpointReason::Used, EndpointSelection::Draining(_)) => {
                f.write_str("terminating but serving, and no endpoint is ready")
            }
            Self::Listed(EndpointReason::Used, _) => f.write_str("ready"),
            Self::Listed(reason, _) => f.write_str(reason.cause()),
            Self::Weighted(weight) => write!(f, "weight {weight}"),
            Self::NotListed => f.write_str("no EndpointSlice lists it"),
        }
    }
}
