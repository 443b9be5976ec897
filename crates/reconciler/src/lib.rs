//! When to sync, in what order, with which retry.
//!
//! One thread writes to the kernel. It takes in news through a [`Handle`], keeps the desired state
//! and an image of the kernel, and whenever the schedule says so compares the two and carries out
//! the plan. A small change compares only what it touched; at the start, every sync period, when an
//! operator asks and after any doubt about what the kernel did, the kernel is read anew and
//! everything is compared.

mod about;
mod apply;
mod conflicts;
mod draining;
mod handle;
mod journal;
mod notice;
mod reconcile;
mod report;
mod schedule;
mod schedulers;
mod writer;

pub use handle::{Handle, Stopped};
pub use notice::{Notice, Notices, Reason};
pub use report::{LastSync, Report, Status, Trigger};
pub use schedule::Timing;
pub use writer::start;
