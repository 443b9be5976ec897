//! The real servers of one virtual server, as the kernel has them.

use ipvs::{ObservedRealServer, RealServer, RealServerAddress};

/// A real server, as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RealServerImage {
    /// Its configuration.
    pub config: RealServer,
    /// The number of its connections when it was last read, in any state.
    pub connections: u64,
    /// Whether it has been draining for as long as it may. The kernel does not know; the reconciler
    /// marks it again after each reading ([`Observed::expire`](crate::Observed::expire)).
    pub expired: bool,
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
    /// All of them, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, RealServerImage> {
        self.0.iter()
    }

    /// The real server at this address.
    pub fn get(&self, address: &RealServerAddress) -> Option<&RealServerImage> {
        self.0.get(self.position(address).ok()?)
    }

    /// The real server at this address, to change anything but the address.
    pub fn get_mut(&mut self, address: &RealServerAddress) -> Option<&mut RealServerImage> {
        let position = self.position(address).ok()?;
        self.0.get_mut(position)
    }

    /// Gives a real server this configuration. It is a new one, unless its address is known.
    pub fn configure(&mut self, config: RealServer) {
        match self.position(&config.address) {
            Ok(position) => self.0.get_mut(position).into_iter().for_each(|known| known.config = config),
            Err(place) => {
                if self.0.len() < FEW {
                    self.0.reserve_exact(1);
                }
                self.0.insert(place, RealServerImage { config, connections: 0, expired: false });
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

impl<'a> IntoIterator for &'a RealServerImages {
    type Item = &'a RealServerImage;
    type IntoIter = std::slice::Iter<'a, RealServerImage>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Without connections.
impl From<RealServer> for RealServerImage {
    fn from(config: RealServer) -> Self {
        Self { config, connections: 0, expired: false }
    }
}

impl From<&ObservedRealServer> for RealServerImage {
    fn from(server: &ObservedRealServer) -> Self {
        Self {
            config: server.config,
            connections: u64::from(server.active_connections) + u64::from(server.inactive_connections),
            expired: false,
        }
    }
}
