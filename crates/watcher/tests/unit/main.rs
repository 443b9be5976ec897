//! Desired state and the image of a kernel in; a plan out.
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on must stop"
)]

mod common;
mod plans;
mod steps;
mod verify;
