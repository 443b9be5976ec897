//! What the writer thread calls.

use std::fmt;

use netfilter::conntrack::StaleFlows;

use crate::{NoticeCallback, Observer};

/// Receives the UDP flows that must be deleted from conntrack after a sync. The writer thread calls it: it must not
/// block.
pub type StaleFlowCallback = Box<dyn Fn(StaleFlows) + Send>;

/// The functions and observers that the writer thread calls. None of them may block.
pub struct Callbacks {
    /// Receives the notices for the owners of Services.
    pub notices: NoticeCallback,
    /// Receives the flows that must be deleted from conntrack.
    pub stale_flows: StaleFlowCallback,
    /// The observers, such as health checks and metrics, in the order in which they are called.
    pub observers: Vec<Box<dyn Observer>>,
}

impl Callbacks {
    /// Callbacks that do nothing.
    pub fn none() -> Self {
        Self { notices: Box::new(drop), stale_flows: Box::new(drop), observers: Vec::new() }
    }
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks").finish_non_exhaustive()
    }
}
