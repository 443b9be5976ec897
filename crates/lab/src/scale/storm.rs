//! The API server is killed and restarted: all watches break at once, and their versions are too old for
//! the new server's cache, so that every node lists again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use futures::future::try_join_all;
use kube::{Client, Error, runtime::watcher::DefaultBackoff};
use tokio::{
    task::JoinSet,
    time::{Instant, error::Elapsed, sleep, timeout},
};

use super::{
    cluster::{Cluster, Usage},
    feed::{Encoding, Feed, Kind, is},
    lists::{GZIP, list, version},
};
use crate::{statistics::Percentiles, table::Table};

/// What the storm goes through.
const FLOW_SCHEMA: &str = "flow_schema=\"kube-system-service-accounts\"";
/// A storm that lasts longer has no end.
const PATIENCE: Duration = Duration::from_secs(400);

pub(super) fn measure(cluster: &Cluster, nodes: u32) -> Result<()> {
    let counters = Arc::new(Counters::default());
    let mut reflectors = cluster.control_plane.block_on(open(cluster, nodes, &counters))?;
    // As in a cluster, where there is always something newer: a write that these watches do not get.
    cluster.control_plane.create_node("elsewhere", &[], None, &[])?;
    cluster.control_plane.restart_api_server()?;
    let cut = Instant::now();
    let settled =
        cluster.control_plane.block_on(async { timeout(PATIENCE, settle(&mut reflectors, cut)).await });
    let settled = settled.context("the storm does not end")??;
    let (listed, went_on) = (settled.listed, settled.times.len() - settled.listed);
    let times = Percentiles::from_times(settled.times).context("no node was served")?;
    let Percentiles { p50, p99, longest } = times;
    let Usage { processor, peak, .. } = cluster.usage()?;
    let metric = |name| cluster.control_plane.block_on(cluster.metric(name, &[FLOW_SCHEMA]));
    let rejected = metric("apiserver_flowcontrol_rejected_requests_total")?;
    let waited = metric("apiserver_flowcontrol_request_wait_duration_seconds_sum")?;
    let [lists, at_once] = [&counters.lists, &counters.most_asked].map(|counter| counter.load(Relaxed));
    let mut table = Table::new(
        &format!("The API server is started anew under {nodes} nodes"),
        "watches that listed again | went on | requests for a list | at once | \
         a watch works again p50 / p99 / all, s | processor, s | peak, MB | rejected | waited in queues, s",
    );
    table.row(&format!(
        "{listed} | {went_on} | {lists} | {at_once} | {p50:.1} / {p99:.1} / {longest:.1} | \
         {processor:.1} | {peak:.0} | {rejected} | {waited:.1}"
    ));
    print!("{table}");
    Ok(())
}

/// The outcome for the watches.
struct Settled {
    /// When each worked again, in seconds from the cut.
    times: Vec<f64>,
    /// How many of them had to list for that.
    listed: usize,
}

/// Waits for all. The watches stay open until the last is served.
async fn settle(reflectors: &mut JoinSet<Result<(Feed, bool)>>, cut: Instant) -> Result<Settled> {
    let (mut open, mut settled) = (Vec::new(), Settled { times: Vec::new(), listed: 0 });
    while let Some(reflector) = reflectors.join_next().await {
        let (feed, listed) = reflector??;
        open.push(feed);
        settled.listed += usize::from(listed);
        settled.times.push(cut.elapsed().as_secs_f64());
    }
    Ok(settled)
}

/// All watches of all nodes, of the state as it is now.
async fn open(
    cluster: &Cluster,
    nodes: u32,
    counters: &Arc<Counters>,
) -> Result<JoinSet<Result<(Feed, bool)>>> {
    let version = version(&cluster.node, &Kind::Services).await?;
    let opened = (0..nodes).flat_map(Kind::for_node).map(async |kind| {
        let feed = Feed::open(&cluster.node, &kind, Encoding::Protobuf, &version, false).await?;
        anyhow::Ok((kind, feed))
    });
    let mut reflectors = JoinSet::new();
    for (kind, feed) in try_join_all(opened).await? {
        let (client, version) = (cluster.node.clone(), version.clone());
        let reflector = Reflector { client, kind, version, counters: counters.clone() };
        reflectors.spawn(reflector.survive(feed));
    }
    Ok(reflectors)
}

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(60);
/// A watch that has not been refused by then goes on.
const REFUSED_WITHIN: Duration = Duration::from_secs(5);

/// Counters of all nodes together.
#[derive(Default)]
struct Counters {
    /// Requests for a list.
    lists: AtomicUsize,
    /// Asked and not complete, now and the most at once.
    asked: AtomicUsize,
    most_asked: AtomicUsize,
}

/// One watch of one node.
struct Reflector {
    client: Client,
    kind: Kind,
    version: String,
    counters: Arc<Counters>,
}

/// The outcome of an attempt to resume a watch.
enum Resumed {
    GoesOn(Feed),
    NeedsANewList,
    Failed,
}

impl Reflector {
    /// Waits for the watch to break, and returns one that works again, and whether that took a list. After a failure it
    /// waits as kube-ipvs does.
    async fn survive(self, mut feed: Feed) -> Result<(Feed, bool)> {
        while matches!(feed.next().await, Ok(Some(_))) {}
        let mut needs_a_list = false;
        for pause in DefaultBackoff::default() {
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
        let listed = list(&self.client, self.kind.clone(), Encoding::Protobuf, GZIP);
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
