//! A plan: the operations that make the kernel as desired, as a value, and their order.

use std::{collections::BTreeSet, fmt, net::IpAddr};

use dummy_interface::Operation::{Bind, Unbind};
use ipvs::{Command, Command::DeleteVirtualServer, ServiceAddress, VirtualServerId};
use netfilter::{
    Element,
    Operation::{AddElement, DeleteElement},
};
use serde::{Deserialize, Serialize};
use service::Urgency;

use crate::Operation;

/// Operations in the order in which they must be done. Prints one operation a line, and marks those that
/// delete a foreign virtual server.
///
/// The same type serves the first sync, one changed endpoint, the periodic repair and the forced
/// resync.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The operations by subsystem. Neighbouring batches are on different subsystems, and none is empty.
    pub batches: Vec<Batch>,
    /// The foreign ones among the virtual servers that are deleted: no Service made them.
    pub foreign: BTreeSet<ServiceAddress>,
}

/// Operations on one subsystem of the kernel: one exchange with the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Batch {
    /// Operations on virtual and real servers.
    Ipvs(Vec<Command>),
    /// Operations on our nf_tables tables, in one transaction.
    Netfilter(Vec<netfilter::Operation>),
    /// Operations on kube-ipvs0.
    #[serde(rename = "link")]
    DummyInterface(Vec<dummy_interface::Operation>),
}

impl Plan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// How many operations there are.
    pub fn len(&self) -> usize {
        self.batches.iter().map(Batch::len).sum()
    }

    /// The operations one by one.
    pub fn operations(&self) -> impl Iterator<Item = Operation> {
        self.batches.iter().flat_map(Batch::operations)
    }

    /// The operations on virtual and real servers.
    pub fn commands(&self) -> impl Iterator<Item = &Command> {
        self.batches.iter().flat_map(Batch::commands)
    }

    /// The foreign virtual server that an operation deletes, if it does.
    pub fn foreign_deleted_by(&self, operation: &Operation) -> Option<&ServiceAddress> {
        match operation {
            Operation::Ipvs(DeleteVirtualServer(VirtualServerId::Address(address))) => {
                self.foreign.get(address)
            }
            _ => None,
        }
    }

    /// An operation as a line: its words, and the mark of one that deletes a foreign virtual server.
    pub fn line(&self, operation: &Operation) -> String {
        let mark = self.foreign_deleted_by(operation).map_or("", |_| " (foreign)");
        format!("{operation}{mark}")
    }

    /// Removes the operations on virtual and real servers that are not to be kept.
    pub fn retain_commands(&mut self, mut keep: impl FnMut(&Command) -> bool) {
        for mut batch in std::mem::take(&mut self.batches) {
            if let Batch::Ipvs(commands) = &mut batch {
                commands.retain(&mut keep);
            }
            self.push(batch);
        }
    }

    /// Appends operations.
    pub fn push(&mut self, batch: Batch) {
        if batch.is_empty() {
            return;
        }
        match (self.batches.last_mut(), batch) {
            (Some(Batch::Ipvs(last)), Batch::Ipvs(more)) => last.extend(more),
            (Some(Batch::Netfilter(last)), Batch::Netfilter(more)) => last.extend(more),
            (Some(Batch::DummyInterface(last)), Batch::DummyInterface(more)) => last.extend(more),
            (_, another) => self.batches.push(another),
        }
    }
}

impl FromIterator<Operation> for Plan {
    fn from_iter<I: IntoIterator<Item = Operation>>(operations: I) -> Self {
        let mut plan = Self::default();
        operations.into_iter().for_each(|operation| plan.push(operation.into()));
        plan
    }
}

impl Batch {
    fn len(&self) -> usize {
        match self {
            Self::Ipvs(commands) => commands.len(),
            Self::Netfilter(changes) => changes.len(),
            Self::DummyInterface(changes) => changes.len(),
        }
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn operations(&self) -> Vec<Operation> {
        match self {
            Self::Ipvs(commands) => commands.iter().cloned().map(Operation::from).collect(),
            Self::Netfilter(changes) => changes.iter().copied().map(Operation::from).collect(),
            Self::DummyInterface(changes) => changes.iter().copied().map(Operation::from).collect(),
        }
    }

    fn commands(&self) -> &[Command] {
        if let Self::Ipvs(commands) = self { commands } else { &[] }
    }
}

impl From<Operation> for Batch {
    fn from(operation: Operation) -> Self {
        match operation {
            Operation::Ipvs(command) => Self::Ipvs(vec![command]),
            Operation::Netfilter(change) => Self::Netfilter(vec![change]),
            Operation::DummyInterface(change) => Self::DummyInterface(vec![change]),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.operations().try_for_each(|operation| writeln!(f, "{}", self.line(&operation)))
    }
}

/// Differences by the phase of the plan.
#[derive(Default)]
pub(crate) struct Differences {
    pub(crate) device: Vec<dummy_interface::Operation>,
    pub(crate) prepared_tables: Vec<netfilter::Operation>,
    pub(crate) first: Opening,
    pub(crate) normal: Opening,
    pub(crate) tables: Vec<netfilter::Operation>,
    pub(crate) obsolete_vips: Vec<IpAddr>,
    pub(crate) leaving_real_servers: Vec<Command>,
    pub(crate) obsolete_virtual_servers: Vec<ServiceAddress>,
    /// Those of them that no Service made.
    pub(crate) foreign: BTreeSet<ServiceAddress>,
    pub(crate) obsolete_elements: Vec<Element>,
    pub(crate) obsolete_direct_return: Vec<netfilter::Operation>,
    pub(crate) obsolete_tunnels: Vec<dummy_interface::Operation>,
}

/// The differences that make VIPs work, in the order of the plan.
#[derive(Default)]
pub(crate) struct Opening {
    /// Elements that are deleted in one transaction with their replacements.
    pub(crate) replaced_elements: Vec<Element>,
    pub(crate) elements: Vec<Element>,
    pub(crate) servers: Vec<Command>,
    pub(crate) vips: Vec<IpAddr>,
}

impl Differences {
    /// The differences that make VIPs of this urgency work.
    pub(crate) fn opening(&mut self, urgency: Urgency) -> &mut Opening {
        match urgency {
            Urgency::First => &mut self.first,
            Urgency::Normal => &mut self.normal,
        }
    }

    /// Makes the plan, phase by phase.
    pub(crate) fn into_plan(self) -> Plan {
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
        let remove = |address: ServiceAddress| DeleteVirtualServer(address.into());
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
