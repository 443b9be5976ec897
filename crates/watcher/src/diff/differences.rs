//! Differences in the order in which they become a plan.

use std::{collections::BTreeSet, net::IpAddr};

use dummy_interface::Operation::{Bind, Unbind};
use ipvs::{Command, ServiceAddress};
use netfilter::{
    Element,
    Operation::{AddElement, DeleteElement},
};
use service::Urgency;

use crate::{Batch, Plan};

/// Differences by the phase of the plan.
#[derive(Default)]
pub(super) struct Differences {
    pub(super) device: Vec<dummy_interface::Operation>,
    pub(super) prepared_tables: Vec<netfilter::Operation>,
    pub(super) first: Opening,
    pub(super) normal: Opening,
    pub(super) tables: Vec<netfilter::Operation>,
    pub(super) obsolete_vips: Vec<IpAddr>,
    pub(super) leaving_real_servers: Vec<Command>,
    pub(super) obsolete_virtual_servers: Vec<ServiceAddress>,
    /// Those of them that no Service made.
    pub(super) foreign: BTreeSet<ServiceAddress>,
    pub(super) obsolete_elements: Vec<Element>,
    pub(super) obsolete_direct_return: Vec<netfilter::Operation>,
    pub(super) obsolete_tunnels: Vec<dummy_interface::Operation>,
}

/// The differences that make VIPs work, in the order of the plan.
#[derive(Default)]
pub(super) struct Opening {
    /// Elements that are deleted in one transaction with their replacements.
    pub(super) replaced_elements: Vec<Element>,
    pub(super) elements: Vec<Element>,
    pub(super) servers: Vec<Command>,
    pub(super) vips: Vec<IpAddr>,
}

impl Differences {
    /// The differences that make VIPs of this urgency work.
    pub(super) fn opening(&mut self, urgency: Urgency) -> &mut Opening {
        match urgency {
            Urgency::First => &mut self.first,
            Urgency::Normal => &mut self.normal,
        }
    }

    /// Makes the plan, phase by phase.
    pub(super) fn into_plan(self) -> Plan {
        let mut plan = Plan { foreign: self.foreign, ..Plan::default() };
        plan.push(Batch::DummyInterface(self.device));
        plan.push(Batch::Netfilter(self.prepared_tables));
        for opening in [self.first, self.normal] {
            plan.push(sorted(opening.replaced_elements, DeleteElement, Batch::Netfilter));
            plan.push(sorted(opening.elements, AddElement, Batch::Netfilter));
            plan.push(Batch::Ipvs(opening.servers));
            plan.push(sorted(opening.vips, Bind, Batch::DummyInterface));
        }
        plan.push(Batch::Netfilter(self.tables));
        plan.push(sorted(self.obsolete_vips, Unbind, Batch::DummyInterface));
        plan.push(Batch::Ipvs(self.leaving_real_servers));
        let remove = |address: ServiceAddress| Command::DeleteVirtualServer(address.into());
        plan.push(Batch::Ipvs(self.obsolete_virtual_servers.into_iter().map(remove).collect()));
        plan.push(sorted(self.obsolete_elements, DeleteElement, Batch::Netfilter));
        plan.push(Batch::Netfilter(self.obsolete_direct_return));
        plan.push(Batch::DummyInterface(self.obsolete_tunnels));
        plan
    }
}

/// A batch that makes the same change for each key once, in an order that does not depend on how the maps are
/// ordered.
fn sorted<K: Ord, C>(mut keys: Vec<K>, change: fn(K) -> C, batch: fn(Vec<C>) -> Batch) -> Batch {
    keys.sort_unstable();
    keys.dedup();
    batch(keys.into_iter().map(change).collect())
}
