//! Requests to the API server, and their answers: a list in parts, the events of a watch, or a refusal.

use std::{error::Error, io};

use bytes::Bytes;
use futures::{Stream, StreamExt as _, TryStreamExt as _, future, stream::BoxStream};
use http::{
    HeaderValue,
    header::{ACCEPT, ACCEPT_ENCODING},
};
use http_body_util::BodyExt as _;
use kube::{
    Client,
    api::{ListParams, WatchParams},
    client::Body,
    core::{Request, Status},
};
use service::one_line;
use tokio::io::AsyncReadExt as _;
use tokio_util::{
    codec::{FramedRead, LengthDelimitedCodec, LinesCodec, LinesCodecError},
    io::StreamReader,
};

use super::{
    encoding::{Encoding, LONGEST, Unreadable, json, protobuf},
    failure::Failure,
};
use crate::objects::{Kind, View};

/// The longest refusal in bytes. A Status has some hundred; the answer of a proxy can be anything.
const LONGEST_REFUSAL: u64 = 64 << 10;

/// Sends requests to the API server.
#[derive(Clone)]
pub(super) struct Requests {
    client: Client,
    /// The encodings that the server may use.
    accept: &'static str,
}

/// An answer whose body is still to be read.
pub(super) struct Answer {
    pub(super) encoding: Encoding,
    body: Body,
}

impl Requests {
    pub(super) fn new(client: Client) -> Self {
        Self { client, accept: Encoding::ACCEPT }
    }

    /// Asks for JSON from now on: protobuf that could not be read may have been changed by a proxy.
    pub(super) fn no_more_protobuf(&mut self) {
        self.accept = Encoding::ACCEPT_JSON;
    }

    /// Asks for a list, and returns its parts as they come in. The client has the server compress long answers, unless
    /// the kubeconfig says otherwise.
    pub(super) async fn list<T: Kind>(
        &self,
        params: &ListParams,
    ) -> Result<BoxStream<'static, Result<Part<T>, Failure>>, Failure> {
        let request = Request::new(T::path()).list(params)?;
        let answer = self.send(request).await?;
        let encoding = answer.encoding;
        let text = answer.reader(LONGEST_LIST, "a list");
        Ok(match encoding {
            Encoding::Protobuf => {
                FramedRead::new(text, protobuf::ListDecoder::default()).map_err(Failure::from).boxed()
            }
            Encoding::Json => {
                FramedRead::new(text, json::ListDecoder::default()).map_err(Failure::from).boxed()
            }
        })
    }

    /// Opens a watch from a version on. A connection that is closed ends it.
    pub(super) async fn watch<T: Kind>(
        &self,
        params: &WatchParams,
        version: &str,
    ) -> Result<Events<T>, Failure> {
        let mut request = Request::new(T::path()).watch(params, version)?;
        request.headers_mut().insert(ACCEPT_ENCODING, UNCOMPRESSED);
        let answer = self.send(request).await?;
        let encoding = answer.encoding;
        // A watch has no end, and each of its events a limit.
        let text = answer.reader(u64::MAX, "a watch");
        let events = match encoding {
            Encoding::Protobuf => {
                // Each event is behind its length, four bytes with the most significant first.
                let codec = LengthDelimitedCodec::builder().max_frame_length(LONGEST).new_codec();
                let frames = FramedRead::new(text, codec).map_err(|error| match error.kind() {
                    io::ErrorKind::InvalidData => Unreadable::TooLong,
                    _ => Unreadable::Connection(error),
                });
                frames.map(|frame| protobuf::event(&frame?.freeze())).boxed()
            }
            Encoding::Json => {
                let codec = LinesCodec::new_with_max_length(LONGEST);
                let lines = FramedRead::new(text, codec).map_err(|error| match error {
                    LinesCodecError::Io(error) => Unreadable::Connection(error),
                    LinesCodecError::MaxLineLengthExceeded => Unreadable::TooLong,
                });
                lines.map(|line| json::event(&line?)).boxed()
            }
        };
        let closed = |event: &Result<_, Unreadable>| matches!(event, Err(error) if error.is_the_end());
        Ok(events.take_while(move |event| future::ready(!closed(event))).map_err(Failure::from).boxed())
    }

    /// Sends a request.
    pub(super) async fn send(&self, mut request: http::Request<Vec<u8>>) -> Result<Answer, Failure> {
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static(self.accept));
        let response = self.client.send(request.map(Body::from)).await?;
        let (code, encoding) = (response.status(), Encoding::from_headers(response.headers()));
        let answer = Answer { encoding, body: response.into_body() };
        if code.is_success() { Ok(answer) } else { Err(answer.into_refusal(code.as_u16()).await) }
    }
}

impl Answer {
    /// The body as it comes in. More than `most` bytes, uncompressed, are an error.
    pub(super) fn reader(
        self,
        most: u64,
        what: &'static str,
    ) -> StreamReader<impl Stream<Item = io::Result<Bytes>>, Bytes> {
        let mut left = most;
        StreamReader::new(self.body.into_data_stream().map(move |bytes| {
            let bytes = bytes.map_err(broken)?;
            let taken = u64::try_from(bytes.len()).ok().and_then(|length| left.checked_sub(length));
            left = taken.ok_or_else(|| io::Error::other(TooLong { what, most }))?;
            Ok(bytes)
        }))
    }

    /// A refusal is a status in the encoding that was asked for.
    async fn into_refusal(self, code: u16) -> Failure {
        let encoding = self.encoding;
        let mut text = Vec::new();
        let status = match self.reader(LONGEST_REFUSAL, "an answer").read_to_end(&mut text).await {
            Ok(_) => {
                let unknown = |_| Status::failure(String::from_utf8_lossy(&text).trim(), "").with_code(code);
                let status = match encoding {
                    Encoding::Protobuf => protobuf::status(&Bytes::copy_from_slice(&text)),
                    Encoding::Json => json::status(&text),
                };
                status.unwrap_or_else(unknown)
            }
            Err(error) => Status::failure(&one_line(&error), "").with_code(code),
        };
        Failure::Refused(Box::new(status))
    }
}

/// The longest list in bytes, uncompressed: 100,000 objects of 10 KiB. Services and EndpointSlices have 1 to 4 KiB in
/// JSON, and half of that in protobuf; a Node with its 50 images has 15 KiB.
const LONGEST_LIST: u64 = 1 << 30;

/// A part of a list.
pub(super) enum Part<T> {
    Object(View<T>),
    /// The version of the whole list, from which a watch goes on.
    Version(String),
}

/// An event of a watch.
pub(super) enum WatchEvent<T> {
    /// An object is new or different.
    Applied(View<T>),
    Deleted(View<T>),
    /// The watch has seen everything up to this version.
    Bookmark(String),
    /// The server ends the watch.
    Error(Box<Status>),
}

pub(super) type Events<T> = BoxStream<'static, Result<WatchEvent<T>, Failure>>;

/// Without compression. From Kubernetes 1.37 on the server compresses each event by itself, of which kube's client
/// unpacks only the first (its `request_events` says so).
const UNCOMPRESSED: HeaderValue = HeaderValue::from_static("identity");

/// A body without a reasonable end.
#[derive(Debug, thiserror::Error)]
#[error("{what} of more than {} KiB", most >> 10)]
struct TooLong {
    what: &'static str,
    /// Bytes.
    most: u64,
}

/// A connection that was closed in the middle of a body ends it, as a server that stops closes all its watches.
fn broken(error: kube::Error) -> io::Error {
    let kind = if was_closed(&error) { io::ErrorKind::UnexpectedEof } else { io::ErrorKind::Other };
    io::Error::new(kind, error)
}

fn was_closed(error: &(dyn Error + 'static)) -> bool {
    let unexpected = |error: &io::Error| error.kind() == io::ErrorKind::UnexpectedEof;
    error.downcast_ref().is_some_and(unexpected)
        // hyper has no name for it in HTTP/1.1.
        || error.to_string().contains("unexpected EOF during chunk")
        || error.source().is_some_and(was_closed)
}
