//! Why each endpoint of a Service is a real server or not: for reports on single endpoints.

use std::{borrow::Cow, fmt};

use ipvs::{RealServerAddress, ServiceAddress};

use crate::{
    compute::{EndpointReason, EndpointSelection, NotServed, PolicyGroup},
    input::ObjectName,
    state::State,
};

/// Why an endpoint is a real server of a frontend, or is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointCause {
    /// An EndpointSlice lists it, and these decide.
    Listed(EndpointReason, EndpointSelection),
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
}

impl EndpointCauses {
    /// Why an endpoint is a real server of a frontend, or is not.
    pub fn cause(&self, frontend: &ServiceAddress, endpoint: &RealServerAddress) -> EndpointCause {
        let group = self.0.iter().find(|group| group.frontends.contains(frontend));
        let found = group.and_then(|group| {
            let at = group.reasons.binary_search_by_key(endpoint, |(address, _)| *address).ok()?;
            group.reasons.get(at).map(|(_, reason)| EndpointCause::Listed(*reason, group.selection))
        });
        found.unwrap_or(EndpointCause::NotListed)
    }
}

impl From<&PolicyGroup<'_>> for Group {
    fn from(group: &PolicyGroup<'_>) -> Self {
        Self {
            frontends: group.frontends.iter().map(|frontend| frontend.address).collect(),
            selection: group.selection,
            reasons: Vec::new(),
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
                Group { reasons, ..Group::from(&policies) }
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
            Self::NotListed => f.write_str("no EndpointSlice lists it"),
        }
    }
}
