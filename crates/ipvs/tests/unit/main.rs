//! The crate as its users see it.
//!
//! A test of one module's inside is beside that module; a test of what is published is here.
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on must stop"
)]

mod public_api;
