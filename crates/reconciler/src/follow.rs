//! What takes more than one sync.

pub(crate) mod draining;
pub(crate) mod lost_addresses;
pub(crate) mod missing_tunnels;
pub(crate) mod repairs;
pub(crate) mod schedulers;
pub(crate) mod stale_flows;
pub(crate) mod tunnels_in_use;
