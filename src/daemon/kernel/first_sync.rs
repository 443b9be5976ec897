//! Signals the end of the first sync: changes to nf_tables and VIPs are subscribed to from then on.

use reconciler::{Observer, SyncEvent};
use tokio::sync::watch;

/// Signals that the first sync has ended, with any result.
///
/// Nobody subscribes to nf_tables or VIPs before. The first sync reads everything anyway, and a subscriber is sent a message
/// for each of the tens of thousands of elements and VIPs written: to make it (for elements only then,
/// `nfnetlink_has_listeners` in net/netfilter/nfnetlink.c) and to wake the reader takes longer than writing them. No change
/// of others is lost: a new subscriber begins by reading everything.
#[derive(Debug)]
pub(in crate::daemon) struct FirstSyncEnd(watch::Sender<bool>);

impl FirstSyncEnd {
    /// The observer, and whether the first sync has ended.
    pub(in crate::daemon) fn new() -> (Self, watch::Receiver<bool>) {
        let (sender, receiver) = watch::channel(false);
        (Self(sender), receiver)
    }
}

impl Observer for FirstSyncEnd {
    fn on_sync(&mut self, sync: &SyncEvent<'_>) {
        if sync.report.left == 0 {
            self.0.send_replace(true);
        }
    }
}
