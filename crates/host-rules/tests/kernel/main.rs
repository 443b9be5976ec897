//! The host's own firewall on a real kernel.
//!
//! A new test goes into the module of its subject; [`support`] has hosts and programs for all of them.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on must stop"
)]

#[path = "../../../netfilter/tests/kernel/support/mod.rs"]
#[allow(dead_code, reason = "the tests of our own tables use the rest")]
mod support;

mod host_firewall;
