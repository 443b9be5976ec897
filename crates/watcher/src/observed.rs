//! The kernel's state, as last read and as changed by us since.

use ipvs::{Command, Ipvs, RealServerAddress, ServiceAddress, VirtualServerId};
use netfilter::Element;
use rustc_hash::FxHashMap;

use crate::{Kernel, Operation, RealServerImage, RealServerImages, VirtualServerImage, VirtualServerImages};

/// An image of the part of the kernel's state that matters to us.
///
/// It starts as a full read and then follows our own operations, so that a change of one endpoint need not
/// read ten thousand virtual servers. When the kernel reports that somebody else has changed kube-ipvs0 or our
/// tables, they are read again. Other changes are found when the image is next compared with the kernel
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

/// The part of the kernel that could not be read, and why.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Virtual or real servers.
    #[error("cannot read IPVS")]
    Ipvs(#[from] ipvs::Error),
    /// Our nf_tables tables.
    #[error("cannot read nf_tables")]
    Netfilter(#[from] netfilter::Error),
    /// kube-ipvs0.
    #[error("cannot read kube-ipvs0")]
    DummyInterface(#[from] dummy_interface::Error),
}

impl Observed {
    /// Reads everything.
    pub fn read(kernel: &mut Kernel) -> Result<Self, ReadError> {
        Self::read_beside(kernel, FxHashMap::default())
    }

    /// Reads the virtual servers alone, with their real servers.
    pub fn virtual_servers(ipvs: &mut dyn Ipvs) -> Result<VirtualServerImages, ReadError> {
        Ok(virtual_servers(ipvs, FxHashMap::default())?)
    }

    /// Reads everything but the real servers that are known already.
    pub(crate) fn read_beside(
        kernel: &mut Kernel,
        known: FxHashMap<ServiceAddress, RealServerImages>,
    ) -> Result<Self, ReadError> {
        Ok(Self {
            virtual_servers: virtual_servers(&mut *kernel.ipvs, known)?,
            dummy_interface: kernel.dummy_interface.observe()?,
            netfilter: kernel.netfilter.observe()?,
        })
    }

    /// Reads the node's addresses again, its gateways and the size of its links. The state of kube-ipvs0, which is read along with
    /// them, is not kept: it would not be compared, and the kernel reports its changes separately.
    pub fn refresh_node_addresses(&mut self, kernel: &mut Kernel) -> Result<(), ReadError> {
        let observed = kernel.dummy_interface.observe()?;
        self.dummy_interface.node_addresses = observed.node_addresses;
        self.dummy_interface.link_mtu = observed.link_mtu;
        self.dummy_interface.gateways = observed.gateways;
        Ok(())
    }

    /// Reads kube-ipvs0 and the node's addresses again.
    pub fn refresh_links(&mut self, kernel: &mut Kernel) -> Result<(), ReadError> {
        self.dummy_interface = kernel.dummy_interface.observe()?;
        Ok(())
    }

    /// Reads our tables again.
    pub fn refresh_tables(&mut self, kernel: &mut Kernel) -> Result<(), ReadError> {
        self.netfilter = kernel.netfilter.observe()?;
        Ok(())
    }

    /// Reads the real servers of one virtual server again, for their connection counts.
    pub fn refresh_real_servers(&mut self, kernel: &mut Kernel, of: ServiceAddress) -> Result<(), ReadError> {
        if self.virtual_servers.contains_key(&of) {
            let read = real_servers(&mut *kernel.ipvs, of)?;
            self.virtual_servers.change_real_servers(&of, |servers| *servers = read);
        }
        Ok(())
    }

    /// Marks a real server that has been draining for as long as it may.
    pub fn expire(&mut self, of: &ServiceAddress, server: &RealServerAddress) {
        self.virtual_servers.change_real_servers(of, |servers| {
            if let Some(server) = servers.get_mut(server) {
                server.expired = true;
            }
        });
    }

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

/// Reads the virtual servers, and the real servers of those of which they are not known.
fn virtual_servers(
    ipvs: &mut dyn Ipvs,
    mut known: FxHashMap<ServiceAddress, RealServerImages>,
) -> Result<VirtualServerImages, ipvs::Error> {
    let mut found = VirtualServerImages::default();
    for server in ipvs.virtual_servers()? {
        if let VirtualServerId::Address(address) = server.config.id {
            let real_servers = match known.remove(&address) {
                Some(real_servers) => real_servers,
                None => real_servers(ipvs, address)?,
            };
            found.insert(address, VirtualServerImage::new(server.config, real_servers));
        }
    }
    Ok(found)
}

/// Reads the real servers of one virtual server.
pub(crate) fn real_servers(ipvs: &mut dyn Ipvs, of: ServiceAddress) -> Result<RealServerImages, ipvs::Error> {
    let servers = ipvs.real_servers(of.into())?;
    Ok(servers.iter().map(RealServerImage::from).collect())
}
