//! The virtual servers with their real servers, as the kernel has them.

use std::{collections::BTreeMap, net::IpAddr, ops::Deref, sync::Arc};

use ipvs::{
    Forwarding, ObservedRealServer, RealServer, RealServerAddress, ServiceAddress, Tunnel, VirtualServer,
};
use rustc_hash::FxHashMap;
use service::DesiredVirtualServer;

/// Virtual servers by their addresses. They are read as a map is; what changes them also counts their real
/// servers, because to count them anew takes as long as a comparison of everything.
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
        self.real_servers += image.real_server_count();
        if let Some(replaced) = self.images.insert(address, image) {
            self.real_servers -= replaced.real_server_count();
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
            self.real_servers -= image.real_server_count();
            image.change_real_servers(change);
            self.real_servers += image.real_server_count();
        }
    }

    /// Removes a virtual server with its real servers.
    pub fn remove(&mut self, address: &ServiceAddress) {
        if let Some(removed) = self.images.remove(address) {
            self.real_servers -= removed.real_server_count();
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

/// A virtual server and its real servers.
///
/// Nearly always the kernel has what is desired. The image then shares the desired state's copy, so that the
/// two together take little more memory than one.
#[derive(Clone, Debug)]
pub struct VirtualServerImage(Held);

#[derive(Clone, Debug)]
enum Held {
    AsDesired(Arc<DesiredVirtualServer>),
    Otherwise(Box<Configured>),
}

#[derive(Clone, Debug)]
struct Configured {
    config: VirtualServer,
    real_servers: RealServerImages,
}

impl VirtualServerImage {
    /// A virtual server of this configuration.
    pub fn new(config: VirtualServer, real_servers: RealServerImages) -> Self {
        Self(Held::Otherwise(Box::new(Configured { config, real_servers })))
    }

    /// Its configuration.
    pub fn config(&self) -> VirtualServer {
        match &self.0 {
            Held::AsDesired(server) => server.config(),
            Held::Otherwise(server) => server.config.clone(),
        }
    }

    /// Its real servers, in the order of their addresses.
    pub fn real_servers(&self) -> impl Iterator<Item = RealServerImage> {
        let (as_desired, otherwise): (&[RealServer], &[RealServerImage]) = match &self.0 {
            Held::AsDesired(server) => (&server.real_servers, &[]),
            Held::Otherwise(server) => (&[], &server.real_servers.0),
        };
        as_desired.iter().copied().map(RealServerImage::from).chain(otherwise.iter().copied())
    }

    /// How many real servers it has.
    pub fn real_server_count(&self) -> usize {
        match &self.0 {
            Held::AsDesired(server) => server.real_servers.len(),
            Held::Otherwise(server) => server.real_servers.0.len(),
        }
    }

    /// The real server at this address.
    pub fn real_server(&self, address: &RealServerAddress) -> Option<RealServerImage> {
        match &self.0 {
            Held::AsDesired(server) => {
                let servers = &server.real_servers;
                let position = servers.binary_search_by_key(address, |server| server.address).ok()?;
                servers.get(position).copied().map(RealServerImage::from)
            }
            Held::Otherwise(server) => server.real_servers.get(address).copied(),
        }
    }

    /// Whether any of its real servers is reached through a tunnel.
    pub fn has_tunnels(&self) -> bool {
        self.real_servers().any(|server| server.config.forwarding == Forwarding::Tunnel)
    }

    /// Whether it is exactly this one. The connections of real servers that stay do not count.
    pub(crate) fn is(&self, wanted: &Arc<DesiredVirtualServer>) -> bool {
        if let Held::AsDesired(server) = &self.0
            && Arc::ptr_eq(server, wanted)
        {
            return true;
        }
        let real_servers = self.real_servers().map(|server| server.config);
        real_servers.eq(wanted.real_servers.iter().copied()) && self.config() == wanted.config()
    }

    /// Shares the desired state's copy, if that is what the kernel has.
    pub(crate) fn share(&mut self, wanted: &Arc<DesiredVirtualServer>) {
        if self.is(wanted) {
            self.0 = Held::AsDesired(wanted.clone());
        }
    }

    /// Gives it this configuration.
    pub(crate) fn configure(&mut self, config: VirtualServer) {
        self.change(|server| server.config = config);
    }

    /// Changes its real servers.
    pub(crate) fn change_real_servers(&mut self, change: impl FnOnce(&mut RealServerImages)) {
        self.change(|server| change(&mut server.real_servers));
    }

    /// Changes its own copy, and makes one if it has none.
    fn change(&mut self, change: impl FnOnce(&mut Configured)) {
        match &mut self.0 {
            Held::Otherwise(server) => change(server),
            Held::AsDesired(_) => {
                let mut server =
                    Configured { config: self.config(), real_servers: self.real_servers().collect() };
                change(&mut server);
                self.0 = Held::Otherwise(Box::new(server));
            }
        }
    }
}

/// Compares by value.
impl PartialEq for VirtualServerImage {
    fn eq(&self, other: &Self) -> bool {
        self.config() == other.config() && self.real_servers().eq(other.real_servers())
    }
}

impl Eq for VirtualServerImage {}

/// A real server, as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RealServerImage {
    /// Its configuration.
    pub config: RealServer,
    /// The number of its connections when it was last read, in any state.
    pub connections: u64,
}

/// Real servers in the order of their addresses.
///
/// Most virtual servers have a handful of real servers, and there may be ten thousand virtual servers: a list
/// takes a third of the memory of a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RealServerImages(Vec<RealServerImage>);

/// Up to this many real servers, room is made for one at a time. `Vec` would make room for four, then eight,
/// which is more than most virtual servers ever need.
const FEW: usize = 16;

impl RealServerImages {
    /// The real server at this address.
    pub fn get(&self, address: &RealServerAddress) -> Option<&RealServerImage> {
        self.0.get(self.position(address).ok()?)
    }

    /// Gives a real server this configuration. It is a new one, unless its address is known.
    pub fn configure(&mut self, config: RealServer) {
        match self.position(&config.address) {
            Ok(position) => self.0.get_mut(position).into_iter().for_each(|known| known.config = config),
            Err(place) => {
                if self.0.len() < FEW {
                    self.0.reserve_exact(1);
                }
                self.0.insert(place, RealServerImage { config, connections: 0 });
            }
        }
    }

    /// Removes the real server at this address.
    pub fn remove(&mut self, address: &RealServerAddress) {
        if let Ok(position) = self.position(address) {
            self.0.remove(position);
        }
    }

    fn position(&self, address: &RealServerAddress) -> Result<usize, usize> {
        self.0.binary_search_by_key(address, |server| server.config.address)
    }
}

/// Of several real servers at one address the last counts.
impl FromIterator<RealServerImage> for RealServerImages {
    fn from_iter<I: IntoIterator<Item = RealServerImage>>(servers: I) -> Self {
        let mut servers: Vec<_> = servers.into_iter().collect();
        servers.sort_by_key(|server| server.config.address);
        servers.dedup_by(|later, earlier| {
            let same = later.config.address == earlier.config.address;
            if same {
                *earlier = *later;
            }
            same
        });
        servers.shrink_to_fit();
        Self(servers)
    }
}

/// Without connections.
impl From<RealServer> for RealServerImage {
    fn from(config: RealServer) -> Self {
        Self { config, connections: 0 }
    }
}

impl From<&ObservedRealServer> for RealServerImage {
    fn from(server: &ObservedRealServer) -> Self {
        Self {
            config: server.config,
            connections: u64::from(server.active_connections) + u64::from(server.inactive_connections),
        }
    }
}

#[cfg(test)]
mod tests {
    use ipvs::{Protocol, RealServer, Scheduler};

    use super::*;

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
        let image = |last| RealServerImage { config: real_server(last), connections: 0 };
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
        let counted: usize = images.values().map(VirtualServerImage::real_server_count).sum();
        assert_eq!((images.len(), images.real_server_count(), counted), (2, 2, 2));
    }
}
