//! What way packets take through a node, hook by hook.
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on must stop"
)]

mod drawing;
mod sighting;
mod tracer;

pub(crate) use drawing::draw;
pub(crate) use tracer::Tracer;
