//! Our nf_tables tables and conntrack, on a real kernel.
//!
//! A new test goes into the module of its subject; [`support`] has hosts and cross-checks for all of them.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on must stop"
)]

mod conntrack;
mod monitor;
mod nftables;
mod support;
