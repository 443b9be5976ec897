//! Complete lists: their size in each encoding, and their cost when several nodes request them at once.

use std::time::Instant;

use anyhow::Result;
use futures::future::try_join_all;
use futures::io::{copy, sink};
use kube::api::{ListParams, VersionMatch};
use kube::core::Request;

use super::cluster::{Cluster, Usage};
use super::feed::{Encoding, Feed, Kind};

/// How many nodes ask for everything at once.
const NODES: [u32; 4] = [1, 4, 16, 32];
/// The kinds with many objects.
const KINDS: [Kind; 2] = [Kind::Services, Kind::Slices];

pub(super) fn measure(cluster: &Cluster) -> Result<()> {
    // The first request pays for what the server then caches.
    cluster.control_plane.block_on(watch_lists(cluster, Encoding::Json))?;

    println!("\nComplete lists of Services and EndpointSlices\n");
    println!("| request | encoding | Services, MB | EndpointSlices, MB | processor, s |");
    println!("|---|---|---|---|---|");
    for encoding in [Encoding::Json, Encoding::Protobuf] {
        let before = cluster.usage()?;
        let bytes = cluster.control_plane.block_on(watch_lists(cluster, encoding))?;
        row(cluster, "WatchList", encoding.media_type(), bytes, before)?;
        for compression in ["identity", "gzip"] {
            let before = cluster.usage()?;
            let lists = try_join_all(KINDS.map(|kind| list(cluster, kind, encoding, compression)));
            let bytes = cluster.control_plane.block_on(lists)?;
            row(cluster, "list", &format!("{}, {compression}", encoding.media_type()), bytes, before)?;
        }
    }

    println!("\nWatchLists of several nodes at once, in JSON\n");
    println!("| nodes | all served after, s | processor, s a node | memory before, MB | peak, MB |");
    println!("|---|---|---|---|---|");
    for nodes in NODES {
        cluster.forget_peak()?;
        let (before, begun) = (cluster.usage()?, Instant::now());
        let all = try_join_all((0..nodes).map(|_| watch_lists(cluster, Encoding::Json)));
        cluster.control_plane.block_on(all)?;
        let (after, took) = (cluster.usage()?, begun.elapsed().as_secs_f64());
        let processor = (after - before) / f64::from(nodes);
        println!("| {nodes} | {took:.2} | {processor:.2} | {:.0} | {:.0} |", before.memory, after.peak);
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn row(cluster: &Cluster, request: &str, encoding: &str, bytes: Vec<usize>, before: Usage) -> Result<()> {
    let megabytes: Vec<_> = bytes.into_iter().map(|bytes| format!("{:.2}", bytes as f64 / 1e6)).collect();
    let processor = cluster.usage()? - before;
    println!("| {request} | {encoding} | {} | {processor:.2} |", megabytes.join(" | "));
    Ok(())
}

/// What a node asks for at its start; the bytes of each kind.
async fn watch_lists(cluster: &Cluster, encoding: Encoding) -> Result<Vec<usize>> {
    try_join_all(KINDS.map(async |kind| {
        let mut feed = Feed::open(&cluster.node, &kind, encoding, "0", true).await?;
        feed.read_initial_events().await?;
        Ok(feed.bytes)
    }))
    .await
}

/// The same in one answer, as before WatchList.
async fn list(cluster: &Cluster, kind: Kind, encoding: Encoding, compression: &str) -> Result<usize> {
    let (label_selector, field_selector) = kind.selectors();
    let params = ListParams {
        label_selector,
        field_selector,
        resource_version: Some("0".to_owned()),
        version_match: Some(VersionMatch::NotOlderThan),
        ..ListParams::default()
    };
    let mut request = Request::new(kind.path()).list(&params)?;
    request.headers_mut().insert("accept", encoding.media_type().parse()?);
    request.headers_mut().insert("accept-encoding", compression.parse()?);
    let body = cluster.node.request_stream(request).await?;
    Ok(usize::try_from(copy(body, &mut sink()).await?)?)
}
