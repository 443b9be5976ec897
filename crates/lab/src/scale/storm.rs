//! The API server is killed and started anew: all watches break at once, and their versions are too old for
//! the new server's cache, so that every node lists again.

mod reflector;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use reflector::{Counters, Pauses, Reflector};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};

use super::{
    cluster::Cluster,
    feed::{Encoding, Feed, Kind},
    lists::version,
};
use crate::bench::Percentiles;

/// What the storm goes through.
const FLOW_SCHEMA: &str = "flow_schema=\"kube-system-service-accounts\"";
/// A storm that lasts longer has no end.
const PATIENCE: Duration = Duration::from_secs(400);

pub(super) fn measure(cluster: &mut Cluster, nodes: u32) -> Result<()> {
    println!("\nThe API server is started anew under {nodes} nodes\n");
    println!(
        "| pauses | watches that listed again | went on | requests for a list | at once | \
         a watch works again p50 / p99 / all, s | processor, s | peak, MB | rejected | waited in queues, s |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for pauses in [Pauses::Fixed, Pauses::KubeIpvs] {
        let counters = Arc::new(Counters::default());
        let mut reflectors = cluster.control_plane.block_on(open(cluster, nodes, pauses, &counters))?;
        // As in a cluster, where there is always something newer: a write that these watches do not hear of.
        cluster.control_plane.create_node("elsewhere", &[], None, &[])?;
        cluster.control_plane.restart_api_server()?;
        let cut = Instant::now();
        let settled =
            cluster.control_plane.block_on(async { timeout(PATIENCE, settle(&mut reflectors, cut)).await });
        let settled = settled.context("the storm does not end")??;
        let went_on = settled.times.len() - settled.listed;
        let all = settled.times.iter().copied().fold(0.0, f64::max);
        let times = Percentiles::from_times(settled.times).context("no node was served")?;
        let usage = cluster.usage()?;
        let metric = |name| cluster.control_plane.block_on(cluster.metric(name, &[FLOW_SCHEMA]));
        let count = |counter: &AtomicUsize| counter.load(Relaxed);
        println!(
            "| {pauses:?} | {} | {} | {} | {} | {:.1} / {:.1} / {all:.1} | {:.1} | {:.0} | {} | {:.1} |",
            settled.listed,
            went_on,
            count(&counters.lists),
            count(&counters.most_asked),
            times.p50,
            times.p99,
            usage.processor,
            usage.peak,
            metric("apiserver_flowcontrol_rejected_requests_total")?,
            metric("apiserver_flowcontrol_request_wait_duration_seconds_sum")?,
        );
    }
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
    pauses: Pauses,
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
        reflectors.spawn(reflector.survive(feed, pauses));
    }
    Ok(reflectors)
}
