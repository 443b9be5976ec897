//! Signals the end of the first sync: changes to nf_tables are subscribed to from then on.

use reconciler::{ChangeEvent, Observer, SyncEvent};
use tokio::sync::oneshot;

/// Signals that the first sync has ended, with any result.
///
/// Nobody subscribes to nf_tables before. The first sync reads everything anyway, and with a subscriber the kernel
/// makes a message of each of the tens of thousands of elements written (`nfnetlink_has_listeners` in
/// net/netfilter/nfnetlink.c), which takes longer than writing them. No change of others is lost: a new subscriber
/// begins by reading everything.
#[derive(Debug)]
pub(in crate::daemon) struct FirstSyncEnd(Option<oneshot::Sender<()>>);

impl FirstSyncEnd {
    /// The observer, and the receiver of its signal.
    pub(in crate::daemon) fn new() -> (Self, oneshot::Receiver<()>) {
        let (sender, receiver) = oneshot::channel();
        (Self(Some(sender)), receiver)
    }
}

impl Observer for FirstSyncEnd {
    fn on_change_applied(&mut self, _: ChangeEvent) {}

    fn on_sync(&mut self, _: &SyncEvent<'_>) {
        if let Some(sender) = self.0.take() {
            // Without a receiver the daemon ends.
            _ = sender.send(());
        }
    }
}
