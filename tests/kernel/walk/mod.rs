//! What way packets take through a node, hook by hook, as a drawing.
//!
//! The drawing is what people read in docs/packets.md, and what the test asserts: in Rust it would be written twice.
mod drawing;
mod sighting;
mod tracer;

pub(crate) use drawing::draw;
pub(crate) use tracer::Tracer;
