//! The part of the kernel that is ours.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;
use ipvs::{Family, PROBE_ADDRESS, ServiceAddress};
use netfilter::MasqueradeSet;
use service::{AddressExplanation, AddressQuery, Client, Explanation, ObjectName, State};

use crate::Observed;

/// The part of the kernel's state that is ours to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// The families that this node serves; the other one is left alone.
    pub families: BTreeSet<Family>,
    /// The ranges in which no virtual server is ever removed.
    pub exclude: Vec<IpNet>,
    /// The treatment of virtual servers elsewhere that no Service made.
    pub foreign: Foreign,
}

/// The treatment of virtual servers that no Service made (`--foreign-virtual-servers`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Foreign {
    /// They are removed, as kube-proxy does.
    #[default]
    Delete,
    /// They are left alone.
    Keep,
}

impl Foreign {
    /// What an operator does who wants to keep them.
    pub const REMEDY: &str = "to keep those of a range, add it to ipvs.excludeCIDRs; to keep all, set --foreign-virtual-servers=keep";
}

/// Whether our tables have an element for a virtual server: each of ours has one, which is added before it
/// and removed after it.
pub fn has_element(address: &ServiceAddress, our_tables: &netfilter::Observed) -> bool {
    MasqueradeSet::ALL.iter().any(|set| our_tables.elements.contains(&set.element(*address)))
}

/// Whether another program made a virtual server that no Service wants. The one by which a scheduler was
/// probed has no element, and is ours.
pub fn is_foreign(address: &ServiceAddress, observed: &Observed) -> bool {
    *address != PROBE_ADDRESS
        && !has_element(address, &observed.netfilter)
        && !outlived_its_table(address, observed)
}

/// Whether a virtual server is at an address of kube-ipvs0, or of our routes, while its element may be gone
/// with our table. At other addresses, such as the node's own, only an element shows whose it is.
fn outlived_its_table(address: &ServiceAddress, observed: &Observed) -> bool {
    let links = &observed.dummy_interface;
    let is_bound = links.bound.contains(&address.ip) || links.stale_bindings.contains(&address.ip);
    is_bound && !observed.netfilter.installed.contains(&Family::from(address.ip))
}

impl Ownership {
    /// Whether this node serves the family of an address.
    pub(crate) fn serves(&self, ip: &IpAddr) -> bool {
        self.families.contains(&Family::from(*ip))
    }

    /// Explains how a Service is served on this node, and what becomes of a client there. A family that this node does
    /// not serve is left out, and reported as a problem.
    pub fn explain(&self, desired: &State, service: &ObjectName, client: Option<&Client>) -> Explanation {
        let mut explanation = desired.explain(service);
        self.leave_out_unserved(&mut explanation);
        if let Some(client) = client {
            desired.explain_client(&mut explanation, client);
        }
        explanation
    }

    /// Explains whose an address or a port is, in the same way.
    pub fn explain_address(
        &self,
        desired: &State,
        query: &AddressQuery,
        client: Option<&Client>,
    ) -> AddressExplanation {
        let mut explanation = desired.explain_address(query);
        for served in &mut explanation.served {
            self.leave_out_unserved(served);
            if let Some(client) = client {
                desired.explain_client(served, client);
            }
        }
        explanation
    }

    fn leave_out_unserved(&self, explanation: &mut Explanation) {
        let families = explanation.parts.iter().map(|part| part.family);
        let unserved: BTreeSet<_> = families.filter(|family| !self.families.contains(family)).collect();
        explanation.parts.retain(|part| !unserved.contains(&part.family));
        let service = &explanation.service;
        let text = |family| format!("{service}: not served: this node has no {family}");
        let unserved: Vec<_> = unserved.into_iter().map(text).collect();
        explanation.problems.splice(0..0, unserved);
    }

    /// Whether a virtual server that is not wanted is ours to remove.
    pub(crate) fn may_remove(&self, address: &ServiceAddress, observed: &Observed) -> bool {
        self.serves(&address.ip)
            && !self.exclude.iter().any(|range| range.contains(&address.ip))
            && (self.foreign == Foreign::Delete || !is_foreign(address, observed))
    }

    /// The foreign virtual servers that are left alone, in no particular order: those that are kept, and
    /// those in the excluded ranges.
    pub fn kept<'a>(
        &self,
        desired: &State,
        observed: &'a Observed,
    ) -> impl Iterator<Item = &'a ServiceAddress> {
        observed.virtual_servers.keys().filter(|address| {
            desired.virtual_server(address).is_none()
                && is_foreign(address, observed)
                && !self.may_remove(address, observed)
        })
    }
}
