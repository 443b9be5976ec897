//! Conntrack, the kernel's table of connections: its size and timeouts, whether it is full, and the thread that removes
//! stale UDP flows.

pub(crate) mod cleanup;
mod cleanup_metrics;
mod settings;
pub(crate) mod table_full;
mod table_metrics;

pub use cleanup_metrics::CleanupMetrics;
pub use settings::TableSize;
pub(crate) use table_metrics::ConntrackTable;
