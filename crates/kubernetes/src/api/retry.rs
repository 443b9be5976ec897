//! Waiting after a failure, and logging it once.

use kube::runtime::watcher::DefaultBackoff;
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use super::{Watches, failure::Failure};

/// How often a watch may fail at one version before everything is listed anew: a server that starts again is back
/// within these attempts, 6 to 11 seconds, as a rule.
const ATTEMPTS: u32 = 3;

/// The pauses between attempts for one resource.
pub(super) struct Retry {
    resource: &'static str,
    /// The pauses of client-go: 0.8 s doubling to 30 s, each up to twice as long at random, and from the start again
    /// after two quiet minutes.
    pauses: DefaultBackoff,
    /// Those before a list that follows a watch. A server that is back refuses every version older than its start, and
    /// the list must not wait for as long as the server was away; nor may it come again and again without a pause
    /// where each watch is refused.
    pauses_before_lists: DefaultBackoff,
    /// How often the watch has failed since the server last answered as it should, for what may be due to its version.
    failed_watches: u32,
    /// Since when the resource cannot be watched, and the cause that was logged; `None` while it can.
    failing: Option<(Instant, String)>,
    watches: Watches,
}

impl Retry {
    pub(super) fn new(resource: &'static str, watches: Watches) -> Self {
        watches.listing(resource);
        let [pauses, pauses_before_lists] = [(), ()].map(|()| DefaultBackoff::default());
        Self { resource, pauses, pauses_before_lists, failed_watches: 0, failing: None, watches }
    }

    /// Records that a watch has failed. Returns whether to list everything instead of watching on.
    pub(super) fn gives_watch_up(&mut self, failure: &Failure) -> bool {
        self.failed_watches += u32::from(failure.may_be_due_to_the_version());
        self.lists_next(failure)
    }

    fn lists_next(&self, failure: &Failure) -> bool {
        failure.needs_a_new_list() || self.failed_watches >= ATTEMPTS
    }

    /// Waits before the next attempt. Each different cause is logged once.
    pub(super) async fn pause(&mut self, failure: &Failure) {
        let resource = self.resource;
        let words = failure.to_string();
        self.watches.failed(resource, &words);
        match &mut self.failing {
            Some((_, logged)) if *logged == words => debug!("still cannot watch {resource}: {words}"),
            Some((_, logged)) => {
                warn!("still cannot watch {resource}: {words}");
                *logged = words;
            }
            None => {
                warn!("cannot watch {resource}: {words}; trying again, what is programmed stays");
                self.failing = Some((Instant::now(), words));
            }
        }
        let lists_next = self.lists_next(failure);
        let pauses = if lists_next { &mut self.pauses_before_lists } else { &mut self.pauses };
        if let Some(pause) = pauses.next() {
            sleep(pause).await;
        }
    }

    /// Records that the server answered as it should.
    pub(super) fn succeeded(&mut self) {
        self.watches.watching(self.resource);
        self.failed_watches = 0;
        if let Some((since, _)) = self.failing.take() {
            info!("watching {} again after {:.1} s", self.resource, since.elapsed().as_secs_f64());
        }
    }
}
