//! From inputs to a plan: watches the API server or a directory, reads the kernel, and compares.
//!
//! The parts meet in [`diff`]: the desired state comes from the `service` crate, fed by one of
//! the two sources here; [`Observed`] is read from the kernel through the three seams of [`Kernel`];
//! the result is a [`Plan`], a plain value that prints one operation a line.

mod adopt;
pub mod api;
mod diff;
pub mod directory;
mod kernel;
mod observed;
mod one_line;
mod operation_kind;
mod ownership;
mod plan;
mod real_servers;
pub mod seconds;
mod verify;
mod view;

pub use adopt::AdoptError;
pub use diff::{Scope, Whole, departing_real_servers, diff};
pub use kernel::Kernel;
pub use observed::{Observed, ReadError, VirtualServerImage};
pub use one_line::one_line;
pub use operation_kind::OperationKind;
pub use ownership::Ownership;
pub use plan::{Batch, Operation, Plan};
pub use real_servers::{RealServerImage, RealServerImages};
pub use verify::{Drift, VerifyError};
