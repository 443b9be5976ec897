//! Reads the kernel's counters.

use std::time::{Duration, Instant};

use ipvs::{Ipvs, ObservedRealServer, ObservedVirtualServer};

use super::super::syn_recv::SynRecv;

/// Every virtual server with its real servers, read at about one time.
///
/// Only netlink has the packets and bytes of real servers, with one request for each virtual server:
/// `/proc/net/ip_vs` has no more than connections. What that costs is in docs/evidence/performance.md.
pub(super) struct Sample {
    /// When the reading ended.
    pub(super) at: Instant,
    pub(super) servers: Vec<(ObservedVirtualServer, Vec<ObservedRealServer>)>,
    pub(super) syn_recv: SynRecv,
}

impl Sample {
    /// Reads the whole table, and connections for no longer than `patience`. What comes or goes meanwhile is there or
    /// not.
    pub(super) fn read(kernel: &mut impl Ipvs, patience: Duration) -> Result<Self, ipvs::Error> {
        let mut servers = Vec::new();
        for virtual_server in kernel.virtual_servers()? {
            let real_servers = kernel.real_servers(virtual_server.config.id)?;
            servers.push((virtual_server, real_servers));
        }
        let at = Instant::now();
        Ok(Self { at, servers, syn_recv: SynRecv::read(patience) })
    }
}
