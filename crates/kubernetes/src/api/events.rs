//! The events of one watch.

use std::io;

use futures::{StreamExt as _, TryStreamExt as _, future, stream::BoxStream};
use http::header::{ACCEPT_ENCODING, HeaderValue};
use kube::{
    api::WatchParams,
    core::{Request, Status},
};
use tokio_util::codec::{FramedRead, LengthDelimitedCodec, LinesCodec, LinesCodecError};

use super::{
    encoding::{Encoding, LONGEST, Unreadable, json, protobuf},
    failure::Failure,
    request::Requests,
};
use crate::objects::{Kind, View};

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

/// Opens a watch from a version on. A connection that is closed ends it.
pub(super) async fn watch<T: Kind>(
    requests: &Requests,
    params: &WatchParams,
    version: &str,
) -> Result<Events<T>, Failure> {
    let mut request = Request::new(T::path()).watch(params, version)?;
    request.headers_mut().insert(ACCEPT_ENCODING, UNCOMPRESSED);
    let answer = requests.send(request).await?;
    let events = match answer.encoding {
        Encoding::Protobuf => {
            // Each event is behind its length, four bytes with the most significant first.
            let codec = LengthDelimitedCodec::builder().max_frame_length(LONGEST).new_codec();
            let frames = FramedRead::new(answer.reader(), codec).map_err(|error| match error.kind() {
                io::ErrorKind::InvalidData => Unreadable::TooLong,
                _ => Unreadable::Connection(error),
            });
            frames.map(|frame| protobuf::event(&frame?.freeze())).boxed()
        }
        Encoding::Json => {
            let codec = LinesCodec::new_with_max_length(LONGEST);
            let lines = FramedRead::new(answer.reader(), codec).map_err(|error| match error {
                LinesCodecError::Io(error) => Unreadable::Connection(error),
                LinesCodecError::MaxLineLengthExceeded => Unreadable::TooLong,
            });
            lines.map(|line| json::event(&line?)).boxed()
        }
    };
    let closed = |event: &Result<_, Unreadable>| matches!(event, Err(error) if error.is_the_end());
    Ok(events.take_while(move |event| future::ready(!closed(event))).map_err(Failure::from).boxed())
}
