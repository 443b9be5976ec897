//! The image of the kernel, and what must change so that the kernel is as desired.
//!
//! [`Observed`] is read from the kernel through the three seams of [`Kernel`]. [`diff`] compares it with the desired
//! state of the `service` crate. The result is a [`Plan`], a plain value that prints one operation a line.

mod adopt;
mod diff;
mod kernel;
mod observed;
mod operation_kind;
mod ownership;
mod plan;
mod real_servers;
mod verify;
mod virtual_server_image;
mod virtual_servers;

pub use adopt::AdoptError;
pub use diff::{
    PendingChanges, departing_real_servers, diff, diff_everything, differing, differing_links,
    differing_tables, pending_changes,
};
pub use kernel::Kernel;
pub use observed::{Observed, ReadError};
pub use operation_kind::OperationKind;
pub use ownership::{Foreign, Ownership, has_element, is_foreign};
pub use plan::{Batch, Operation, Plan};
pub use real_servers::{RealServerImage, RealServerImages};
pub use verify::{Drift, VerifyError};
pub use virtual_server_image::{RealServersOfImage, VirtualServerImage};
pub use virtual_servers::VirtualServerImages;
