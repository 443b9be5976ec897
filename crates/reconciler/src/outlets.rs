//! What the writer thread passes on.

use std::{collections::BTreeSet, fmt};

use netfilter::conntrack::StaleFlow;

use crate::{Notices, Observer};

/// Takes UDP flows that are to be deleted from conntrack, once a sync has ended. The writer thread calls it:
/// it must not block.
pub type StaleFlowOutlet = Box<dyn Fn(BTreeSet<StaleFlow>) + Send>;

/// Where the writer thread leaves what is for others.
pub struct Outlets {
    /// For the owners of Services.
    pub notices: Notices,
    /// For whoever tidies conntrack up.
    pub stale_flows: StaleFlowOutlet,
    /// For health checks and metrics; each is called in this order.
    pub observers: Vec<Box<dyn Observer>>,
}

impl Outlets {
    /// Nobody listens.
    pub fn closed() -> Self {
        Self { notices: Box::new(drop), stale_flows: Box::new(drop), observers: Vec::new() }
    }
}

impl fmt::Debug for Outlets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outlets").finish_non_exhaustive()
    }
}
