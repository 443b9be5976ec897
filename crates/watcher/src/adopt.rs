//! The first reading of the kernel.

use std::io;

use ipvs::{Forwarding, RealServer, proc_net::VirtualServerSummary};
use rustc_hash::FxHashMap;

use crate::{Kernel, Observed, ReadError, RealServerImages};

/// Why the kernel could not be read for the first time.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// `/proc/net/ip_vs` does not exist, or cannot be parsed.
    #[error("cannot read /proc/net/ip_vs")]
    NoSummary(#[source] io::Error),
    /// The kernel could not be read.
    #[error(transparent)]
    Unread(#[from] ReadError),
}

impl Observed {
    /// Reads everything, but the real servers from `/proc/net/ip_vs`: a start over the state of an earlier
    /// daemon must not take long.
    ///
    /// The connections of real servers are not read, so departing ones have to be read again
    /// ([`refresh_real_servers`](Self::refresh_real_servers)). Nor are thresholds read, and a bypassed real
    /// server is taken for a masqueraded one, until the virtual server is read by netlink.
    pub fn adopt(kernel: &mut Kernel) -> Result<Self, AdoptError> {
        let mut shown = FxHashMap::default();
        let read = kernel.ipvs.for_each_summary(&mut |server| {
            shown.extend(from_summary(server).map(|real_servers| (server.address, real_servers)));
        });
        read.map_err(AdoptError::NoSummary)?;
        // The virtual servers themselves cost one dump. The text may have omitted some.
        Ok(Self::read_beside(kernel, shown)?)
    }
}

/// The real servers of a summary; `None` if one is a tunnel, of which a summary shows too little.
fn from_summary(server: &VirtualServerSummary) -> Option<RealServerImages> {
    let image = |shown: &ipvs::proc_net::RealServerSummary| {
        let config = RealServer::new(shown.address, shown.forwarding).weight(shown.weight);
        let known = shown.forwarding != Forwarding::Tunnel;
        known.then_some(config.into())
    };
    server.real_servers.iter().map(image).collect()
}
