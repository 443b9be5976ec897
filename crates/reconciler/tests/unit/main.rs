//! The writer on a fake kernel: when it syncs, what it writes, and what it does when the kernel refuses.
//!
//! A new test goes into the module of its subject; [`common`] has the fake kernel and the objects, [`story`] whole
//! sequences of events with faults.
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on must stop"
)]

mod common;
mod direct_return;
mod draining;
mod faults;
mod kernel_events;
mod leaving;
mod lost;
mod node_addresses;
mod order;
mod periodic_sync;
mod refusals;
mod reports {
    //! What the writer reports: to observers, to the checks of the node, and in answer to questions.

    mod checked;
    mod journal;
    mod node_usage;
    mod observers;
    mod questions;
    mod service_notices;
    mod sync_stats;
}
mod schedulers;
mod source_ranges;
mod stale_flows;
mod start;
mod story;
mod syncs;

use common::objects;
