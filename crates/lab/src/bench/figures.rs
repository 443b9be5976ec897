//! What was seen. It comes out of the guest as JSON.

use serde::{Deserialize, Serialize};

use super::{case::Case, data_plane::figures::DataPlane};

/// A case and what was seen, or why nothing was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Measured {
    #[serde(flatten)]
    pub(super) case: Case,
    pub(super) outcome: Result<Figures, String>,
}

/// Times in seconds, memory in bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figures {
    /// Of [`Subject::KernelBaseline`].
    KernelBaseline {
        /// To write everything.
        write: f64,
        /// To read virtual and real servers by netlink.
        read_ipvs_by_netlink: f64,
        /// To read them as text.
        read_ipvs_as_text: f64,
        /// To read everything else.
        read_rest: f64,
    },
    /// Of [`Subject::ColdSync`].
    ColdSync(ColdSync),
    /// Of [`Subject::EndpointChange`].
    EndpointChange {
        /// Until the kernel has it.
        kernel: Percentiles,
        /// Until a client that does nothing with it has been sent it.
        watch: Percentiles,
    },
    /// Of [`Subject::Reconcile`].
    Reconcile {
        /// By the clock.
        wall: f64,
        /// Of the processor.
        processor: f64,
    },
    /// Of [`Subject::Restart`].
    Restart {
        /// Until both lists are complete.
        list_transfer: f64,
        /// Until it is ready.
        ready: f64,
    },
    /// Of [`Subject::Memory`].
    Memory {
        /// At rest.
        steady: u64,
        /// The most.
        peak: u64,
    },
    /// Of [`Subject::FirstVip`].
    FirstVip {
        /// From the start of the program.
        from_start: f64,
        /// From the first byte of a list.
        from_first_byte: f64,
    },
    /// Of [`Subject::RollingUpdate`].
    RollingUpdate {
        /// How many endpoints were replaced.
        changes: usize,
        /// How far the kernel was behind.
        lag: Percentiles,
        /// The most that it was behind.
        greatest: f64,
    },
    /// Of [`Subject::Growth`].
    Growth(Phases),
    /// Of [`Subject::DataPlane`].
    DataPlane(DataPlane),
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
    /// Memory at rest.
    pub steady: u64,
    /// The most memory.
    pub peak: u64,
}

/// Of times in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// What one of a hundred exceeds.
    pub p99: f64,
}

impl Figures {
    /// The seconds by which two runs are compared; `None` if one run is many measurements.
    fn seconds(&self) -> Option<f64> {
        match self {
            Self::KernelBaseline { write, read_ipvs_as_text, read_rest, .. } => {
                Some(write + read_ipvs_as_text + read_rest)
            }
            Self::ColdSync(sync) => Some(sync.from_lists),
            Self::Reconcile { wall, .. } => Some(*wall),
            Self::Restart { ready, .. } => Some(*ready),
            Self::FirstVip { from_first_byte, .. } => Some(*from_first_byte),
            Self::EndpointChange { .. }
            | Self::Memory { .. }
            | Self::RollingUpdate { .. }
            | Self::Growth(_)
            | Self::DataPlane(_) => None,
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

impl Percentiles {
    /// Of at least one time.
    pub(crate) fn from_times(mut times: Vec<f64>) -> Option<Self> {
        times.sort_by(f64::total_cmp);
        let rank = |percent: usize| (times.len() * percent).div_ceil(100).saturating_sub(1);
        Some(Self { p50: *times.get(rank(50))?, p99: *times.get(rank(99))? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_seen_and_there_are_none_of_nothing() {
        let hundred = (1..=100).rev().map(f64::from).collect();
        assert_eq!(Percentiles::from_times(hundred), Some(Percentiles { p50: 50.0, p99: 99.0 }));
        assert_eq!(Percentiles::from_times(vec![7.0]), Some(Percentiles { p50: 7.0, p99: 7.0 }));
        assert_eq!(Percentiles::from_times(Vec::new()), None);
    }
}
