//! The image of the kernel, and what must change so that the kernel is as desired.
//!
//! [`Observed`] is read from the kernel through the three seams of [`Kernel`]. [`diff`] compares it with the desired
//! state of the `service` crate. The result is a [`Plan`], a plain value that prints one operation a line.

mod diff;
mod observed;
mod ownership;
mod plan;
mod read;
mod virtual_servers;

pub use diff::{
    PendingChanges, departing_real_servers, diff, diff_everything, differing, differing_links,
    differing_tables, pending_changes,
};
pub use observed::Observed;
pub use ownership::{Foreign, Ownership, has_element, is_foreign};
pub use plan::{Batch, Operation, OperationKind, Plan};
pub use read::{AdoptError, Drift, Kernel, ReadError, VerifyError};
pub use virtual_servers::{
    RealServerImage, RealServerImages, RealServersOfImage, VirtualServerImage, VirtualServerImages,
};
