//! The preflight: what would happen on this node if a daemon started, found out without changing anything.
//!
//! Each check is a function of plain values and has a file of its own; `read` and `look` gather the values. Nothing is
//! tried: what only a write would show, or a question that makes the kernel load a module, is said to be not known.

mod arp;
mod finding;
mod firewall;
mod kernel;
mod look;
mod modules;
mod parameters;
mod plan;
mod ports;
mod proxy;
mod read;
mod refused;

pub use finding::{Finding, Verdict};
pub use look::{Report, look};
