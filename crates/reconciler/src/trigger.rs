//! Why a sync runs.

use serde::{Deserialize, Serialize};

/// Why a sync ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trigger {
    /// Both lists had arrived: the first sync.
    Start,
    /// The API server or the directory told of a change.
    Change,
    /// The sync period was over.
    Period,
    /// The kernel told that kube-ipvs0, its addresses or our routes changed.
    KernelEvent,
    /// The kernel told that somebody else changed our nf_tables tables.
    TablesChanged,
    /// The kernel told that an address of the node itself came or went, or one that went did not come again in time.
    NodeAddresses,
    /// An earlier sync had failed in part.
    Retry,
    /// An operator asked for it.
    Forced,
    /// Real servers are draining and it was time to look at them.
    Drain,
    /// The sync before put off changes of schedulers.
    Continue,
}

impl Trigger {
    /// Whether the kernel's whole state is read anew for it. For the period the image is compared with the
    /// kernel; the other reasons trust the image.
    pub(crate) fn reads_everything(self) -> bool {
        matches!(self, Self::Start | Self::Forced)
    }

    /// Whether the kernel told of a change by itself.
    pub(crate) fn is_told_by_kernel(self) -> bool {
        matches!(self, Self::KernelEvent | Self::TablesChanged | Self::NodeAddresses)
    }

    /// How much a sync for this reason does: all that one for a less thorough reason would.
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
