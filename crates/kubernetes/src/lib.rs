//! The two sources of Services, EndpointSlices and the Node: the API server, and a directory of manifests.
//!
//! Both decode objects into the plain values of the [`service`] crate and send [`Change`](service::Change)s.

pub mod api;
pub mod directory;
mod objects;
mod problem_log;
mod protobuf;
