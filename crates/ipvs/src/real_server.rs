//! Real servers: where connections go.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use serde::{Deserialize, Serialize};

use crate::Stats;

/// The name of a real server within its virtual server: address and port.
///
/// The kernel compares these and nothing else (`ip_vs_lookup_dest` in net/netfilter/ipvs/ip_vs_ctl.c), so
/// this struct gets no more fields.
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

/// How packets reach the real server: `IP_VS_CONN_F_FWD_MASK` in include/uapi/linux/ip_vs.h, with the kernel's
/// numbers from 0 on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Forwarding {
    /// `IP_VS_CONN_F_MASQ`: the destination address is rewritten, as Kubernetes needs it.
    #[default]
    Masquerade,
    /// `IP_VS_CONN_F_LOCALNODE`: the real server is this machine. Some kernels report it for a masqueraded
    /// one.
    Local,
    /// `IP_VS_CONN_F_TUNNEL`: the packet is encapsulated; see [`Tunnel`].
    Tunnel,
    /// `IP_VS_CONN_F_DROUTE`: only the link-layer address is rewritten (direct routing).
    Route,
    /// `IP_VS_CONN_F_BYPASS`: the packet goes on to its own destination, past a transparent cache.
    Bypass,
}

/// How a tunnelled packet is encapsulated: `IPVS_DEST_ATTR_TUN_*` in include/uapi/linux/ip_vs.h, since Linux
/// 5.3.
///
/// ```
/// use ipvs::{Tunnel, TunnelKind};
///
/// let tunnel = Tunnel::new(TunnelKind::Gue).port(6080).flags(1);
/// assert_eq!(Tunnel::default().kind, TunnelKind::Ipip);
/// # assert_eq!((tunnel.port, tunnel.flags), (6080, 1));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Tunnel {
    /// IP in IP, GUE or GRE.
    pub kind: TunnelKind,
    /// The GUE destination port, in host order; not 0 for GUE.
    pub port: u16,
    /// `IP_VS_TUNNEL_ENCAP_FLAG_*`: 1 for a checksum, 2 for a remote checksum.
    pub flags: u16,
}

impl Tunnel {
    /// A tunnel of this kind without port and flags.
    pub const fn new(kind: TunnelKind) -> Self {
        Self { kind, port: 0, flags: 0 }
    }

    /// This tunnel with a GUE destination port, in host order.
    #[must_use]
    pub const fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// This tunnel with these `IP_VS_TUNNEL_ENCAP_FLAG_*`.
    #[must_use]
    pub const fn flags(mut self, flags: u16) -> Self {
        self.flags = flags;
        self
    }
}

/// The encapsulation of a tunnel: `IP_VS_CONN_F_TUNNEL_TYPE_*` in include/uapi/linux/ip_vs.h, with the kernel's numbers
/// from 0 on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum TunnelKind {
    /// IP in IP.
    #[default]
    Ipip,
    /// Generic UDP encapsulation.
    Gue,
    /// Generic routing encapsulation.
    Gre,
}

/// A real server's configuration: `IPVS_DEST_ATTR_*` in include/uapi/linux/ip_vs.h.
///
/// ```
/// use ipvs::{Forwarding, RealServer, Tunnel, TunnelKind};
///
/// let pod = RealServer::masquerade([10, 1, 0, 4].into(), 8080).weight(2).thresholds(1_000, 800);
/// assert_eq!(pod.forwarding, Forwarding::Masquerade);
///
/// let remote = RealServer::new(pod.address, Forwarding::Route).tunnel(Tunnel::new(TunnelKind::Gre));
/// assert_eq!(remote.forwarding, Forwarding::Tunnel);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RealServer {
    /// Its name within its virtual server.
    pub address: RealServerAddress,
    /// How packets reach it.
    pub forwarding: Forwarding,
    /// Its share of new connections; 0 means no new ones. The kernel takes at most `i32::MAX`.
    pub weight: u32,
    /// Above this many connections it gets no new ones; 0 means no limit.
    pub upper_threshold: u32,
    /// Below this many connections it gets new ones again; at most `upper_threshold`.
    pub lower_threshold: u32,
    /// The encapsulation, for [`Forwarding::Tunnel`]; of others, for connections that were made when it was
    /// one.
    pub tunnel: Tunnel,
}

impl RealServer {
    /// A real server of weight 1 without thresholds. For [`Forwarding::Tunnel`], the encapsulation is IP in
    /// IP.
    pub const fn new(address: RealServerAddress, forwarding: Forwarding) -> Self {
        Self {
            address,
            forwarding,
            weight: 1,
            upper_threshold: 0,
            lower_threshold: 0,
            tunnel: Tunnel::new(TunnelKind::Ipip),
        }
    }

    /// A masqueraded real server of weight 1, as Kubernetes wants them. The port is in host order.
    pub const fn masquerade(ip: IpAddr, port: u16) -> Self {
        Self::new(RealServerAddress { ip, port }, Forwarding::Masquerade)
    }

    /// This real server with another weight.
    #[must_use]
    pub const fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// This real server, reached by another method.
    #[must_use]
    pub const fn forwarding(mut self, forwarding: Forwarding) -> Self {
        self.forwarding = forwarding;
        self
    }

    /// This real server, reached through a tunnel.
    #[must_use]
    pub const fn tunnel(mut self, tunnel: Tunnel) -> Self {
        self.forwarding = Forwarding::Tunnel;
        self.tunnel = tunnel;
        self
    }

    /// This real server with limits of its connections: none above `upper`, and new ones again below `lower`.
    #[must_use]
    pub const fn thresholds(mut self, upper: u32, lower: u32) -> Self {
        self.upper_threshold = upper;
        self.lower_threshold = lower;
        self
    }
}

/// A real server as the kernel shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ObservedRealServer {
    /// Its configuration.
    pub config: RealServer,
    /// Connections that are established or, by TCP, being opened: in `SYN_RECV`, `SYN_SENT` or `SYNACK`
    /// (`IPVS_DEST_ATTR_ACTIVE_CONNS`; `tcp_state_active_table` in ip_vs_proto_tcp.c).
    pub active_connections: u32,
    /// Connections in any other state, all of UDP among them (`IPVS_DEST_ATTR_INACT_CONNS`).
    pub inactive_connections: u32,
    /// Clients that persistence binds to it (`IPVS_DEST_ATTR_PERSIST_CONNS`).
    pub persistent_connections: u32,
    /// Its counters.
    pub stats: Stats,
}

/// For code that stands in for a kernel.
impl ObservedRealServer {
    /// A real server of this configuration without connections.
    pub fn new(config: RealServer) -> Self {
        Self {
            config,
            active_connections: 0,
            inactive_connections: 0,
            persistent_connections: 0,
            stats: Stats::default(),
        }
    }

    /// This real server with so many active and inactive connections.
    #[must_use]
    pub fn connections(mut self, active: u32, inactive: u32) -> Self {
        self.active_connections = active;
        self.inactive_connections = inactive;
        self
    }

    /// This real server with these counters.
    #[must_use]
    pub fn stats(mut self, stats: Stats) -> Self {
        self.stats = stats;
        self
    }
}
