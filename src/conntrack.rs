//! Conntrack, the kernel's table of connections: its size and timeouts, whether it is full, and the thread that removes
//! stale UDP flows.

pub(crate) mod cleanup;
mod settings;
pub(crate) mod table_full;

pub use settings::TableSize;
