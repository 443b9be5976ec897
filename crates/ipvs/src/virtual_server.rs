//! Virtual servers: what clients connect to.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use serde::{Deserialize, Serialize};

use crate::{Family, Protocol, Scheduler, Stats};

/// The name of a virtual server that balances one address: protocol, VIP and port.
///
/// The kernel compares these and nothing else (`__ip_vs_service_find` in net/netfilter/ipvs/ip_vs_ctl.c), so
/// this struct gets no more fields.
///
/// ```
/// use ipvs::{Protocol, ServiceAddress};
///
/// let vip = ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 1].into(), port: 443 };
/// assert_eq!(vip.to_string(), "TCP 10.96.0.1:443");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServiceAddress {
    /// The transport protocol.
    pub protocol: Protocol,
    /// The virtual IP address.
    pub ip: IpAddr,
    /// The port, in host order; 0 means every port and needs persistence.
    pub port: u16,
}

impl fmt::Display for ServiceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.protocol, SocketAddr::new(self.ip, self.port))
    }
}

/// The name of a virtual server: an address or a firewall mark, as the kernel knows it
/// (`ip_vs_genl_parse_service` in net/netfilter/ipvs/ip_vs_ctl.c).
///
/// ```
/// use ipvs::{Family, VirtualServerId};
///
/// let web = VirtualServerId::Mark { family: Family::V6, mark: 7 };
/// assert_eq!((web.family(), web.to_string()), (Family::V6, "FWM 7".to_owned()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VirtualServerId {
    /// Packets to one protocol, address and port.
    Address(ServiceAddress),
    /// Packets that carry a firewall mark.
    Mark {
        /// The address family; IPVS keeps marks apart by it.
        family: Family,
        /// The mark, not 0.
        mark: u32,
    },
}

impl VirtualServerId {
    /// The address family.
    pub fn family(&self) -> Family {
        match self {
            Self::Address(address) => Family::from(address.ip),
            Self::Mark { family, .. } => *family,
        }
    }
}

impl From<ServiceAddress> for VirtualServerId {
    fn from(address: ServiceAddress) -> Self {
        Self::Address(address)
    }
}

impl fmt::Display for VirtualServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Mark { mark, .. } => write!(f, "FWM {mark}"),
        }
    }
}

bitflags::bitflags! {
    /// Flags of a virtual server: `IP_VS_SVC_F_*` in include/uapi/linux/ip_vs.h.
    ///
    /// The kernel's own HASHED bit (0x2) is dropped when reading and never sent.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct ServiceFlags: u32 {
        /// Connections of one client go to one real server.
        const PERSISTENT = 0x1;
        /// Each UDP datagram is scheduled by itself.
        const ONE_PACKET = 0x4;
        /// First scheduler flag. `sh`, `mh`: fall back to the next real server when the chosen one
        /// has weight 0.
        const SCHEDULER_1 = 0x8;
        /// Second scheduler flag. `sh`, `mh`: hash the source port too.
        const SCHEDULER_2 = 0x10;
        /// Third scheduler flag; no mainline scheduler uses it.
        const SCHEDULER_3 = 0x20;
        /// The scheduler flags together.
        const OF_SCHEDULER = 0x38;
    }
}

impl Serialize for ServiceFlags {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.bits().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ServiceFlags {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u32::deserialize(deserializer).map(Self::from_bits_retain)
    }
}

/// A virtual server's configuration: `IPVS_SVC_ATTR_*` in include/uapi/linux/ip_vs.h.
///
/// ```
/// use ipvs::{Family, Protocol, Scheduler, ServiceAddress, ServiceFlags, VirtualServer, VirtualServerId};
///
/// let vip = ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 1].into(), port: 443 };
/// let sticky = VirtualServer::new(vip, Scheduler::MH).persistent(10_800).flags(ServiceFlags::SCHEDULER_2);
/// assert!(sticky.flags.contains(ServiceFlags::PERSISTENT));
///
/// let sip = VirtualServerId::Mark { family: Family::V4, mark: 7 };
/// let sip = VirtualServer::new(sip, Scheduler::RR).persistent(60).persistence_engine("sip");
/// assert_eq!(sip.prefix_length, 32);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct VirtualServer {
    /// Its name.
    pub id: VirtualServerId,
    /// How it picks a real server.
    pub scheduler: Scheduler,
    /// Persistence and scheduler flags.
    pub flags: ServiceFlags,
    /// How long a client stays with its real server, in seconds; 0 unless persistent.
    pub timeout: u32,
    /// How many leading bits of a client's address persistence compares: 1..=32 or 1..=128.
    pub prefix_length: u8,
    /// The persistence engine, such as `sip`; hardly ever set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistence_engine: Option<Box<str>>,
}

/// The IPv4 mask of a prefix length, in host order.
pub(crate) fn ipv4_mask(prefix_length: u8) -> u32 {
    u32::MAX.checked_shl(32_u32.saturating_sub(prefix_length.into())).unwrap_or(0)
}

impl VirtualServer {
    /// A virtual server without persistence.
    pub fn new(id: impl Into<VirtualServerId>, scheduler: Scheduler) -> Self {
        let id = id.into();
        Self {
            id,
            scheduler,
            flags: ServiceFlags::empty(),
            timeout: 0,
            prefix_length: id.family().address_bits(),
            persistence_engine: None,
        }
    }

    /// This virtual server with session affinity: each client address keeps its real server for `seconds`.
    #[must_use]
    pub fn persistent(mut self, seconds: u32) -> Self {
        self.flags |= ServiceFlags::PERSISTENT;
        self.timeout = seconds;
        self
    }

    /// This virtual server with these flags as well.
    #[must_use]
    pub fn flags(mut self, flags: ServiceFlags) -> Self {
        self.flags |= flags;
        self
    }

    /// This virtual server, its persistence comparing so many leading bits of a client's address.
    #[must_use]
    pub fn prefix_length(mut self, bits: u8) -> Self {
        self.prefix_length = bits;
        self
    }

    /// This virtual server with a persistence engine. Names of more than 15 bytes are refused by the kernel.
    #[must_use]
    pub fn persistence_engine(mut self, name: impl Into<Box<str>>) -> Self {
        self.persistence_engine = Some(name.into());
        self
    }
}

/// A virtual server as the kernel shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ObservedVirtualServer {
    /// Its configuration.
    pub config: VirtualServer,
    /// Its counters.
    pub stats: Stats,
}

/// For code that stands in for a kernel.
impl ObservedVirtualServer {
    /// A virtual server of this configuration that has counted nothing.
    pub fn new(config: VirtualServer) -> Self {
        Self { config, stats: Stats::default() }
    }

    /// This virtual server with these counters.
    #[must_use]
    pub fn stats(mut self, stats: Stats) -> Self {
        self.stats = stats;
        self
    }
}
