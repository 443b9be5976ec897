//! The key of an operation: the part of the kernel's state that it changes.

use std::{collections::BTreeSet, net::IpAddr};

use dummy_interface::Operation::{Bind, EnsureDevice, EnsureTunnel, RemoveTunnel, Unbind};
use ipvs::{Command, Family, ServiceAddress};
use netfilter::{
    Element,
    Operation::{AddDirectReturn, AddElement, DeleteElement, InstallTable, PrepareTable, RemoveDirectReturn},
};
use service::Touched;
use watcher::{Operation, Plan};

/// The smallest part of the kernel's state that is compared by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiffKey {
    /// A virtual server with its real servers.
    VirtualServer(ServiceAddress),
    /// An element of our nf_tables sets.
    Element(Element),
    /// An address on kube-ipvs0.
    Vip(IpAddr),
    /// What unpacks packets from other nodes.
    Tunnel(Family),
}

impl DiffKey {
    /// The key of an operation. The device and the tables have none: only a comparison of everything finds them
    /// missing. Virtual servers of firewall marks have none either: they belong to no Service.
    pub(crate) fn from_operation(operation: &Operation) -> Option<Self> {
        match operation {
            Operation::Ipvs(command) => command.address().map(Self::VirtualServer),
            Operation::Netfilter(AddElement(element) | DeleteElement(element)) => {
                Some(Self::Element(*element))
            }
            Operation::DummyInterface(Bind(vip) | Unbind(vip)) => Some(Self::Vip(*vip)),
            Operation::Netfilter(AddDirectReturn(family) | RemoveDirectReturn(family))
            | Operation::DummyInterface(EnsureTunnel(family) | RemoveTunnel(family)) => {
                Some(Self::Tunnel(*family))
            }
            Operation::Netfilter(PrepareTable(_) | InstallTable(_))
            | Operation::DummyInterface(EnsureDevice) => None,
        }
    }

    /// Whether this key is among the touched ones.
    pub(crate) fn is_touched(&self, touched: &Touched) -> bool {
        match self {
            Self::VirtualServer(address) => touched.virtual_servers.contains(address),
            Self::Element(element) => touched.elements.contains(element),
            Self::Vip(vip) => touched.vips.contains(vip),
            Self::Tunnel(family) => touched.tunnels.contains(family),
        }
    }

    /// Adds this key to the touched ones, so that the next sync compares it.
    pub(crate) fn add_to(self, touched: &mut Touched) {
        match self {
            Self::VirtualServer(address) => _ = touched.virtual_servers.insert(address),
            Self::Element(element) => _ = touched.elements.insert(element),
            Self::Vip(vip) => _ = touched.vips.insert(vip),
            Self::Tunnel(family) => _ = touched.tunnels.insert(family),
        }
    }
}

/// Returns the virtual servers that must be compared again after the plan. Real servers that just got weight 0 may
/// have no connections. And unless everything was read just before, an edited virtual server may have been missing:
/// then the edit has created it without its real servers.
pub(crate) fn needs_recheck(plan: &Plan, all_read: bool) -> BTreeSet<ServiceAddress> {
    let is_in_doubt = |command: &&Command| match command {
        Command::EditRealServer(_, server) => server.weight == 0,
        Command::EditVirtualServer(_) => !all_read,
        _ => false,
    };
    plan.commands().filter(is_in_doubt).filter_map(Command::address).collect()
}
