//! Waiting after a failure, and logging it once.

use kube::runtime::{utils::Backoff, watcher::DefaultBackoff};
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use super::{Watches, failure::Failure};

/// The pauses between attempts for one resource.
pub(super) struct Retry {
    resource: &'static str,
    /// The pauses of client-go: 0.8 s doubling to 30 s, each up to twice as long at random, and from the start again
    /// after two quiet minutes.
    pauses: DefaultBackoff,
    /// Whether a list is what the last failure asks for.
    needs_a_list: bool,
    /// Since when the resource cannot be watched, and the cause that was logged; `None` while it can.
    failing: Option<(Instant, String)>,
    watches: Watches,
}

impl Retry {
    pub(super) fn new(resource: &'static str, watches: Watches) -> Self {
        watches.listing(resource);
        Self { resource, pauses: DefaultBackoff::default(), needs_a_list: false, failing: None, watches }
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
        // A server that is back refuses every version older than its start. The list must not wait for as long as
        // the server was away.
        let needs_a_list = failure.needs_a_new_list();
        if needs_a_list && !self.needs_a_list {
            self.pauses.reset();
        }
        self.needs_a_list = needs_a_list;
        if let Some(pause) = self.pauses.next() {
            sleep(pause).await;
        }
    }

    /// Records that the server answered as it should.
    pub(super) fn succeeded(&mut self) {
        self.watches.watching(self.resource);
        if let Some((since, _)) = self.failing.take() {
            info!("watching {} again after {:.1} s", self.resource, since.elapsed().as_secs_f64());
        }
    }
}
