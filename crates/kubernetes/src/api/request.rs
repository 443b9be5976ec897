//! A request to the API server, and its answer.

use std::{error::Error, io};

use bytes::Bytes;
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use http::{HeaderValue, Request, header};
use http_body_util::BodyExt as _;
use kube::{Client, client::Body, core::Status};
use service::one_line;
use tokio::io::AsyncReadExt as _;
use tokio_util::io::StreamReader;

use super::{
    encoding::{Encoding, json, protobuf},
    failure::Failure,
};

/// The longest refusal in bytes. A Status has some hundred; somebody on the way may have written anything.
const LONGEST_REFUSAL: u64 = 64 << 10;

/// Asks the API server, and takes what it answers as long as it is no refusal.
#[derive(Clone)]
pub(super) struct Requests {
    client: Client,
    /// What the server may write.
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

    /// Protobuf that could not be read once may have been changed by somebody on the way.
    pub(super) fn no_more_protobuf(&mut self) {
        self.accept = Encoding::ACCEPT_JSON;
    }

    /// Sends a request.
    pub(super) async fn send(&self, mut request: Request<Vec<u8>>) -> Result<Answer, Failure> {
        request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static(self.accept));
        let response = self.client.send(request.map(Body::from)).await?;
        let (code, encoding) = (response.status(), Encoding::of(response.headers()));
        let answer = Answer { encoding, body: response.into_body() };
        if code.is_success() { Ok(answer) } else { Err(answer.into_refusal(code.as_u16()).await) }
    }
}

impl Answer {
    /// The body as it comes in.
    pub(super) fn reader(self) -> StreamReader<impl Stream<Item = io::Result<Bytes>>, Bytes> {
        StreamReader::new(self.body.into_data_stream().map_err(broken))
    }

    /// The body as it comes in, of which more than so many bytes, uncompressed, are an error.
    pub(super) fn bounded_reader(
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
        let status = match self.bounded_reader(LONGEST_REFUSAL, "an answer").read_to_end(&mut text).await {
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
