//! The program on a node of a lab, on a real kernel with IPVS, fed by a directory of manifests.
//!
//! A new test goes into the module of what a user sees; tests/README.md says which tier is the right one. Each test
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

mod address_owners;
mod addresses;
mod advice;
mod balancing;
mod bugreport;
mod cleanup;
mod control;
mod direct_return;
mod documents;
mod draining;
mod evaluation;
mod evaluations;
mod exposure;
mod hand_over;
mod hardened;
mod health;
mod instance_lock;
mod ipvs_table;
mod limits;
mod list;
mod local_mode;
mod log;
mod lost_packets;
mod metrics;
mod packet_reports;
mod packet_table;
mod packets;
mod parameters;
mod policies;
mod preflight;
mod questions;
mod refusals;
mod repair;
mod restarts;
mod schedulers;
mod services;
mod shutdown;
mod top;
mod udp;
mod upgrades;
mod vip_binding;
mod walk;
mod walks;
