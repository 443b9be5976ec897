//! What is written is what the kernel holds, and what is read back. In a real kernel, each test in a network
//! namespace of its own.
//!
//! A new test goes into the module of what is written or read; [`support`] has what all of them use.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on must stop"
)]

mod attributes;
mod listing;
mod outcomes;
mod proc_net;
#[cfg(feature = "wire")]
mod reload;
mod support;
mod whole_table;
