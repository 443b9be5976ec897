//! One list, whose objects are not looked at.

use anyhow::{Context as _, Result};
use futures::io::{copy, sink};
use kube::{Client, api::ListParams, core::Request};
use serde_json::Value;

use super::feed::{Encoding, Kind};

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
