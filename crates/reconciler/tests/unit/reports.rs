//! What the writer reports: to observers, to the checks of the node, and in answer to questions.

mod journal;
mod node_usage;
mod observers;
mod questions;
mod service_notices;
mod sync_stats;
