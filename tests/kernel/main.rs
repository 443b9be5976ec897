//! The program on a node of a lab, on a real kernel with IPVS, fed by a directory of manifests.
//!
//! A new test goes into the module of what a user sees, in its group; tests/README.md says which tier is the right one. Each test
//! makes its own network namespaces and says `#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]`. Those of
//! `upgrades` need the program of the version before, and are in the tier release.
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on must stop"
)]

#[path = "../support/mod.rs"]
mod support;

mod addresses;
mod daemon;
mod direct_return;
mod node;
mod operator;
mod packets;
mod repair;
mod services;
mod upgrades;
