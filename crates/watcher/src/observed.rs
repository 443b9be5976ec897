//! The kernel's state, as last read and as changed by us since.

use ipvs::Command;
use netfilter::Element;

use crate::{Operation, VirtualServerImages};

/// An image of the part of the kernel's state that matters to us.
///
/// It starts as a full read and then follows our own operations, so that a change of one endpoint need not
/// read ten thousand virtual servers. When the kernel reports that another program has changed kube-ipvs0 or
/// our tables, they are read again. Other changes are found when the image is next compared with the kernel
/// ([`Observed::verify`]).
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
            Command::DeleteVirtualServer(_) => {
                self.virtual_servers.remove(&address);
            }
            Command::AddRealServer(_, config) | Command::EditRealServer(_, config) => {
                self.virtual_servers.change_real_servers(&address, |servers| servers.configure(*config));
            }
            Command::DeleteRealServer(_, real_server) => {
                self.virtual_servers.change_real_servers(&address, |servers| servers.remove(real_server));
            }
        }
    }

    fn netfilter_changed(&mut self, change: netfilter::Operation) {
        match change {
            netfilter::Operation::PrepareTable(family) => {
                self.netfilter.prepared.insert(family);
            }
            netfilter::Operation::InstallTable(family) => {
                self.netfilter.prepared.remove(&family);
                self.netfilter.installed.insert(family);
            }
            netfilter::Operation::AddDirectReturn(family) => {
                self.netfilter.direct_return.insert(family);
            }
            netfilter::Operation::RemoveDirectReturn(family) => {
                self.netfilter.direct_return.remove(&family);
                let goes = |it: &Element| it.family() == family && it.is_of_direct_return();
                self.netfilter.elements.retain(|element| !goes(element));
            }
            netfilter::Operation::AddElement(element) => {
                self.netfilter.elements.insert(element);
            }
            netfilter::Operation::DeleteElement(element) => {
                self.netfilter.elements.remove(&element);
            }
        }
    }

    fn dummy_interface_changed(&mut self, change: dummy_interface::Operation) {
        match change {
            dummy_interface::Operation::EnsureDevice => self.dummy_interface.device = true,
            dummy_interface::Operation::EnsureTunnel(family) => {
                self.dummy_interface.tunnels.entry(family).or_default().right = true;
            }
            dummy_interface::Operation::RemoveTunnel(family) => {
                self.dummy_interface.tunnels.remove(&family);
            }
            dummy_interface::Operation::Bind(vip) => {
                self.dummy_interface.bound.insert(vip);
                self.dummy_interface.stale_bindings.remove(&vip);
            }
            dummy_interface::Operation::Unbind(vip) => {
                self.dummy_interface.bound.remove(&vip);
                self.dummy_interface.stale_bindings.remove(&vip);
            }
        }
    }
}
