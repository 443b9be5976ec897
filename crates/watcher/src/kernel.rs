//! The three seams to the kernel, together.

use std::fmt;

use dummy_interface::DummyInterface;
use ipvs::Ipvs;
use netfilter::Netfilter;

/// The kernel of one network namespace: the real one, or a fake that can fail at any call.
pub struct Kernel {
    /// The seam to virtual and real servers.
    pub ipvs: Box<dyn Ipvs + Send>,
    /// The seam to our nf_tables tables.
    pub netfilter: Box<dyn Netfilter + Send>,
    /// The seam to kube-ipvs0, the VIPs on it, and the node's own addresses.
    pub dummy_interface: Box<dyn DummyInterface + Send>,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").finish_non_exhaustive()
    }
}
