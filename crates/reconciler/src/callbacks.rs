//! Where the writer thread leaves what is for others.

use std::fmt;

use netfilter::conntrack::StaleFlows;

use crate::{NoticeCallback, Observer};

/// Takes the UDP flows that are to be deleted from conntrack after a sync. The writer thread calls it: it
/// must not block.
pub type StaleFlowCallback = Box<dyn Fn(StaleFlows) + Send>;

/// The receivers of what the writer thread leaves for others.
pub struct Callbacks {
    /// Takes the notices for the owners of Services.
    pub notices: NoticeCallback,
    /// Takes the flows that conntrack is to forget.
    pub stale_flows: StaleFlowCallback,
    /// The observers, such as health checks and metrics, in the order in which they are called.
    pub observers: Vec<Box<dyn Observer>>,
}

impl Callbacks {
    /// Callbacks to which nobody listens.
    pub fn none() -> Self {
        Self { notices: Box::new(drop), stale_flows: Box::new(drop), observers: Vec::new() }
    }
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks").finish_non_exhaustive()
    }
}
