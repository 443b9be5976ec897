//! EndpointSlices change one after the other while many nodes watch: bytes, processor time and delay. Memory
//! is not measured: that of an open watch is hidden by what Go's collector has not returned.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use tokio::{
    task::JoinSet,
    time::{sleep, sleep_until},
};

use super::{
    cluster::Cluster,
    feed::{Encoding, Feed, Kind, is},
    lists::version,
};
use crate::{
    statistics::{Percentiles, line},
    table::Table,
};

/// How many nodes watch.
const NODES: [u32; 4] = [1, 10, 100, 300];
/// How many changes there are in each round, and how far apart.
const CHANGES: u32 = 300;
const PACE: Duration = Duration::from_millis(50);
/// The pause before the changes begin.
const REST: Duration = Duration::from_secs(3);
/// Watches that are opened at the same time.
const AT_ONCE: usize = 30;

/// The results for one number of nodes.
struct Round {
    /// Bytes of an event.
    bytes: f64,
    /// Milliseconds of the API server's processor: to open the watches of a node, and for a change.
    opening: f64,
    change: f64,
    /// Milliseconds from before a write until its answer, and until its event is there.
    answered: Vec<f64>,
    delivered: Vec<f64>,
}

pub(super) fn measure(cluster: &Cluster) -> Result<()> {
    for encoding in [Encoding::Json, Encoding::Protobuf] {
        let mut table = Table::new(
            &format!("Changes, {}", encoding.media_type()),
            "nodes | bytes of an event | opening, ms a node | ms a change | answer p50 / p99, ms | event p50 / p99, ms",
        );
        let mut points = Vec::new();
        for (number, nodes) in (0..).zip(NODES) {
            let round = cluster.control_plane.block_on(follow(cluster, nodes, number, encoding))?;
            points.push((f64::from(nodes), round.change));
            let Round { bytes, opening, change, answered, delivered } = round;
            let percentiles = |times| {
                let Percentiles { p50, p99, .. } = Percentiles::from_times(times).context("no changes")?;
                anyhow::Ok(format!("{p50:.1} / {p99:.1}"))
            };
            let (answered, delivered) = (percentiles(answered)?, percentiles(delivered)?);
            table.row(&format!(
                "{nodes} | {bytes:.0} | {opening:.2} | {change:.2} | {answered} | {delivered}"
            ));
        }
        let (base, slope) = line(&points).context("no line through one point")?;
        println!(
            "{table}\nProcessor time of a change: {base:.2} ms + {:.1} µs for each node",
            slope * 1000.0
        );
    }
    Ok(())
}

async fn follow(cluster: &Cluster, nodes: u32, round: u32, encoding: Encoding) -> Result<Round> {
    let version = version(&cluster.node, &Kind::Slices).await?;
    let before = cluster.usage()?.processor;
    let mut others = Vec::new();
    let mut slices = Vec::new();
    let kinds: Vec<Kind> = (0..nodes).flat_map(Kind::for_node).collect();
    for kinds in kinds.chunks(AT_ONCE) {
        let opened = kinds.iter().map(|kind| Feed::open(&cluster.node, kind, encoding, &version, false));
        for (kind, feed) in kinds.iter().zip(try_join_all(opened).await?) {
            if matches!(kind, Kind::Slices) { slices.push(feed) } else { others.push(feed) }
        }
    }
    let opened = cluster.usage()?.processor;
    let mut readers = JoinSet::new();
    for feed in slices {
        readers.spawn(arrivals(feed));
    }
    sleep(REST).await;

    let before_changes = cluster.usage()?.processor;
    let (mut sent, mut answered) = (Vec::new(), Vec::new());
    let begun = tokio::time::Instant::now();
    for change in 0..CHANGES {
        sleep_until(begun + PACE * change).await;
        let now = Instant::now();
        sent.push(now);
        cluster.change(1 + change, round).await?;
        answered.push(now.elapsed().as_secs_f64() * 1000.0);
    }
    let (mut bytes, mut delivered) = (0, Vec::new());
    while let Some(reader) = readers.join_next().await {
        let (read, arrived) = reader??;
        bytes += read;
        delivered.extend(
            arrived.iter().zip(&sent).map(|(arrived, sent)| (*arrived - *sent).as_secs_f64() * 1000.0),
        );
    }
    let after = cluster.usage()?.processor;
    drop(others);
    let nodes = f64::from(nodes);
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    Ok(Round {
        bytes: bytes as f64 / nodes / f64::from(CHANGES),
        opening: (opened - before) * 1000.0 / nodes,
        change: (after - before_changes) * 1000.0 / f64::from(CHANGES),
        answered,
        delivered,
    })
}

/// How many bytes the changes take, and when each is there.
async fn arrivals(mut feed: Feed) -> Result<(usize, Vec<Instant>)> {
    let mut arrived = Vec::new();
    let mut bytes = 0;
    while arrived.len() < CHANGES as usize {
        let event = feed.next().await?.context("the watch ended")?;
        if !is(event, b"BOOKMARK") {
            bytes += event.len();
            arrived.push(Instant::now());
        }
    }
    Ok((bytes, arrived))
}
