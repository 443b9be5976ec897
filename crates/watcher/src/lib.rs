//! The image of the kernel, and what must change so that the kernel is as desired.
//!
//! [`Observed`] is read from the kernel through the three connections of [`Kernel`]. [`diff`] compares it with the
//! desired state of the `service` crate. The result is a [`Plan`], a plain value that prints one operation a
//! line. [`Draining`] knows which real servers wait for their last connection, and what is done to one next.

mod diff;
mod draining;
mod observed;
mod operation;
mod ownership;
mod plan;
mod read;
mod verification;
mod virtual_servers;

pub use diff::{
    RealServerChanges, departing_real_servers, diff, diff_everything, differing, differing_in,
    real_server_changes,
};
pub use draining::{DrainStats, Draining, connections_cut_off};
pub use observed::Observed;
pub use operation::{Operation, OperationKind};
pub use ownership::{Foreign, Ownership, has_element, is_foreign};
pub use plan::{Batch, Plan};
pub use read::{Kernel, ReadError, SummaryError};
pub use verification::{Drift, Verification};
pub use virtual_servers::{RealServerImage, RealServerImages, VirtualServerImage, VirtualServerImages};
