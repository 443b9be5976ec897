//! The encoding of the API server's answers: protobuf, or JSON where the server, or a proxy before it, lacks that.

pub(super) mod json;
pub(super) mod protobuf;

use std::io;

use http::{HeaderMap, header::CONTENT_TYPE};

use crate::protobuf::Malformed;

/// The longest object or event in bytes. The API server takes no request of more than 3 MiB (`MaxRequestBodyBytes` in
/// apiserver/pkg/server/config.go), and etcd no object of more than 1.5 MiB; JSON makes it longer.
pub(super) const LONGEST: usize = 16 << 20;

/// The media type of Kubernetes' protobuf.
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// The encoding of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Protobuf,
    Json,
}

impl Encoding {
    /// The value of the header `Accept`, as client-go has it: the server takes the first that it can write.
    pub(super) const ACCEPT: &str = "application/vnd.kubernetes.protobuf,application/json";
    /// The same for a client that refuses protobuf.
    pub(super) const ACCEPT_JSON: &str = "application/json";

    /// The encoding of an answer with these headers. One without `Content-Type` comes from a proxy that does not know
    /// protobuf.
    pub(super) fn from_headers(headers: &HeaderMap) -> Self {
        let content_type =
            headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if content_type.starts_with(PROTOBUF) { Self::Protobuf } else { Self::Json }
    }
}

/// Why an answer cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreadable {
    /// The connection broke, or the body could not be decompressed.
    #[error("{0}")]
    Connection(#[from] io::Error),
    /// The header says protobuf of Kubernetes, and the body does not begin like that.
    #[error("not an object of Kubernetes in protobuf")]
    NoMagic,
    /// The bytes are not protobuf.
    #[error("not protobuf: {0}")]
    Protobuf(#[from] Malformed),
    /// An event of an unknown type.
    #[error("unknown event type {0:?}")]
    EventType(String),
    /// The text of a list is not JSON, or not a list.
    #[error("not a JSON list")]
    NoList,
    /// A list ended before it was complete.
    #[error("the list ended before it was complete")]
    Incomplete,
    /// The text is not JSON, or not of the expected type.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// An object or an event longer than any that a server accepts.
    #[error("an object of more than {} MiB", LONGEST >> 20)]
    TooLong,
}

impl Unreadable {
    /// Whether the connection was closed, be it in the middle of something.
    pub(super) fn is_the_end(&self) -> bool {
        match self {
            Self::Connection(error) => error.kind() == io::ErrorKind::UnexpectedEof,
            // Half a line at the end.
            Self::Json(error) => error.is_eof(),
            _ => false,
        }
    }

    /// Whether protobuf may have been changed on the way.
    pub(super) fn is_not_protobuf(&self) -> bool {
        matches!(self, Self::NoMagic | Self::Protobuf(_) | Self::TooLong)
    }
}
