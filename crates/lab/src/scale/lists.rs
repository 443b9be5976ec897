//! Complete lists: their size in each encoding, and their cost when several nodes request them at once.

use std::time::Instant;

use anyhow::{Context as _, Result};
use futures::{
    future::try_join_all,
    io::{copy, sink},
};
use kube::{Client, api::ListParams, core::Request};
use serde_json::Value;

use super::{
    cluster::{Cluster, Usage},
    feed::{Encoding, Feed, Kind},
};

/// How many nodes ask for everything at once.
const NODES: [u32; 4] = [1, 4, 16, 32];
/// The kinds with many objects.
const KINDS: [Kind; 2] = [Kind::Services, Kind::Slices];

pub(super) fn measure(cluster: &Cluster) -> Result<()> {
    // The first request pays for what the server then caches.
    cluster.control_plane.block_on(lists(cluster, Encoding::Protobuf, Compression::Gzip))?;

    println!("\nComplete lists of Services and EndpointSlices\n");
    println!("| request | encoding | Services, MB | EndpointSlices, MB | processor, s |");
    println!("|---|---|---|---|---|");
    for encoding in [Encoding::Json, Encoding::Protobuf] {
        let before = cluster.usage()?;
        let bytes = cluster.control_plane.block_on(watch_lists(cluster, encoding))?;
        row(cluster, "WatchList", encoding.media_type(), bytes, before)?;
        for compression in [Compression::None, Compression::Gzip] {
            let before = cluster.usage()?;
            let bytes = cluster.control_plane.block_on(lists(cluster, encoding, compression))?;
            row(
                cluster,
                "list",
                &format!("{}, {}", encoding.media_type(), compression.name()),
                bytes,
                before,
            )?;
        }
    }

    println!("\nSeveral nodes at once\n");
    println!("| | nodes | all served after, s | processor, s a node | memory before, MB | peak, MB |");
    println!("|---|---|---|---|---|---|");
    for nodes in NODES {
        at_once(cluster, "as kube-ipvs asks", nodes, async || {
            lists(cluster, Encoding::Protobuf, Compression::Gzip).await
        })?;
        at_once(cluster, "as kube-proxy asks", nodes, async || {
            watch_lists(cluster, Encoding::Protobuf).await
        })?;
    }
    Ok(())
}

fn at_once(
    cluster: &Cluster,
    name: &str,
    nodes: u32,
    node: impl AsyncFn() -> Result<Vec<usize>>,
) -> Result<()> {
    cluster.forget_peak()?;
    let (before, begun) = (cluster.usage()?, Instant::now());
    cluster.control_plane.block_on(try_join_all((0..nodes).map(|_| node())))?;
    let (after, took) = (cluster.usage()?, begun.elapsed().as_secs_f64());
    let processor = (after - before) / f64::from(nodes);
    println!("| {name} | {nodes} | {took:.2} | {processor:.2} | {:.0} | {:.0} |", before.memory, after.peak);
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
async fn lists(cluster: &Cluster, encoding: Encoding, compression: Compression) -> Result<Vec<usize>> {
    try_join_all(KINDS.map(|kind| list(&cluster.node, kind, encoding, compression))).await
}

/// The same as the events of a watch.
async fn watch_lists(cluster: &Cluster, encoding: Encoding) -> Result<Vec<usize>> {
    try_join_all(KINDS.map(async |kind| {
        let mut feed = Feed::open(&cluster.node, &kind, encoding, "0", true).await?;
        feed.read_initial_events().await?;
        Ok(feed.bytes)
    }))
    .await
}

/// How the server is to compress it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    /// As kube-ipvs asks.
    Gzip,
}

impl Compression {
    /// As in the header `Accept-Encoding`.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::None => "identity",
            Self::Gzip => "gzip",
        }
    }
}

/// Reads a list of what the server has at hand; its bytes as they come.
pub(super) async fn list(
    client: &Client,
    kind: Kind,
    encoding: Encoding,
    compression: Compression,
) -> Result<usize> {
    let (label_selector, field_selector) = kind.selectors();
    let resource_version = Some("0".to_owned());
    let params = ListParams { label_selector, field_selector, resource_version, ..ListParams::default() };
    let mut request = Request::new(kind.path()).list(&params)?;
    request.headers_mut().insert("accept", encoding.media_type().parse()?);
    request.headers_mut().insert("accept-encoding", compression.name().parse()?);
    let body = client.request_stream(request).await?;
    Ok(usize::try_from(copy(body, &mut sink()).await?)?)
}

/// The version that a watch of these goes on from now.
pub(super) async fn version(client: &Client, kind: &Kind) -> Result<String> {
    let request = Request::new(kind.path()).list(&ListParams::default().limit(1))?;
    let list: Value = client.request(request).await?;
    let version = list.pointer("/metadata/resourceVersion").and_then(Value::as_str);
    Ok(version.context("the list has no version")?.to_owned())
}
