//! The daemon starts, is alone on its node, is replaced and ends.

mod hardened;
mod instance_lock;
mod refusals;
pub(crate) mod restarts;
mod shutdown;
