//! The node under the Services: what the daemon sets there, what it warns of, and what a start would change.

mod advice;
mod ipvs_table;
mod parameters;
mod preflight;
