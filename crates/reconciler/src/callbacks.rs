//! Where the writer thread leaves what is for others.

use std::fmt;

use netfilter::conntrack::StaleFlows;

use crate::{Notices, Observer};

/// Takes the UDP flows that are to be deleted from conntrack after a sync. The writer thread calls it: it
/// must not block.
pub type StaleFlowOutlet = Box<dyn Fn(StaleFlows) + Send>;

/// The receivers of what the writer thread leaves for others.
pub struct Outlets {
    /// Takes the notices for the owners of Services.
    pub notices: Notices,
    /// Takes the flows that conntrack is to forget.
    pub stale_flows: StaleFlowOutlet,
    /// The observers, such as health checks and metrics, in the order in which they are called.
    pub observers: Vec<Box<dyn Observer>>,
}

impl Outlets {
    /// Outlets to which nobody listens.
    pub fn closed() -> Self {
        Self { notices: Box::new(drop), stale_flows: Box::new(drop), observers: Vec::new() }
    }
}

impl fmt::Debug for Outlets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outlets").finish_non_exhaustive()
    }
}
