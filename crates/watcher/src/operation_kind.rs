//! Kinds of operations, for counting.

use std::fmt;

use dummy_interface::Operation as DeviceOperation;
use ipvs::Command;
use netfilter::Operation as TableOperation;
use serde::{Deserialize, Serialize};

use crate::Operation;

/// What an [`Operation`] does, and to what kind of thing. Its `Display` is the words that the operation's
/// begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OperationKind {
    /// See [`TableOperation::PrepareTable`].
    PrepareTable,
    /// See [`TableOperation::InstallTable`].
    InstallTable,
    /// See [`TableOperation::AddDirectReturn`].
    AddDirectReturn,
    /// See [`TableOperation::RemoveDirectReturn`].
    RemoveDirectReturn,
    /// See [`DeviceOperation::EnsureDevice`].
    EnsureDevice,
    /// See [`DeviceOperation::EnsureTunnel`].
    EnsureTunnel,
    /// See [`DeviceOperation::RemoveTunnel`].
    RemoveTunnel,
    /// See [`TableOperation::AddElement`].
    AddElement,
    /// See [`TableOperation::DeleteElement`].
    DeleteElement,
    /// See [`Command::AddVirtualServer`].
    AddVirtualServer,
    /// See [`Command::EditVirtualServer`].
    EditVirtualServer,
    /// See [`Command::DeleteVirtualServer`].
    DeleteVirtualServer,
    /// See [`Command::AddRealServer`].
    AddRealServer,
    /// See [`Command::EditRealServer`].
    EditRealServer,
    /// See [`Command::DeleteRealServer`].
    DeleteRealServer,
    /// See [`DeviceOperation::Bind`].
    Bind,
    /// See [`DeviceOperation::Unbind`].
    Unbind,
}

impl Operation {
    /// The kind of this operation.
    pub fn kind(&self) -> OperationKind {
        match self {
            Self::Ipvs(Command::AddVirtualServer(_)) => OperationKind::AddVirtualServer,
            Self::Ipvs(Command::EditVirtualServer(_)) => OperationKind::EditVirtualServer,
            Self::Ipvs(Command::DeleteVirtualServer(_)) => OperationKind::DeleteVirtualServer,
            Self::Ipvs(Command::AddRealServer(..)) => OperationKind::AddRealServer,
            Self::Ipvs(Command::EditRealServer(..)) => OperationKind::EditRealServer,
            Self::Ipvs(Command::DeleteRealServer(..)) => OperationKind::DeleteRealServer,
            Self::Netfilter(TableOperation::PrepareTable(_)) => OperationKind::PrepareTable,
            Self::Netfilter(TableOperation::InstallTable(_)) => OperationKind::InstallTable,
            Self::Netfilter(TableOperation::AddDirectReturn(_)) => OperationKind::AddDirectReturn,
            Self::Netfilter(TableOperation::RemoveDirectReturn(_)) => OperationKind::RemoveDirectReturn,
            Self::Netfilter(TableOperation::AddElement(_)) => OperationKind::AddElement,
            Self::Netfilter(TableOperation::DeleteElement(_)) => OperationKind::DeleteElement,
            Self::DummyInterface(DeviceOperation::EnsureDevice) => OperationKind::EnsureDevice,
            Self::DummyInterface(DeviceOperation::EnsureTunnel(_)) => OperationKind::EnsureTunnel,
            Self::DummyInterface(DeviceOperation::RemoveTunnel(_)) => OperationKind::RemoveTunnel,
            Self::DummyInterface(DeviceOperation::Bind(_)) => OperationKind::Bind,
            Self::DummyInterface(DeviceOperation::Unbind(_)) => OperationKind::Unbind,
        }
    }
}

impl fmt::Display for OperationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PrepareTable => "prepare table",
            Self::InstallTable => "install table",
            Self::AddDirectReturn => "add direct return",
            Self::RemoveDirectReturn => "remove direct return",
            Self::EnsureDevice => "ensure device",
            Self::EnsureTunnel => "ensure tunnel",
            Self::RemoveTunnel => "remove tunnel",
            Self::AddElement => "add element",
            Self::DeleteElement => "delete element",
            Self::AddVirtualServer => "add virtual server",
            Self::EditVirtualServer => "edit virtual server",
            Self::DeleteVirtualServer => "delete virtual server",
            Self::AddRealServer => "add real server",
            Self::EditRealServer => "edit real server",
            Self::DeleteRealServer => "delete real server",
            Self::Bind => "bind",
            Self::Unbind => "unbind",
        })
    }
}

#[cfg(test)]
mod tests {
    use ipvs::{Family, Protocol, RealServer, Scheduler, ServiceAddress, VirtualServer};
    use netfilter::Element;

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
