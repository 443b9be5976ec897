//! The first look at the kernel.

use std::io;

use ipvs::{Forwarding, RealServer, proc_net::VirtualServerSummary};
use rustc_hash::FxHashMap;

use crate::{Kernel, Observed, ReadError, RealServerImage, RealServerImages};

/// Why the kernel could not be read in short.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// The kernel does not show its virtual servers in short, or not in a form that is understood.
    #[error("cannot read IPVS in short")]
    NoSummary(#[source] io::Error),
    /// The kernel could not be read.
    #[error(transparent)]
    Unread(#[from] ReadError),
}

impl Observed {
    /// Reads everything, but the real servers only in short: a start over what an earlier daemon has left
    /// must not take long.
    ///
    /// The connections of real servers are not read, so those that leave have to be read again
    /// ([`refresh_real_servers`](Self::refresh_real_servers)). Nor are thresholds read, and a bypassed real
    /// server is taken for a masqueraded one, until the virtual server has its turn at
    /// [`verify`](Self::verify).
    pub fn adopt(kernel: &mut Kernel) -> Result<Self, AdoptError> {
        let mut shown = FxHashMap::default();
        let read = kernel.ipvs.for_each_summary(&mut |server| {
            shown.extend(in_short(server).map(|real_servers| (server.address, real_servers)));
        });
        read.map_err(AdoptError::NoSummary)?;
        // The virtual servers themselves cost one dump. The text may have omitted some.
        Ok(Self::read_beside(kernel, shown)?)
    }
}

/// The real servers as they are shown in short; `None` if one is a tunnel, of which too little is shown.
fn in_short(server: &VirtualServerSummary) -> Option<RealServerImages> {
    let image = |shown: &ipvs::proc_net::RealServerSummary| {
        let config = RealServer::new(shown.address, shown.forwarding).weight(shown.weight);
        let known = shown.forwarding != Forwarding::Tunnel;
        known.then_some(RealServerImage { config, connections: 0, expired: false })
    };
    server.real_servers.iter().map(image).collect()
}
