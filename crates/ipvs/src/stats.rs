//! Counters and rates.

use serde::{Deserialize, Serialize};

/// Counters since creation or the last zeroing, and the kernel's rate estimates: `IPVS_STATS_ATTR_*` in
/// include/uapi/linux/ip_vs.h.
///
/// The kernel brings both up to date every two seconds, and averages the rates (net/netfilter/ipvs/ip_vs_est.c).
/// While `net.ipv4.vs.run_estimation` is 0, both stay what they were. Kernels before 4.1 have 32-bit counters of
/// packets and connections, which overflow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Stats {
    /// Connections scheduled.
    pub connections: u64,
    /// Packets from clients.
    pub packets_in: u64,
    /// Packets to clients; 0 unless the replies pass this machine, as they do with [`Forwarding::Masquerade`].
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
