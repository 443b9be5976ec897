//! Real servers: where connections go.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use serde::{Deserialize, Serialize};

use crate::Stats;

/// What names a real server within its virtual server: address and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RealServerAddress {
    /// The real server's address.
    pub ip: IpAddr,
    /// Its port, in host order.
    pub port: u16,
}

impl fmt::Display for RealServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SocketAddr::new(self.ip, self.port).fmt(f)
    }
}

/// How packets reach the real server: `IP_VS_CONN_F_FWD_MASK` in include/uapi/linux/ip_vs.h.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Forwarding {
    /// The destination address is rewritten: Kubernetes' way.
    #[default]
    Masquerade,
    /// The real server is this machine; the kernel's own classification.
    Local,
    /// The packet is encapsulated.
    Tunnel,
    /// Only the link-layer address is rewritten (direct routing).
    Route,
    /// The packet goes on to its own destination; a transparent cache's way.
    Bypass,
}

/// How a tunnelled packet is encapsulated: `IP_VS_TUNNEL_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Tunnel {
    /// IP in IP, GUE or GRE.
    pub kind: TunnelKind,
    /// The GUE destination port, in host order; not 0 for GUE.
    pub port: u16,
    /// `IP_VS_TUNNEL_ENCAP_FLAG_*`: 1 for a checksum, 2 for a remote checksum.
    pub flags: u16,
}

/// The encapsulation of a tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TunnelKind {
    /// IP in IP.
    #[default]
    Ipip,
    /// Generic UDP encapsulation.
    Gue,
    /// Generic routing encapsulation.
    Gre,
}

/// A real server's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RealServer {
    /// What names it.
    pub address: RealServerAddress,
    /// How packets reach it.
    pub forwarding: Forwarding,
    /// Its share of new connections; 0 means no new ones. The kernel takes at most `i32::MAX`.
    pub weight: u32,
    /// Above this many connections it gets no new ones; 0 means no limit.
    pub upper_threshold: u32,
    /// Below this many it gets new ones again; at most `upper_threshold`.
    pub lower_threshold: u32,
    /// The encapsulation, for [`Forwarding::Tunnel`].
    pub tunnel: Tunnel,
}

impl RealServer {
    /// A masqueraded real server of weight 1, as Kubernetes wants them.
    pub fn masquerade(ip: IpAddr, port: u16) -> Self {
        Self {
            address: RealServerAddress { ip, port },
            forwarding: Forwarding::Masquerade,
            weight: 1,
            upper_threshold: 0,
            lower_threshold: 0,
            tunnel: Tunnel::default(),
        }
    }

    /// This real server with another weight.
    #[must_use]
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }
}

/// A real server as the kernel shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedRealServer {
    /// Its configuration.
    pub config: RealServer,
    /// Connections that are established.
    pub active_connections: u32,
    /// Connections in any other state.
    pub inactive_connections: u32,
    /// Clients that persistence binds to it.
    pub persistent_connections: u32,
    /// Its counters.
    pub stats: Stats,
}
