//! The virtual servers, as the kernel has them.

use std::{collections::BTreeMap, net::IpAddr, ops::Deref, sync::Arc};

use ipvs::{Forwarding, ServiceAddress, Tunnel, VirtualServer};
use rustc_hash::FxHashMap;
use service::DesiredVirtualServer;

use crate::{RealServerImages, VirtualServerImage};

/// Virtual servers by their addresses. They are read as a map is; what changes them also counts their real servers,
/// because to count them anew takes as long as a comparison of everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VirtualServerImages {
    images: FxHashMap<ServiceAddress, VirtualServerImage>,
    real_servers: usize,
}

impl VirtualServerImages {
    /// How many real servers all of them have together.
    pub fn real_server_count(&self) -> usize {
        self.real_servers
    }

    /// The real servers that are reached through tunnels, by their addresses.
    pub fn tunnels(&self) -> BTreeMap<IpAddr, Tunnel> {
        let real_servers = self.images.values().flat_map(VirtualServerImage::real_servers);
        let tunnelled = real_servers.filter(|server| server.config.forwarding == Forwarding::Tunnel);
        tunnelled.map(|server| (server.config.address.ip, server.config.tunnel)).collect()
    }

    /// Inserts or replaces a virtual server with its real servers.
    pub fn insert(&mut self, address: ServiceAddress, image: VirtualServerImage) {
        self.real_servers += image.real_servers().len();
        if let Some(replaced) = self.images.insert(address, image) {
            self.real_servers -= replaced.real_servers().len();
        }
    }

    /// Gives a virtual server this configuration. A new one has no real servers.
    pub fn configure(&mut self, address: ServiceAddress, config: VirtualServer) {
        if let Some(image) = self.images.get_mut(&address) {
            image.configure(config);
        } else {
            self.images.insert(address, VirtualServerImage::new(config, RealServerImages::default()));
        }
    }

    /// Changes the real servers of a virtual server, if it is known.
    pub fn change_real_servers(&mut self, of: &ServiceAddress, change: impl FnOnce(&mut RealServerImages)) {
        if let Some(image) = self.images.get_mut(of) {
            self.real_servers -= image.real_servers().len();
            image.change_real_servers(change);
            self.real_servers += image.real_servers().len();
        }
    }

    /// Removes a virtual server with its real servers.
    pub fn remove(&mut self, address: &ServiceAddress) {
        if let Some(removed) = self.images.remove(address) {
            self.real_servers -= removed.real_servers().len();
        }
    }

    /// Shares those of these virtual servers that are as desired.
    pub fn share<'a>(&mut self, desired: impl IntoIterator<Item = &'a Arc<DesiredVirtualServer>>) {
        for wanted in desired {
            if let Some(image) = self.images.get_mut(&wanted.address) {
                image.share(wanted);
            }
        }
    }
}

impl Deref for VirtualServerImages {
    type Target = FxHashMap<ServiceAddress, VirtualServerImage>;

    fn deref(&self) -> &Self::Target {
        &self.images
    }
}

impl FromIterator<(ServiceAddress, VirtualServerImage)> for VirtualServerImages {
    fn from_iter<I: IntoIterator<Item = (ServiceAddress, VirtualServerImage)>>(images: I) -> Self {
        let mut all = Self::default();
        images.into_iter().for_each(|(address, image)| all.insert(address, image));
        all
    }
}

#[cfg(test)]
mod tests {
    use ipvs::{Protocol, RealServer, Scheduler};

    use super::*;
    use crate::RealServerImage;

    fn address(port: u16) -> ServiceAddress {
        ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 1].into(), port }
    }

    fn config(port: u16) -> VirtualServer {
        VirtualServer::new(address(port), Scheduler::RR)
    }

    fn real_server(last: u8) -> RealServer {
        RealServer::masquerade([10, 244, 0, last].into(), 8080)
    }

    fn image(port: u16, real_servers: impl IntoIterator<Item = u8>) -> (ServiceAddress, VirtualServerImage) {
        let image = |last| RealServerImage { config: real_server(last), connections: 0, expired: false };
        let real_servers = real_servers.into_iter().map(image).collect();
        (address(port), VirtualServerImage::new(config(port), real_servers))
    }

    #[test]
    fn real_servers_are_counted_with_each_change() {
        let mut images: VirtualServerImages = [image(80, 0..3), image(443, 0..2)].into_iter().collect();
        assert_eq!(images.real_server_count(), 5);
        let (replaced, by) = image(80, 0..1);
        images.insert(replaced, by);
        images.configure(address(443), config(443));
        images.configure(address(53), config(53));
        assert_eq!((images.len(), images.real_server_count()), (3, 3));
        images.change_real_servers(&address(53), |servers| servers.configure(real_server(1)));
        images.change_real_servers(&address(443), |servers| servers.remove(&real_server(0).address));
        images.change_real_servers(&address(9), |servers| servers.configure(real_server(1)));
        assert_eq!(images.real_server_count(), 3);
        images.remove(&address(80));
        images.remove(&address(80));
        let counted: usize = images.values().map(|image| image.real_servers().len()).sum();
        assert_eq!((images.len(), images.real_server_count(), counted), (2, 2, 2));
    }
}
