//! One operation of a plan, on any of the three subsystems.

use std::fmt;

use dummy_interface::Operation::{Bind, EnsureDevice, EnsureTunnel, RemoveTunnel, Unbind};
use ipvs::Command::{
    AddRealServer, AddVirtualServer, DeleteRealServer, DeleteVirtualServer, EditRealServer, EditVirtualServer,
};
use netfilter::Operation::{
    AddDirectReturn, AddElement, DeleteElement, InstallTable, PrepareTable, RemoveDirectReturn,
};
use serde::{Deserialize, Serialize};
use service::Key;

/// One operation on one of the three subsystems.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// An operation on a virtual or real server.
    Ipvs(ipvs::Command),
    /// An operation on our nf_tables tables.
    Netfilter(netfilter::Operation),
    /// An operation on kube-ipvs0.
    DummyInterface(dummy_interface::Operation),
}

impl Operation {
    /// The kind of this operation.
    pub fn kind(&self) -> OperationKind {
        match self {
            Self::Ipvs(AddVirtualServer(_)) => OperationKind::AddVirtualServer,
            Self::Ipvs(EditVirtualServer(_)) => OperationKind::EditVirtualServer,
            Self::Ipvs(DeleteVirtualServer(_)) => OperationKind::DeleteVirtualServer,
            Self::Ipvs(AddRealServer(..)) => OperationKind::AddRealServer,
            Self::Ipvs(EditRealServer(..)) => OperationKind::EditRealServer,
            Self::Ipvs(DeleteRealServer(..)) => OperationKind::DeleteRealServer,
            Self::Netfilter(PrepareTable(_)) => OperationKind::PrepareTable,
            Self::Netfilter(InstallTable(_)) => OperationKind::InstallTable,
            Self::Netfilter(AddDirectReturn(_)) => OperationKind::AddDirectReturn,
            Self::Netfilter(RemoveDirectReturn(_)) => OperationKind::RemoveDirectReturn,
            Self::Netfilter(AddElement(_)) => OperationKind::AddElement,
            Self::Netfilter(DeleteElement(_)) => OperationKind::DeleteElement,
            Self::DummyInterface(EnsureDevice) => OperationKind::EnsureDevice,
            Self::DummyInterface(EnsureTunnel(_)) => OperationKind::EnsureTunnel,
            Self::DummyInterface(RemoveTunnel(_)) => OperationKind::RemoveTunnel,
            Self::DummyInterface(Bind(_)) => OperationKind::Bind,
            Self::DummyInterface(Unbind(_)) => OperationKind::Unbind,
        }
    }

    /// The key that it changes; `None` for virtual servers of firewall marks, which belong to no Service.
    pub fn key(&self) -> Option<Key> {
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
            Self::Netfilter(PrepareTable(_) | InstallTable(_)) | Self::DummyInterface(EnsureDevice)
        )
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

/// The kind of an [`Operation`] and of its object. Its `Display` is the words that the operation's
/// begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OperationKind {
    /// See [`netfilter::Operation::PrepareTable`].
    PrepareTable,
    /// See [`netfilter::Operation::InstallTable`].
    InstallTable,
    /// See [`netfilter::Operation::AddDirectReturn`].
    AddDirectReturn,
    /// See [`netfilter::Operation::RemoveDirectReturn`].
    RemoveDirectReturn,
    /// See [`dummy_interface::Operation::EnsureDevice`].
    EnsureDevice,
    /// See [`dummy_interface::Operation::EnsureTunnel`].
    EnsureTunnel,
    /// See [`dummy_interface::Operation::RemoveTunnel`].
    RemoveTunnel,
    /// See [`netfilter::Operation::AddElement`].
    AddElement,
    /// See [`netfilter::Operation::DeleteElement`].
    DeleteElement,
    /// See [`ipvs::Command::AddVirtualServer`].
    AddVirtualServer,
    /// See [`ipvs::Command::EditVirtualServer`].
    EditVirtualServer,
    /// See [`ipvs::Command::DeleteVirtualServer`].
    DeleteVirtualServer,
    /// See [`ipvs::Command::AddRealServer`].
    AddRealServer,
    /// See [`ipvs::Command::EditRealServer`].
    EditRealServer,
    /// See [`ipvs::Command::DeleteRealServer`].
    DeleteRealServer,
    /// See [`dummy_interface::Operation::Bind`].
    Bind,
    /// See [`dummy_interface::Operation::Unbind`].
    Unbind,
}

/// The words of its name: `AddRealServer` is "add real server".
impl fmt::Display for OperationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = format!("{self:?}");
        name.char_indices().try_for_each(|(index, letter)| {
            let blank = if index > 0 && letter.is_uppercase() { " " } else { "" };
            write!(f, "{blank}{}", letter.to_ascii_lowercase())
        })
    }
}

#[cfg(test)]
mod tests {
    use dummy_interface::Operation as DeviceOperation;
    use ipvs::{Command, Family, Protocol, RealServer, Scheduler, ServiceAddress, VirtualServer};
    use netfilter::{Element, Operation as TableOperation};

    use super::*;

    #[test]
    fn an_operation_begins_with_the_words_of_its_kind() {
        let of = ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 1].into(), port: 80 };
        let (server, real) = (VirtualServer::new(of, Scheduler::RR), RealServer::masquerade(of.ip, 8080));
        let element = Element::Vip(of.ip);
        let operations: Vec<Operation> = vec![
            Command::AddVirtualServer(server.clone()).into(),
            Command::EditVirtualServer(server).into(),
            Command::DeleteVirtualServer(of.into()).into(),
            Command::AddRealServer(of.into(), real).into(),
            Command::EditRealServer(of.into(), real).into(),
            Command::DeleteRealServer(of.into(), real.address).into(),
            TableOperation::PrepareTable(Family::V4).into(),
            TableOperation::InstallTable(Family::V4).into(),
            TableOperation::AddElement(element).into(),
            TableOperation::DeleteElement(element).into(),
            TableOperation::AddDirectReturn(Family::V4).into(),
            TableOperation::RemoveDirectReturn(Family::V4).into(),
            DeviceOperation::EnsureDevice.into(),
            DeviceOperation::EnsureTunnel(Family::V4).into(),
            DeviceOperation::RemoveTunnel(Family::V4).into(),
            DeviceOperation::Bind(of.ip).into(),
            DeviceOperation::Unbind(of.ip).into(),
        ];
        for operation in operations {
            let words = operation.kind().to_string();
            assert!(operation.to_string().starts_with(&format!("{words} ")), "{operation}: {words}");
            let json = serde_json::to_value(operation.kind()).unwrap();
            assert_eq!(json, words.replace(' ', "-"));
        }
    }
}
