//! The kernel's other information: version, table size, timeouts, counters.

use serde::{Deserialize, Serialize};

/// IPVS connection timeouts in seconds: `IPVS_CMD_ATTR_TIMEOUT_*` in include/uapi/linux/ip_vs.h.
///
/// When they are set, 0 leaves a timeout as it is.
///
/// ```
/// use ipvs::Timeouts;
///
/// let timeouts = Timeouts::UNCHANGED.tcp(7_200).udp(60);
/// assert_eq!((timeouts.tcp, timeouts.tcp_fin, timeouts.udp), (7_200, 0, 60));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Timeouts {
    /// Established TCP connections.
    pub tcp: u32,
    /// TCP connections after a FIN.
    pub tcp_fin: u32,
    /// UDP exchanges.
    pub udp: u32,
}

impl Timeouts {
    /// Leaves every timeout as it is. The same as the default.
    pub const UNCHANGED: Self = Self { tcp: 0, tcp_fin: 0, udp: 0 };

    /// These timeouts with another one for established TCP connections, in seconds.
    #[must_use]
    pub const fn tcp(mut self, seconds: u32) -> Self {
        self.tcp = seconds;
        self
    }

    /// These timeouts with another one for TCP connections after a FIN, in seconds.
    #[must_use]
    pub const fn tcp_fin(mut self, seconds: u32) -> Self {
        self.tcp_fin = seconds;
        self
    }

    /// These timeouts with another one for UDP exchanges, in seconds.
    #[must_use]
    pub const fn udp(mut self, seconds: u32) -> Self {
        self.udp = seconds;
        self
    }
}

/// The kernel's IPVS: `IPVS_INFO_ATTR_*` in include/uapi/linux/ip_vs.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Info {
    /// Version, as major, minor, patch.
    pub version: (u8, u8, u8),
    /// Buckets of the connection table.
    pub connection_table_size: u32,
}

impl Info {
    /// An IPVS of this version (major, minor, patch) with so many buckets in its connection table.
    pub const fn new(version: (u8, u8, u8), connection_table_size: u32) -> Self {
        Self { version, connection_table_size }
    }
}

/// Counters since creation or the last zeroing, and the kernel's rate estimates: `IPVS_STATS_ATTR_*` in
/// include/uapi/linux/ip_vs.h.
///
/// The kernel brings both up to date every two seconds, and averages the rates
/// (net/netfilter/ipvs/ip_vs_est.c). While `net.ipv4.vs.run_estimation` is 0, both stay what they were.
/// Kernels before 4.1 have 32-bit counters of packets and connections, which overflow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Stats {
    /// Connections scheduled.
    pub connections: u64,
    /// Packets from clients.
    pub packets_in: u64,
    /// Packets to clients; 0 unless the replies pass this machine, as they do with
    /// [`Forwarding::Masquerade`].
    ///
    /// [`Forwarding::Masquerade`]: crate::Forwarding::Masquerade
    pub packets_out: u64,
    /// Bytes from clients.
    pub bytes_in: u64,
    /// Bytes to clients.
    pub bytes_out: u64,
    /// New connections per second.
    pub connections_per_second: u64,
    /// Packets from clients per second.
    pub packets_in_per_second: u64,
    /// Packets to clients per second.
    pub packets_out_per_second: u64,
    /// Bytes from clients per second.
    pub bytes_in_per_second: u64,
    /// Bytes to clients per second.
    pub bytes_out_per_second: u64,
}

impl Stats {
    /// How much the counters have grown since `before`; the rates are 0. A counter that is less than before was set to
    /// zero in between (`ipvsadm -Z`), or is that of a server which was deleted and added again.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let since = |now: u64, before| now.checked_sub(before).unwrap_or(now);
        Self {
            connections: since(self.connections, before.connections),
            packets_in: since(self.packets_in, before.packets_in),
            packets_out: since(self.packets_out, before.packets_out),
            bytes_in: since(self.bytes_in, before.bytes_in),
            bytes_out: since(self.bytes_out, before.bytes_out),
            ..Self::default()
        }
    }
}
