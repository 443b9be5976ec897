//! The first look at the kernel.

use ipvs::{Forwarding, RealServer, survey::VirtualServerSummary};
use rustc_hash::FxHashMap;

use crate::{Kernel, Observed, RealServerImage, RealServerImages, VerifyError};

impl Observed {
    /// Reads everything, the real servers in short: for a start, that must not take long, over what an earlier daemon
    /// has left.
    ///
    /// Their connections are not read, so those that leave have to be read again
    /// ([`refresh_real_servers`](Self::refresh_real_servers)). Nor are thresholds, which are taken for none, and what is
    /// bypassed is taken for masqueraded: each virtual server has its turn at [`verify`](Self::verify).
    pub fn adopt(kernel: &mut Kernel) -> Result<Self, VerifyError> {
        let mut shown = FxHashMap::default();
        let survey = kernel.ipvs.survey(&mut |server| {
            shown.extend(in_short(server).map(|real_servers| (server.address, real_servers)));
        });
        survey.map_err(VerifyError::NoSurvey)?;
        // The virtual servers themselves cost one dump. The text may have omitted some.
        Ok(Self::read_beside(kernel, shown)?)
    }
}

/// Of a tunnel the text says too little: `None`.
fn in_short(server: &VirtualServerSummary) -> Option<RealServerImages> {
    let image = |shown: &ipvs::survey::RealServerSummary| {
        let config = RealServer {
            forwarding: shown.forwarding,
            weight: shown.weight,
            ..RealServer::masquerade(shown.address.ip, shown.address.port)
        };
        let known = shown.forwarding != Forwarding::Tunnel;
        known.then_some(RealServerImage { config, connections: 0, expired: false })
    };
    server.real_servers.iter().map(image).collect()
}
