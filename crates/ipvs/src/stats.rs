//! Counters and rates.

use serde::{Deserialize, Serialize};

/// Counters since creation or the last zeroing, and the kernel's two-second rate estimates.
///
/// The kernel brings counters and rates up to date every two seconds; while
/// `net.ipv4.vs.run_estimation` is 0, both stay what they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Connections scheduled.
    pub connections: u64,
    /// Packets from clients.
    pub packets_in: u64,
    /// Packets to clients.
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
