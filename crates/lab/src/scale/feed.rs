//! One watch as kube-ipvs has it (`crates/kubernetes/src/api/reflector.rs`), but its events are only distinguished; or as kube-proxy has
//! it, which begins with all objects.

use std::{pin::Pin, time::Duration};

use anyhow::{Context as _, Result, ensure};
use futures::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};
use kube::{Client, api::WatchParams, core::Request};
use kubernetes::api::{SERVICE_FIELDS, SERVICE_LABELS, SLICE_LABELS};
use tokio::time::timeout;

const INITIAL_EVENTS_END: &[u8] = b"k8s.io/initial-events-end";
/// How long a WatchList may be quiet before it is complete.
const QUIET: Duration = Duration::from_secs(10);
/// In both encodings the type of an event stands within its first bytes.
const TYPE_WITHIN: usize = 20;
/// A larger event is an error: the server accepts no object larger than 1.5 MB.
const LARGEST: u32 = 4 << 20;

/// What a node watches.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    Services,
    Slices,
    Node(String),
}

/// How the server is to write its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Json,
    /// As kube-ipvs and kube-proxy ask.
    Protobuf,
}

/// An open watch.
pub(super) struct Feed {
    body: Pin<Box<dyn AsyncBufRead + Send>>,
    encoding: Encoding,
    event: Vec<u8>,
    /// Of the answer so far, as the client sees it: without chunk headers and TLS.
    pub(super) bytes: usize,
}

impl Kind {
    pub(super) const fn path(&self) -> &'static str {
        match self {
            Self::Services => "/api/v1/services",
            Self::Slices => "/apis/discovery.k8s.io/v1/endpointslices",
            Self::Node(_) => "/api/v1/nodes",
        }
    }

    /// Labels and fields.
    pub(super) fn selectors(&self) -> (Option<String>, Option<String>) {
        match self {
            Self::Services => (Some(SERVICE_LABELS.into()), Some(SERVICE_FIELDS.into())),
            Self::Slices => (Some(SLICE_LABELS.into()), None),
            Self::Node(name) => (None, Some(format!("metadata.name={name}"))),
        }
    }

    /// All that a node watches.
    pub(super) fn for_node(number: u32) -> [Self; 3] {
        [Self::Services, Self::Slices, Self::Node(format!("node-{number}"))]
    }
}

impl Encoding {
    pub(super) const fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }

    const fn watch_media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        }
    }
}

impl Feed {
    /// Opens a watch that resumes at a version, or one that begins with all objects.
    pub(super) async fn open(
        client: &Client,
        kind: &Kind,
        encoding: Encoding,
        version: &str,
        send_initial_events: bool,
    ) -> Result<Self> {
        let (label_selector, field_selector) = kind.selectors();
        let params =
            WatchParams { label_selector, field_selector, send_initial_events, ..WatchParams::default() };
        let mut request = Request::new(kind.path()).watch(&params, version)?;
        request.headers_mut().insert("accept", encoding.watch_media_type().parse()?);
        let body = Box::pin(client.request_stream(request).await?);
        Ok(Self { body, encoding, event: Vec::new(), bytes: 0 })
    }

    /// The next event, undecoded; `None` when the watch has ended.
    pub(super) async fn next(&mut self) -> Result<Option<&[u8]>> {
        self.event.clear();
        match self.encoding {
            Encoding::Json => self.bytes += self.body.read_until(b'\n', &mut self.event).await?,
            Encoding::Protobuf => {
                if self.body.fill_buf().await?.is_empty() {
                    return Ok(None);
                }
                let mut length = [0; 4];
                self.body.read_exact(&mut length).await?;
                let length = u32::from_be_bytes(length);
                ensure!(length <= LARGEST, "an event of {length} bytes");
                self.event.resize(usize::try_from(length)?, 0);
                self.body.read_exact(&mut self.event).await?;
                self.bytes += 4 + self.event.len();
            }
        }
        Ok(if self.event.is_empty() { None } else { Some(&self.event) })
    }

    /// Reads the initial events to their end; returns their number.
    pub(super) async fn read_initial_events(&mut self) -> Result<usize> {
        for events in 0.. {
            let event = timeout(QUIET, self.next())
                .await??
                .context("the watch ended before the list was complete")?;
            ensure!(!is(event, b"ERROR"), "{}", String::from_utf8_lossy(event));
            if is(event, b"BOOKMARK") && contains(event, INITIAL_EVENTS_END) {
                return Ok(events);
            }
        }
        Ok(0)
    }
}

/// Whether this is the event's type.
pub(super) fn is(event: &[u8], kind: &[u8]) -> bool {
    contains(event.get(..TYPE_WITHIN).unwrap_or(event), kind)
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|part| part == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_event_is_known_by_its_type_in_both_encodings() {
        let json = br#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7"}}}"#;
        assert!(is(json, b"BOOKMARK"));
        assert!(is(b"\x0a\x08BOOKMARK\x12", b"BOOKMARK"));
        assert!(!is(br#"{"type":"ADDED","object":{"kind":"BOOKMARK"}}"#, b"BOOKMARK"));
    }
}
