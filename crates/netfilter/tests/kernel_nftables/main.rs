//! Our nf_tables tables on the real kernel: what is installed, and what it does to packets.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "the tests' own functions fail a test by panicking"
)]

mod accept_mark;
mod cluster;
mod external;
mod firewall;
mod host;
mod hostport;
mod masquerade;
mod programs;
mod tables;
