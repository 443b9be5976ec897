//! What was seen. It comes out of the guest as JSON.

use serde::{Deserialize, Serialize};
use testkit::kernel_baseline::Reading;

use super::{
    case::Case,
    data_plane::figures::DataPlane,
    ejection::Shares,
    published::{Core, Published},
    schedulers::figures::Schedulers,
};
use crate::statistics::Percentiles;

/// A case and what was seen, or why nothing was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Measured {
    #[serde(flatten)]
    pub(super) case: Case,
    pub(super) outcome: Result<Figures, String>,
}

/// Of the subject of the same name. Times in seconds, memory in bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figures {
    /// What the kernel itself needs.
    KernelBaseline(KernelBaseline),
    /// What a node needs that has nothing.
    ColdSync(ColdSync),
    /// Of changes one after the other.
    EndpointChange {
        /// Until the kernel has it.
        kernel: Percentiles,
        /// Until a client that does nothing with it has been sent it.
        watch: Percentiles,
    },
    /// Of one comparison.
    Reconcile {
        /// By the clock.
        wall: f64,
        /// Of the processor.
        processor: f64,
    },
    /// From the start.
    Restart {
        /// Until both lists are complete.
        list_transfer: f64,
        /// Until it is ready.
        ready: f64,
    },
    /// Of the program.
    Memory(Memory),
    /// Until it is served.
    FirstVip {
        /// From the start of the program.
        from_start: f64,
        /// From the first byte of a list.
        from_first_byte: f64,
    },
    /// Of all changes.
    RollingUpdate {
        /// How many endpoints were replaced.
        changes: usize,
        /// How far the kernel was behind.
        lag: Percentiles,
    },
    /// During each of the tenant's changes.
    Fairness(Vec<Waits>),
    /// Of one size.
    Growth(Phases),
    /// Of the daemon.
    Ejection(Shares),
    /// Of one number of Services.
    DataPlane(DataPlane),
    /// Of one number of nodes.
    Schedulers(Schedulers),
    /// Of one program.
    Published(Published),
    /// Of the core.
    Core(Core),
}

/// What the kernel itself needs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelBaseline {
    /// To write everything.
    pub write: f64,
    /// To read everything.
    pub read: Reading,
}

/// How long it takes until a kernel that has nothing has everything.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ColdSync {
    /// From the start of the program to the end of the sync after which the kernel has everything.
    pub from_start: f64,
    /// From both lists sent to then.
    pub from_lists: f64,
    /// In all syncs up to then. kube-ipvs has one, and what is decoded and computed of the lists is not a part of it.
    pub in_syncs: f64,
}

/// What a program has, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// At rest.
    pub steady: f64,
    /// The most.
    pub peak: f64,
}

/// How long others wait while one change of a tenant is carried out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Waits {
    /// The change: what the tenant does.
    pub change: String,
    /// How long the change takes.
    pub took: f64,
    /// Until the kernel has another endpoint of another Service,
    pub neighbour: Percentiles,
    /// of cluster DNS,
    pub dns: Percentiles,
    /// and until another program has changed nf_tables, its start included.
    pub nft: Percentiles,
}

/// What each phase takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Phases {
    /// The first sync.
    pub cold_sync: ColdSync,
    /// A full comparison with nothing to do, requested by an operator.
    pub resync: f64,
    /// One endpoint: the median.
    pub change: f64,
    /// Of the program.
    pub memory: Memory,
}

impl Figures {
    /// The seconds by which two runs are compared; `None` if one run is many measurements.
    fn seconds(&self) -> Option<f64> {
        match self {
            Self::KernelBaseline(KernelBaseline { write, read }) => {
                Some(write + read.ipvs_as_text + read.rest)
            }
            Self::ColdSync(sync) => Some(sync.from_lists),
            Self::Reconcile { wall, .. } => Some(*wall),
            Self::Restart { ready, .. } => Some(*ready),
            Self::FirstVip { from_first_byte, .. } => Some(*from_first_byte),
            Self::Core(core) => Some(core.took),
            Self::EndpointChange { .. }
            | Self::Memory(_)
            | Self::RollingUpdate { .. }
            | Self::Fairness(_)
            | Self::Growth(_)
            | Self::Ejection(_)
            | Self::DataPlane(_)
            | Self::Schedulers(_)
            | Self::Published(_) => None,
        }
    }

    /// Whether another run is worth it.
    pub(super) fn vary(&self) -> bool {
        self.seconds().is_some()
    }

    /// The faster of two runs of the same.
    pub(super) fn faster(self, other: Self) -> Self {
        if other.seconds() < self.seconds() { other } else { self }
    }
}
