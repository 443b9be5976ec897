//! The reconciler decides when to sync, in what order and with which retry.
//!
//! One thread writes to the kernel (`writer`). It receives changes through a [`Handle`] and keeps the desired
//! state and an image of the kernel. When the schedule says so (`schedule`) it compares the two and carries
//! out the plan (`sync`). A small change compares only what it touched. At the start, when an operator asks
//! and after any doubt about what the kernel did, the kernel is read anew and everything is compared. Every
//! sync period the image is compared with the kernel. The node's own addresses are read from the kernel too,
//! and are an input of the desired state.
//!
//! Some things take more than one sync. Each draining real server is checked, at its own times, until its last
//! connection has ended (`watcher::Draining`). Schedulers are changed a few at a time, and the virtual servers of
//! NodePorts stay for a while at an address that the node has lost (`follow`).
//!
//! What a sync did is logged, counted and remembered, for the status and for each Service (`report`). [`Observer`]s are called
//! after each sync. Other [`Callbacks`] receive the notices for the owners of Services, and the UDP flows
//! that must be deleted from conntrack.

mod follow;
mod inbox;
mod observer;
mod report;
mod schedule;
mod sync;
mod writer;

pub use inbox::{Handle, Stopped, Unanswered, WantedAnswers};
pub use observer::{Callbacks, ChangeEvent, ObjectKind, Observer, StaleFlowCallback, SyncEvent};
pub use report::{
    FirstNamed, ForeignVirtualServers, SyncReport,
    journal::{
        JournalEntry, JournalPage,
        change::{ChangeKind, ServiceChange},
    },
    service_notices::{Notice, NoticeCallback, Reason},
    status::{
        BusyWith, Drain, EjectedFrom, KernelDifference, LastSync, NodeUsage, SyncState, SyncStatus,
        VirtualServerOwner,
    },
    sync_stats::{FailureKind, Programmed, RepairKind, Subsystem, SyncStats},
};
pub use schedule::{Timing, Trigger};
pub use watcher::DrainStats;
pub use writer::start;

/// The target in the log of plans, one operation per line, at the level DEBUG: `RUST_LOG=plan=debug`.
pub const PLAN_LOG: &str = "plan";
