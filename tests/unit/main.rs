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
mod metrics;
mod monitoring;
mod parity;
mod peer_scripts;
mod shell;
mod tiers;

use std::process::Command;

/// The program, without what a pod or the developer has in the environment.
fn kube_ipvs() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kube-ipvs"));
    command.env_remove("KUBERNETES_SERVICE_HOST").env_remove("RUST_LOG");
    command
}
