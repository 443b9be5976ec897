//! One virtual server, as the kernel has it.

use std::{iter, slice, sync::Arc};

use ipvs::{Forwarding, RealServer, RealServerAddress, VirtualServer};
use service::DesiredVirtualServer;

use crate::{RealServerImage, RealServerImages};

/// A virtual server and its real servers.
///
/// Nearly always the kernel has what is desired. The image then shares the desired state's copy, so that the two
/// together take little more memory than one.
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
    pub fn real_servers(&self) -> RealServersOfImage<'_> {
        match &self.0 {
            Held::AsDesired(server) => RealServersOfImage::AsDesired(server.real_servers.iter()),
            Held::Otherwise(server) => RealServersOfImage::Otherwise(server.real_servers.iter()),
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

    /// Whether it is exactly this one, as far as anybody asks: the connections of real servers that stay do not count.
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

/// The real servers of a virtual server, in the order of their addresses.
#[derive(Clone, Debug)]
pub enum RealServersOfImage<'a> {
    /// As they are desired.
    AsDesired(slice::Iter<'a, RealServer>),
    /// As they were read or written.
    Otherwise(slice::Iter<'a, RealServerImage>),
}

impl Iterator for RealServersOfImage<'_> {
    type Item = RealServerImage;

    fn next(&mut self) -> Option<RealServerImage> {
        match self {
            Self::AsDesired(servers) => servers.next().copied().map(RealServerImage::from),
            Self::Otherwise(servers) => servers.next().copied(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Self::AsDesired(servers) => servers.size_hint(),
            Self::Otherwise(servers) => servers.size_hint(),
        }
    }
}

impl ExactSizeIterator for RealServersOfImage<'_> {}

impl iter::FusedIterator for RealServersOfImage<'_> {}

/// Whoever holds the copy.
impl PartialEq for VirtualServerImage {
    fn eq(&self, other: &Self) -> bool {
        self.config() == other.config() && self.real_servers().eq(other.real_servers())
    }
}

impl Eq for VirtualServerImage {}
