//! The program without a kernel: its command line, and what manifests, documents and tables promise.
//!
//! One program holds all of them, because each program links everything again. A new test goes into the module of its
//! subject; tests/README.md says which tier is the right one.
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on must stop"
)]

#[path = "../support/mod.rs"]
mod support;

mod bugreport;
mod command_line;
mod config_convert;
mod documentation;
mod flags;
mod house;
mod monitoring;
mod parity;
mod peer_scripts;
mod shell;
mod tiers;
