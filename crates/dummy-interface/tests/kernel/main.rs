//! kube-ipvs0 and the ways to bind a VIP, on a real kernel.
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on must stop"
)]

mod kube_ipvs0;
mod route_lookup;
