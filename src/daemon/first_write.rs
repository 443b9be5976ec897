//! What the kernel tells of nf_tables is of no interest before the first sync has ended.

use reconciler::{News, Observation, Observer};
use tokio::sync::watch;

/// Says that the first sync has ended, whatever came of it.
///
/// Until then nobody subscribes to what the kernel tells of nf_tables. That sync looks at everything anyway, and with a
/// subscriber the kernel makes a message of each of the tens of thousands of elements that are written
/// (`nfnetlink_has_listeners` in net/netfilter/nfnetlink.c), which takes it longer than the writing. What others change
/// meanwhile is not lost: whoever subscribes begins by looking at everything.
#[derive(Debug)]
pub(super) struct FirstWrite(watch::Sender<bool>);

/// Waits for it.
#[derive(Debug)]
pub(super) struct Written(watch::Receiver<bool>);

impl FirstWrite {
    /// An observer, and who waits for its word.
    pub(super) fn new() -> (Self, Written) {
        let (said, word) = watch::channel(false);
        (Self(said), Written(word))
    }
}

impl Observer for FirstWrite {
    fn heard(&mut self, _: News) {}

    fn synced(&mut self, _: &Observation<'_>) {
        self.0.send_if_modified(|ended| !std::mem::replace(ended, true));
    }
}

impl Written {
    /// Returns once the first sync has ended, or the writer thread.
    pub(super) async fn ended(mut self) {
        // An error is the thread's end, and the daemon's.
        _ = self.0.wait_for(|ended| *ended).await;
    }
}
