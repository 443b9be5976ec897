//! What way packets take through a node, hook by hook.
mod drawing;
mod sighting;
mod tracer;

pub(crate) use drawing::draw;
pub(crate) use tracer::Tracer;
