//! A plan: the operations that make the kernel as desired, as a value.

use std::{collections::BTreeSet, fmt};

use ipvs::{ServiceAddress, VirtualServerId};
use serde::{Deserialize, Serialize};
use service::Key;

/// Operations in the order in which they must be done. Prints one operation a line, and marks those that delete a
/// foreign virtual server.
///
/// The same type serves the first sync, one changed endpoint, the periodic repair and the forced
/// resync.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The operations by seam. Neighbouring batches are on different seams, and none is empty.
    pub batches: Vec<Batch>,
    /// The foreign ones among the virtual servers that are deleted: no Service made them.
    pub foreign: BTreeSet<ServiceAddress>,
}

/// Operations on one seam: one exchange with the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Batch {
    /// Operations on virtual and real servers.
    Ipvs(Vec<ipvs::Command>),
    /// Operations on our nf_tables tables, in one transaction.
    Netfilter(Vec<netfilter::Operation>),
    /// Operations on kube-ipvs0.
    #[serde(rename = "link")]
    DummyInterface(Vec<dummy_interface::Operation>),
}

/// One operation on one of the three seams.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// An operation on a virtual or real server.
    Ipvs(ipvs::Command),
    /// An operation on our nf_tables tables.
    Netfilter(netfilter::Operation),
    /// An operation on kube-ipvs0.
    DummyInterface(dummy_interface::Operation),
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
    pub fn commands(&self) -> impl Iterator<Item = &ipvs::Command> {
        self.batches.iter().flat_map(Batch::commands)
    }

    /// The foreign virtual server that an operation deletes, if it does.
    pub fn foreign_deleted_by(&self, operation: &Operation) -> Option<&ServiceAddress> {
        match operation {
            Operation::Ipvs(ipvs::Command::DeleteVirtualServer(VirtualServerId::Address(address))) => {
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
    pub fn retain_commands(&mut self, mut keep: impl FnMut(&ipvs::Command) -> bool) {
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
        self.commands().len() + self.table_operations().len() + self.dummy_interface_operations().len()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn operations(&self) -> impl Iterator<Item = Operation> {
        let commands = self.commands().iter().cloned().map(Operation::from);
        let of_tables = self.table_operations().iter().copied().map(Operation::from);
        let of_dummy_interface = self.dummy_interface_operations().iter().copied().map(Operation::from);
        commands.chain(of_tables).chain(of_dummy_interface)
    }

    fn commands(&self) -> &[ipvs::Command] {
        if let Self::Ipvs(commands) = self { commands } else { &[] }
    }

    fn table_operations(&self) -> &[netfilter::Operation] {
        if let Self::Netfilter(changes) = self { changes } else { &[] }
    }

    fn dummy_interface_operations(&self) -> &[dummy_interface::Operation] {
        if let Self::DummyInterface(changes) = self { changes } else { &[] }
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

impl Operation {
    /// The key that it changes; `None` for virtual servers of firewall marks, which belong to no Service.
    pub fn key(&self) -> Option<Key> {
        use dummy_interface::Operation::{Bind, EnsureDevice, EnsureTunnel, RemoveTunnel, Unbind};
        use netfilter::Operation::{
            AddDirectReturn, AddElement, DeleteElement, InstallTable, PrepareTable, RemoveDirectReturn,
        };
        Some(match self {
            Self::Ipvs(command) => Key::VirtualServer(command.address()?),
            Self::Netfilter(PrepareTable(family)) => Key::Table(*family),
            Self::Netfilter(InstallTable(family)) => Key::Rules(*family),
            Self::Netfilter(AddElement(element) | DeleteElement(element)) => Key::Element(*element),
            Self::Netfilter(AddDirectReturn(family) | RemoveDirectReturn(family))
            | Self::DummyInterface(EnsureTunnel(family) | RemoveTunnel(family)) => Key::Tunnel(*family),
            Self::DummyInterface(EnsureDevice) => Key::Device,
            Self::DummyInterface(Bind(vip) | Unbind(vip)) => Key::Vip(*vip),
        })
    }

    /// Whether everything else rests on this operation: it makes a table, or kube-ipvs0.
    pub fn is_foundation(&self) -> bool {
        matches!(
            self,
            Self::Netfilter(netfilter::Operation::PrepareTable(_) | netfilter::Operation::InstallTable(_))
                | Self::DummyInterface(dummy_interface::Operation::EnsureDevice)
        )
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.operations().try_for_each(|operation| writeln!(f, "{}", self.line(&operation)))
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ipvs(command) => command.fmt(f),
            Self::Netfilter(change) => change.fmt(f),
            Self::DummyInterface(change) => change.fmt(f),
        }
    }
}

impl From<ipvs::Command> for Operation {
    fn from(command: ipvs::Command) -> Self {
        Self::Ipvs(command)
    }
}

impl From<netfilter::Operation> for Operation {
    fn from(change: netfilter::Operation) -> Self {
        Self::Netfilter(change)
    }
}

impl From<dummy_interface::Operation> for Operation {
    fn from(change: dummy_interface::Operation) -> Self {
        Self::DummyInterface(change)
    }
}
