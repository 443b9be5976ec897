//! The part of the configuration that shapes the desired state.

use std::sync::Arc;

use ipvs::Scheduler;

/// What is the same for every Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The name of this node, lower case; decides which endpoints are local.
    pub node_name: Arc<str>,
    /// The scheduler of every virtual server.
    pub scheduler: Scheduler,
}
