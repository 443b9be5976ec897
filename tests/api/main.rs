//! What needs a real API server: the manifests, the role, the commands of the documents, and in [`node`] the program on
//! a node.
//!
//! What needs a kernel with IPVS too goes into [`node`], everything else beside it.
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on must stop"
)]

#[path = "../support/mod.rs"]
mod support;

mod documents;
mod manifests;
mod monitoring;
mod node;
mod preflight;
mod rbac;
