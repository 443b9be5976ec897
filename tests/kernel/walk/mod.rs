//! Draws the way of packets through a node, hook by hook.
//!
//! The drawing is what people read in docs/packets.md, and what the test asserts: in Rust it would be written twice.
mod drawing;
mod sighting;
mod tracer;

pub(crate) use drawing::draw;
pub(crate) use tracer::Tracer;
