//! Reads the kernel's counters.

use std::time::Instant;

use ipvs::{Ipvs, ObservedRealServer, ObservedVirtualServer};

/// Every virtual server with its real servers, read at about one time.
///
/// Only netlink has the packets and bytes of real servers, with one request for each virtual server:
/// `/proc/net/ip_vs` has no more than connections. What that costs is in docs/performance.md.
pub(super) struct Sample {
    /// When the reading ended.
    pub(super) at: Instant,
    pub(super) servers: Vec<(ObservedVirtualServer, Vec<ObservedRealServer>)>,
}

impl Sample {
    /// Reads the whole table. What comes or goes meanwhile is there or not.
    pub(super) fn read(kernel: &mut impl Ipvs) -> Result<Self, ipvs::Error> {
        let mut servers = Vec::new();
        for virtual_server in kernel.virtual_servers()? {
            let real_servers = kernel.real_servers(virtual_server.config.id)?;
            servers.push((virtual_server, real_servers));
        }
        Ok(Self { at: Instant::now(), servers })
    }
}
