//! What is told while the writer thread is busy. Of all that only as much is kept as the writer has to know, so that
//! it takes no more memory however long the kernel takes.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use dummy_interface::Changed;
use service::Change;

mod handle;
mod pending_changes;

pub(crate) use handle::Input;
pub use handle::{Handle, Stopped, Unanswered};
pub(crate) use pending_changes::{Piece, Waiting};

/// What waits for the writer thread. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mailbox(Arc<Mutex<Mail>>);

/// What has come since the writer thread last took it.
#[derive(Debug, Default)]
pub(crate) struct Mail {
    /// News from the API server or the directory.
    pub(crate) news: Waiting,
    /// What the kernel has told of kube-ipvs0 and of addresses, perhaps of our own work.
    pub(crate) dummy_interface: Changed,
    /// Whether the kernel has told that somebody else has changed our nf_tables tables.
    pub(crate) tables: bool,
}

/// So many VIPs are told of one by one. They are hardly more than are bound, unless somebody adds and removes ever
/// different ones; beyond, kube-ipvs0 is looked at as a whole.
const MOST_VIPS: usize = 100_000;

impl Mailbox {
    /// Takes everything that waits.
    pub(crate) fn take(&self) -> Mail {
        mem::take(&mut *self.open())
    }

    /// Locks what waits. Nothing that holds the lock can panic.
    pub(crate) fn open(&self) -> MutexGuard<'_, Mail> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mail {
    pub(crate) fn is_empty(&self) -> bool {
        self.news.is_empty() && self.dummy_interface == Changed::default() && !self.tables
    }

    /// Takes in news of objects.
    pub(crate) fn change(&mut self, change: Change) {
        self.news.push(change);
    }

    /// Takes in what the kernel tells of links and addresses. Of each address the last counts.
    pub(crate) fn links_changed(&mut self, changed: Changed) {
        let Changed { everything, vips, node_addresses } = changed;
        self.dummy_interface.vips.extend(vips);
        self.dummy_interface.node_addresses |= node_addresses;
        self.dummy_interface.everything |= everything || self.dummy_interface.vips.len() > MOST_VIPS;
        if self.dummy_interface.everything {
            self.dummy_interface.vips.clear();
        }
    }

    /// Takes in that somebody else has changed our tables.
    pub(crate) fn tables_changed(&mut self) {
        self.tables = true;
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv6Addr};

    use super::*;

    fn told(vip: impl Into<IpAddr>, bound: bool) -> Changed {
        Changed { vips: [(vip.into(), bound)].into(), ..Changed::default() }
    }

    #[test]
    fn of_what_the_kernel_tells_nothing_is_lost_and_of_each_vip_the_last_counts() {
        let mut mail = Mail::default();
        mail.links_changed(told([10, 96, 0, 1], false));
        mail.links_changed(told([10, 96, 0, 2], true));
        mail.links_changed(told([10, 96, 0, 1], true));
        mail.links_changed(Changed { node_addresses: true, ..Changed::default() });
        let vips = [([10, 96, 0, 1].into(), true), ([10, 96, 0, 2].into(), true)].into();
        assert_eq!(mail.dummy_interface, Changed { everything: false, vips, node_addresses: true });
        mail.links_changed(Changed { everything: true, ..Changed::default() });
        mail.links_changed(told([10, 96, 0, 3], false));
        assert_eq!(mail.dummy_interface, Changed::everything(), "that includes all VIPs");
    }

    #[test]
    fn ever_different_vips_are_a_reason_to_look_at_all_and_take_no_more_memory() {
        let mut mail = Mail::default();
        for number in 0..2 * MOST_VIPS as u128 {
            mail.links_changed(told(Ipv6Addr::from(number), true));
            assert!(mail.dummy_interface.vips.len() <= MOST_VIPS);
        }
        assert!(mail.dummy_interface.everything);
    }
}
