//! The program beside the real kube-proxy: the same virtual servers for the same objects, and no connection lost when
//! one takes over from the other.
//!
//! What both kernels must look like after a change is a script in `scripts/`; everything else is a test here.
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on must stop"
)]

#[path = "../support/mod.rs"]
mod support;

mod hand_over;
mod host_firewall;
mod leftovers;
mod metrics;
mod migration;
mod scripts;
mod way_out;
