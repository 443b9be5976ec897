//! The inbox of the writer thread, which it empties between syncs. Only what the writer has to know is kept,
//! so that a slow kernel costs no memory.

mod handle;
mod pending_changes;

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use dummy_interface::Changed;

pub use self::handle::{Handle, Stopped, Unanswered};
pub(crate) use self::{
    handle::Input,
    pending_changes::{PendingChange, PendingChanges},
};

/// The inbox of the writer thread. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inbox(Arc<Mutex<Pending>>);

/// What has arrived since the writer thread last emptied its inbox.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// Changes from the API server or the directory.
    pub(crate) changes: PendingChanges,
    /// The kernel's notifications about kube-ipvs0 and addresses, perhaps of our own work.
    pub(crate) dummy_interface: Changed,
    /// Whether the kernel has notified of a change of our nf_tables tables by another program.
    pub(crate) tables: bool,
}

/// The number of VIPs that are kept one by one. Hardly more are bound, unless another program adds and
/// removes ever different ones; beyond it, kube-ipvs0 is read as a whole.
const MOST_VIPS: usize = 100_000;

impl Inbox {
    /// Takes everything that waits.
    pub(crate) fn take(&self) -> Pending {
        mem::take(&mut *self.open())
    }

    /// Whether anything waits.
    pub(crate) fn has_any(&self) -> bool {
        !self.open().is_empty()
    }

    /// Locks the inbox. Nothing that holds the lock can panic.
    fn open(&self) -> MutexGuard<'_, Pending> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.dummy_interface == Changed::default() && !self.tables
    }

    /// Adds a notification about kube-ipvs0 and addresses. The last one of each address counts.
    fn add_links(&mut self, changed: Changed) {
        let Changed { everything, vips, node_addresses } = changed;
        let links = &mut self.dummy_interface;
        links.vips.extend(vips);
        links.node_addresses |= node_addresses;
        links.everything |= everything || links.vips.len() > MOST_VIPS;
        if links.everything {
            links.vips.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv6Addr};

    use super::*;

    fn changed(vip: impl Into<IpAddr>, bound: bool) -> Changed {
        Changed { vips: [(vip.into(), bound)].into(), ..Changed::default() }
    }

    #[test]
    fn no_notification_is_lost_and_the_last_one_of_each_vip_counts() {
        let mut pending = Pending::default();
        pending.add_links(changed([10, 96, 0, 1], false));
        pending.add_links(changed([10, 96, 0, 2], true));
        pending.add_links(changed([10, 96, 0, 1], true));
        pending.add_links(Changed { node_addresses: true, ..Changed::default() });
        let vips = [([10, 96, 0, 1].into(), true), ([10, 96, 0, 2].into(), true)].into();
        assert_eq!(pending.dummy_interface, Changed { everything: false, vips, node_addresses: true });
        pending.add_links(Changed { everything: true, ..Changed::default() });
        pending.add_links(changed([10, 96, 0, 3], false));
        assert_eq!(pending.dummy_interface, Changed::everything(), "that includes all VIPs");
    }

    #[test]
    fn too_many_different_vips_become_everything_and_take_no_more_memory() {
        let mut pending = Pending::default();
        for number in 0..2 * MOST_VIPS as u128 {
            pending.add_links(changed(Ipv6Addr::from(number), true));
            assert!(pending.dummy_interface.vips.len() <= MOST_VIPS);
        }
        assert!(pending.dummy_interface.everything);
    }
}
