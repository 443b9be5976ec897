//! The part of the kernel that is ours.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;
use ipvs::{Family, ServiceAddress};
use service::{Explanation, ObjectName, State};

/// The part of the kernel's state that is ours to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// The families that this node serves; the other one is left alone.
    pub families: BTreeSet<Family>,
    /// The ranges in which no virtual server is ever removed.
    pub exclude: Vec<IpNet>,
}

impl Ownership {
    /// Whether this node serves the family of an address.
    pub(crate) fn serves(&self, ip: &IpAddr) -> bool {
        self.families.contains(&Family::from(*ip))
    }

    /// Explains how a Service is served on this node. A family that this node does not serve is left out, and
    /// reported as a problem.
    pub fn explain(&self, desired: &State, service: &ObjectName) -> Explanation {
        let mut explanation = desired.explain(service);
        let families = explanation.parts.iter().map(|part| part.family);
        let unserved: BTreeSet<_> = families.filter(|family| !self.families.contains(family)).collect();
        explanation.parts.retain(|part| !unserved.contains(&part.family));
        let in_words = |family| format!("{service}: this node has no {family}: nothing of it is served");
        explanation.problems.splice(0..0, unserved.into_iter().map(in_words));
        explanation
    }

    /// Whether a virtual server that is not wanted is ours to remove.
    pub(crate) fn may_remove(&self, address: &ServiceAddress) -> bool {
        self.serves(&address.ip) && !self.exclude.iter().any(|range| range.contains(&address.ip))
    }
}
