//! What takes more than one sync.

pub(crate) mod lost_addresses;
pub(crate) mod schedulers;
pub(crate) mod stale_flows;
pub(crate) mod tunnels;

use service::{Dirty, Key};

/// What another program has changed and is not repaired.
#[derive(Debug, Default)]
pub(crate) struct Unrepaired {
    /// Whether the kernel was read before. The first reading finds what an earlier daemon left, which is no
    /// repair.
    adopted: bool,
    keys: Dirty,
}

impl Unrepaired {
    /// Records that the kernel was read: later differences are changes since then.
    pub(crate) fn mark_adopted(&mut self) {
        self.adopted = true;
    }

    /// Whether the kernel was read before.
    pub(crate) fn has_adopted(&self) -> bool {
        self.adopted
    }

    /// Records what differs from the image, without the keys that are expected to.
    pub(crate) fn add(&mut self, drift: &Dirty, is_expected: impl Fn(&Key) -> bool) {
        if self.adopted {
            self.keys.extend(drift.keys().filter(|key| !is_expected(key)));
        }
    }

    /// Whether an operation on this key repairs something.
    pub(crate) fn contains(&self, key: &Key) -> bool {
        self.keys.contains(key)
    }

    /// Whether nothing is left to repair.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Keeps the keys that must still be compared after a sync: the rest is as desired.
    pub(crate) fn retain(&mut self, remains: impl Fn(&Key) -> bool) {
        self.keys = self.keys.keys().filter(remains).collect();
    }
}
