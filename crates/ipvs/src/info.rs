//! What holds for all of a network namespace's IPVS: version, table size, timeouts.

use serde::{Deserialize, Serialize};

/// IPVS connection timeouts in seconds. When setting, 0 leaves a value as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeouts {
    /// Established TCP connections.
    pub tcp: u32,
    /// TCP connections after a FIN.
    pub tcp_fin: u32,
    /// UDP exchanges.
    pub udp: u32,
}

/// What the kernel says of its IPVS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// Version, as major, minor, patch.
    pub version: (u8, u8, u8),
    /// Buckets of the connection table.
    pub connection_table_size: u32,
}
