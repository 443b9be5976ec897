//! The kernel's state, as last read and as changed by us since.

use dummy_interface::Operation::{Bind, EnsureDevice, EnsureTunnel, RemoveTunnel, Unbind};
use ipvs::Command;
use netfilter::{
    Element,
    Operation::{AddDirectReturn, AddElement, DeleteElement, InstallTable, PrepareTable, RemoveDirectReturn},
};

use crate::{Operation, VirtualServerImages};

/// An image of the part of the kernel's state that matters to us.
///
/// It starts as a full read and then follows our own operations, so that a change of one endpoint need not
/// read ten thousand virtual servers. When the kernel reports that another program has changed kube-ipvs0 or
/// our tables, they are read again. Other changes are found when the image is next compared with the kernel
/// ([`Verification`](crate::Verification)).
///
/// Virtual servers for firewall marks belong to no Service. They are left out, and so never touched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Virtual servers with their real servers.
    pub virtual_servers: VirtualServerImages,
    /// kube-ipvs0, the VIPs on it, and the node's own addresses.
    pub dummy_interface: dummy_interface::Observed,
    /// Our nf_tables tables.
    pub netfilter: netfilter::Observed,
}

impl Observed {
    /// Brings the image up to date after an operation was carried out.
    pub fn carried_out(&mut self, operation: &Operation) {
        match operation {
            Operation::Ipvs(command) => self.ipvs_changed(command),
            Operation::Netfilter(change) => self.netfilter_changed(*change),
            Operation::DummyInterface(change) => self.dummy_interface_changed(*change),
        }
    }

    fn ipvs_changed(&mut self, command: &Command) {
        let Some(address) = command.address() else { return };
        match command {
            Command::AddVirtualServer(config) | Command::EditVirtualServer(config) => {
                self.virtual_servers.configure(address, config.clone());
            }
            Command::DeleteVirtualServer(_) => self.virtual_servers.remove(&address),
            Command::AddRealServer(_, config) | Command::EditRealServer(_, config) => {
                self.virtual_servers.change_real_servers(&address, |servers| servers.configure(*config));
            }
            Command::DeleteRealServer(_, real_server) => {
                self.virtual_servers.change_real_servers(&address, |servers| servers.remove(real_server));
            }
        }
    }

    fn netfilter_changed(&mut self, change: netfilter::Operation) {
        let tables = &mut self.netfilter;
        match change {
            PrepareTable(family) => _ = tables.prepared.insert(family),
            InstallTable(family) => {
                tables.prepared.remove(&family);
                tables.installed.insert(family);
            }
            AddDirectReturn(family) => _ = tables.direct_return.insert(family),
            RemoveDirectReturn(family) => {
                tables.direct_return.remove(&family);
                let goes = |it: &Element| it.family() == family && it.is_of_direct_return();
                tables.elements.retain(|element| !goes(element));
            }
            AddElement(element) => _ = tables.elements.insert(element),
            DeleteElement(element) => _ = tables.elements.remove(&element),
        }
    }

    fn dummy_interface_changed(&mut self, change: dummy_interface::Operation) {
        let links = &mut self.dummy_interface;
        match change {
            EnsureDevice => links.device = true,
            EnsureTunnel(family) => links.tunnels.entry(family).or_default().right = true,
            RemoveTunnel(family) => _ = links.tunnels.remove(&family),
            Bind(vip) => {
                links.bound.insert(vip);
                links.stale_bindings.remove(&vip);
            }
            Unbind(vip) => {
                links.bound.remove(&vip);
                links.stale_bindings.remove(&vip);
            }
        }
    }
}
