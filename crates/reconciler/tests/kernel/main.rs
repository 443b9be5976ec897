//! The writer on a real kernel.
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on must stop"
)]

#[path = "../unit/common/mod.rs"]
#[allow(dead_code, unused_imports, reason = "this tier uses a part of it")]
mod common;

mod churn;
mod neighbours;
