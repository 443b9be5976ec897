//! The reconciler decides when to sync, in what order and with which retry.
//!
//! One thread writes to the kernel. It takes in news through a [`Handle`], keeps the desired state
//! and an image of the kernel, and whenever the schedule says so compares the two and carries out
//! the plan. A small change compares only what it touched; at the start, every sync period, when an
//! operator asks and after any doubt about what the kernel did, the kernel is read anew and
//! everything is compared. The node's own addresses are read from the kernel too, and are part of what the
//! desired state is made of.
//!
//! Two things take more than one sync: real servers that drain are looked at, each at its own time, until
//! their last connection has ended; and schedulers are changed a few at a time.
//!
//! The writer leaves work for others in [`Callbacks`]: notices for the owners of Services, and UDP flows that
//! conntrack is to forget. [`Observer`]s hear of each sync.

mod callbacks;
mod follow;
mod handle;
mod mailbox;
mod observer;
mod report;
mod schedule;
mod sync;
mod trigger;
mod waiting;
mod writer;

pub use callbacks::{Callbacks, StaleFlowCallback};
pub use handle::{Handle, Stopped, Unanswered};
pub use observer::{ChangeEvent, ObjectKind, Observer, SyncEvent};
pub use report::{
    SyncReport,
    node_usage::NodeUsage,
    notice::{Notice, NoticeCallback, Reason},
    status::{Drain, LastSync, SyncStatus},
    sync_state::SyncState,
    sync_stats::{DrainStats, FailureKind, RepairKind, Subsystem, SyncStats},
    virtual_server_owner::VirtualServerOwner,
};
pub use schedule::Timing;
pub use trigger::Trigger;
pub use writer::start;
