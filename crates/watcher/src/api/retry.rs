//! Waiting after a failure, and saying so once.

use kube::runtime::watcher::DefaultBackoff;
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use super::{Watches, failure::Failure};

/// The pauses between attempts for one resource.
pub(super) struct Retry {
    resource: &'static str,
    /// client-go's: 0.8 s doubling to 30 s, with jitter, from the start after two quiet minutes.
    pauses: DefaultBackoff,
    /// Since when nothing works, and what was said about it.
    trouble: Option<(Instant, String)>,
    watches: Watches,
}

impl Retry {
    pub(super) fn new(resource: &'static str, watches: Watches) -> Self {
        watches.listing(resource);
        Self { resource, pauses: DefaultBackoff::default(), trouble: None, watches }
    }

    /// Waits before the next attempt. The log hears of each different cause once.
    pub(super) async fn pause(&mut self, failure: &Failure) {
        let resource = self.resource;
        let words = failure.to_string();
        self.watches.failed(resource, &words);
        match &mut self.trouble {
            Some((_, said)) if *said == words => debug!("still cannot watch {resource}: {words}"),
            Some((_, said)) => {
                warn!("still cannot watch {resource}: {words}");
                *said = words;
            }
            None => {
                warn!("cannot watch {resource}: {words}; trying again, what is programmed stays");
                self.trouble = Some((Instant::now(), words));
            }
        }
        if let Some(pause) = self.pauses.next() {
            sleep(pause).await;
        }
    }

    /// The server answered as it should.
    pub(super) fn succeeded(&mut self) {
        self.watches.watching(self.resource);
        if let Some((since, _)) = self.trouble.take() {
            info!("watching {} again after {:.1} s", self.resource, since.elapsed().as_secs_f64());
        }
    }
}
