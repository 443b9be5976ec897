//! Why a sync runs.

use serde::{Deserialize, Serialize};

/// Why a sync ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trigger {
    /// Both lists have arrived: the first sync.
    Start,
    /// The API server or the directory reported a change.
    Change,
    /// The sync period was over.
    Period,
    /// The kernel reported a change of kube-ipvs0, its addresses or our routes.
    KernelEvent,
    /// The kernel reported that another program changed our nf_tables tables.
    TablesChanged,
    /// The kernel reported that the node got or lost an address, or the grace period of a lost one has ended.
    NodeAddresses,
    /// An earlier sync failed in part.
    Retry,
    /// An operator requested it.
    Forced,
    /// Draining real servers were due for a check.
    Drain,
    /// The previous sync had no time for everything, or deferred changes of schedulers or the verification of what the start
    /// has adopted.
    Continue,
}

impl Trigger {
    /// Whether the sync reads the kernel's whole state anew, a forced one by netlink alone. A periodic sync compares the
    /// image with the kernel; the other syncs trust the image.
    pub(crate) fn reads_everything(self) -> bool {
        matches!(self, Self::Start | Self::Forced)
    }

    /// Whether a notification of the kernel is the reason.
    pub(crate) fn is_from_kernel(self) -> bool {
        matches!(self, Self::KernelEvent | Self::TablesChanged | Self::NodeAddresses)
    }

    /// Ranks the reasons: a sync does everything that a sync of a lower rank would do.
    pub(crate) fn thoroughness(self) -> u8 {
        match self {
            Self::Drain | Self::Continue => 0,
            Self::Change | Self::Retry => 1,
            Self::NodeAddresses => 2,
            Self::KernelEvent | Self::TablesChanged => 3,
            Self::Period | Self::Start => 4,
            Self::Forced => 5,
        }
    }
}
