//! What one watch of kube-ipvs does when it breaks (`crates/kubernetes/src/api/reflector.rs` and `failure.rs`),
//! without decoding objects.

use std::{
    iter::repeat,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Result, bail};
use kube::{Client, Error, runtime::watcher::DefaultBackoff};
use tokio::time::{error::Elapsed, sleep, timeout};

use super::super::{
    feed::{Encoding, Feed, Kind, is},
    lists::{Compression, list, version},
};

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(60);
/// A watch that has not been refused by then goes on.
const REFUSED_WITHIN: Duration = Duration::from_secs(5);
/// The pause without back-off and jitter.
const FIXED: Duration = Duration::from_millis(100);

/// How long a node waits after a failure.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pauses {
    /// Always the same short time.
    Fixed,
    /// As kube-ipvs does.
    KubeIpvs,
}

/// Counters of all nodes together.
#[derive(Default)]
pub(super) struct Counters {
    /// Requests for a list.
    pub(super) lists: AtomicUsize,
    /// Asked and not complete, now and the most at once.
    asked: AtomicUsize,
    pub(super) most_asked: AtomicUsize,
}

/// One watch of one node.
pub(super) struct Reflector {
    pub(super) client: Client,
    pub(super) kind: Kind,
    pub(super) version: String,
    pub(super) counters: Arc<Counters>,
}

/// The outcome of an attempt to resume a watch.
enum Resumed {
    GoesOn(Feed),
    NeedsANewList,
    Failed,
}

impl Reflector {
    /// Waits for the watch to break, and returns one that works again, and whether that took a list.
    pub(super) async fn survive(self, mut feed: Feed, pauses: Pauses) -> Result<(Feed, bool)> {
        while matches!(feed.next().await, Ok(Some(_))) {}
        let pauses: Box<dyn Iterator<Item = Duration> + Send> = match pauses {
            Pauses::Fixed => Box::new(repeat(FIXED)),
            Pauses::KubeIpvs => Box::new(DefaultBackoff::default()),
        };
        let mut needs_a_list = false;
        for pause in pauses {
            if needs_a_list {
                if let Ok(feed) = self.list().await {
                    return Ok((feed, true));
                }
            } else {
                match self.resume().await {
                    Resumed::GoesOn(feed) => return Ok((feed, false)),
                    Resumed::NeedsANewList => needs_a_list = true,
                    Resumed::Failed => {}
                }
            }
            sleep(pause).await;
        }
        bail!("no more pauses")
    }

    async fn resume(&self) -> Resumed {
        let opened =
            timeout(ANSWER, Feed::open(&self.client, &self.kind, Encoding::Protobuf, &self.version, false))
                .await;
        let mut feed = match opened {
            Ok(Ok(feed)) => feed,
            Ok(Err(error)) => match error.downcast_ref() {
                Some(Error::Api(status)) if status.code < 500 && status.code != 429 => {
                    return Resumed::NeedsANewList;
                }
                _ => return Resumed::Failed,
            },
            Err(Elapsed { .. }) => return Resumed::Failed,
        };
        let refused = match timeout(REFUSED_WITHIN, feed.next()).await {
            Err(Elapsed { .. }) => false,
            Ok(Ok(Some(event))) => is(event, b"ERROR"),
            Ok(Ok(None) | Err(_)) => return Resumed::Failed,
        };
        if refused { Resumed::NeedsANewList } else { Resumed::GoesOn(feed) }
    }

    /// Everything there is, and the watch that follows it. The version that the list has is in what is
    /// compressed, so it is asked for once more.
    async fn list(&self) -> Result<Feed> {
        let Counters { lists, asked, most_asked } = &*self.counters;
        let _asked = Counted::new(asked, most_asked);
        lists.fetch_add(1, Relaxed);
        let listed = list(&self.client, self.kind.clone(), Encoding::Protobuf, Compression::Gzip);
        timeout(ANSWER, listed).await??;
        let version = version(&self.client, &self.kind).await?;
        Feed::open(&self.client, &self.kind, Encoding::Protobuf, &version, false).await
    }
}

/// Counts one more for as long as it lives.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(now: &'a AtomicUsize, most: &AtomicUsize) -> Self {
        most.fetch_max(now.fetch_add(1, Relaxed) + 1, Relaxed);
        Self(now)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_at_once_is_kept_when_all_have_ended() {
        let (now, most) = (AtomicUsize::default(), AtomicUsize::default());
        let both = (Counted::new(&now, &most), Counted::new(&now, &most));
        drop(both);
        drop(Counted::new(&now, &most));
        assert_eq!((now.into_inner(), most.into_inner()), (0, 2));
    }
}
