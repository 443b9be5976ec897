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
use crate::table::Table;

/// How many nodes ask for everything at once.
const NODES: [u32; 4] = [1, 4, 16, 32];
/// The compression that kube-ipvs asks for, as in the header `Accept-Encoding`.
pub(super) const GZIP: &str = "gzip";
/// The kinds with many objects.
const KINDS: [Kind; 2] = [Kind::Services, Kind::Slices];

pub(super) fn measure(cluster: &Cluster) -> Result<()> {
    // The first request pays for what the server then caches.
    cluster.control_plane.block_on(lists(cluster, Encoding::Protobuf, GZIP))?;

    let mut table = Table::new(
        "Complete lists of Services and EndpointSlices",
        "request | encoding | Services, MB | EndpointSlices, MB | processor, s",
    );
    for encoding in [Encoding::Json, Encoding::Protobuf] {
        let media_type = encoding.media_type();
        let before = cluster.usage()?;
        let bytes = cluster.control_plane.block_on(watch_lists(cluster, encoding))?;
        table.row(&format!("WatchList | {media_type} | {}", costs(cluster, &bytes, before)?));
        for compression in ["identity", GZIP] {
            let before = cluster.usage()?;
            let bytes = cluster.control_plane.block_on(lists(cluster, encoding, compression))?;
            table.row(&format!("list | {media_type}, {compression} | {}", costs(cluster, &bytes, before)?));
        }
    }
    print!("{table}");

    let mut table = Table::new(
        "Several nodes at once",
        "asked | nodes | all served after, s | processor, s a node | memory before, MB | peak, MB",
    );
    for nodes in NODES {
        let ours = async || lists(cluster, Encoding::Protobuf, GZIP).await;
        table.row(&format!("as kube-ipvs asks | {}", at_once(cluster, nodes, ours)?));
        let theirs = async || watch_lists(cluster, Encoding::Protobuf).await;
        table.row(&format!("as kube-proxy asks | {}", at_once(cluster, nodes, theirs)?));
    }
    print!("{table}");
    Ok(())
}

/// The megabytes of each kind, and the processor time since `before`.
#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn costs(cluster: &Cluster, bytes: &[usize], before: Usage) -> Result<String> {
    let megabytes: Vec<_> = bytes.iter().map(|bytes| format!("{:.2}", *bytes as f64 / 1e6)).collect();
    Ok(format!("{} | {:.2}", megabytes.join(" | "), cluster.usage()?.processor - before.processor))
}

fn at_once(cluster: &Cluster, nodes: u32, node: impl AsyncFn() -> Result<Vec<usize>>) -> Result<String> {
    cluster.forget_peak()?;
    let (before, begun) = (cluster.usage()?, Instant::now());
    cluster.control_plane.block_on(try_join_all((0..nodes).map(|_| node())))?;
    let (after, took) = (cluster.usage()?, begun.elapsed().as_secs_f64());
    let processor = (after.processor - before.processor) / f64::from(nodes);
    Ok(format!("{nodes} | {took:.2} | {processor:.2} | {:.0} | {:.0}", before.memory, after.peak))
}

/// What a node asks for at its start; the bytes of each kind.
async fn lists(cluster: &Cluster, encoding: Encoding, compression: &str) -> Result<Vec<usize>> {
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

/// Reads a list of what the server has at hand; its bytes as they come.
pub(super) async fn list(
    client: &Client,
    kind: Kind,
    encoding: Encoding,
    compression: &str,
) -> Result<usize> {
    let (label_selector, field_selector) = kind.selectors();
    let resource_version = Some("0".to_owned());
    let params = ListParams { label_selector, field_selector, resource_version, ..ListParams::default() };
    let mut request = Request::new(kind.path()).list(&params)?;
    request.headers_mut().insert("accept", encoding.media_type().parse()?);
    request.headers_mut().insert("accept-encoding", compression.parse()?);
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
