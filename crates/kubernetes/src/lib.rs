//! The two sources of Services, EndpointSlices and the Node: the API server, and a directory of manifests.
//!
//! Both read objects down to the plain values of the [`service`] crate, and send what happens to them.

pub mod api;
pub mod directory;
mod objects;
mod problem_log;
