//! The end of the first sync, before which nobody subscribes to changes to nf_tables.

use reconciler::{ChangeEvent, Observer, SyncEvent};
use tokio::sync::oneshot;

/// Says that the first sync has ended, whatever came of it.
///
/// Until then nobody subscribes to what the kernel tells of nf_tables. That sync looks at everything anyway, and with a
/// subscriber the kernel makes a message of each of the tens of thousands of elements that are written
/// (`nfnetlink_has_listeners` in net/netfilter/nfnetlink.c), which takes it longer than the writing. What others change
/// meanwhile is not lost: whoever subscribes begins by looking at everything.
#[derive(Debug)]
pub(in crate::daemon) struct FirstSyncEnd(Option<oneshot::Sender<()>>);

impl FirstSyncEnd {
    /// An observer, and who waits for its word.
    pub(in crate::daemon) fn new() -> (Self, oneshot::Receiver<()>) {
        let (said, word) = oneshot::channel();
        (Self(Some(said)), word)
    }
}

impl Observer for FirstSyncEnd {
    fn on_change_applied(&mut self, _: ChangeEvent) {}

    fn on_sync(&mut self, _: &SyncEvent<'_>) {
        if let Some(word) = self.0.take() {
            // Nobody waits any more: the daemon ends.
            _ = word.send(());
        }
    }
}
