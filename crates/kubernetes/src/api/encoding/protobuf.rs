//! Kubernetes' protobuf: what every object is wrapped in, events of a watch, and statuses.

use kube::core::Status;
use prost::{
    Message,
    bytes::{Buf, Bytes},
};

use super::Unreadable;
use crate::{
    api::events::WatchEvent,
    objects::{Kind, View},
};

/// What every answer begins with.
pub(super) const MAGIC: &[u8] = b"k8s\0";

/// `Unknown` of k8s.io/apimachinery/pkg/runtime, which follows.
#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(bytes = "bytes", tag = "2")]
    raw: Bytes,
}

/// `WatchEvent` of k8s.io/apimachinery/pkg/apis/meta/v1.
#[derive(Clone, PartialEq, Message)]
struct RawEvent {
    #[prost(bytes = "bytes", tag = "1")]
    kind: Bytes,
    #[prost(message, optional, tag = "2")]
    object: Option<RawExtension>,
}

#[derive(Clone, PartialEq, Message)]
struct RawExtension {
    #[prost(bytes = "bytes", tag = "1")]
    raw: Bytes,
}

/// `Status` of the same.
#[derive(Clone, PartialEq, Message)]
struct ApiStatus {
    #[prost(string, tag = "3")]
    message: String,
    #[prost(string, tag = "4")]
    reason: String,
    #[prost(int32, tag = "6")]
    code: i32,
}

/// `ListMeta` of the same.
#[derive(Clone, PartialEq, Message)]
struct ListMeta {
    #[prost(string, tag = "2")]
    resource_version: String,
}

/// Reads an event of a watch.
pub(in crate::api) fn event<T: Kind>(frame: Bytes) -> Result<WatchEvent<T>, Unreadable> {
    let RawEvent { kind, object } = RawEvent::decode(frame)?;
    let object = object.unwrap_or_default().raw;
    Ok(match &*kind {
        b"ADDED" | b"MODIFIED" => WatchEvent::Applied(View::from_protobuf(unwrapped(object)?)?),
        b"DELETED" => WatchEvent::Deleted(View::from_protobuf(unwrapped(object)?)?),
        b"BOOKMARK" => {
            let bookmark = View::<T>::from_protobuf(unwrapped(object)?)?;
            WatchEvent::Bookmark(bookmark.version.unwrap_or_default().to_string())
        }
        b"ERROR" => WatchEvent::Error(Box::new(status(object)?)),
        other => return Err(Unreadable::EventType(String::from_utf8_lossy(other).into_owned())),
    })
}

/// Reads the answer to a request that was refused.
pub(in crate::api) fn status(object: Bytes) -> Result<Status, Unreadable> {
    let ApiStatus { message, reason, code } = ApiStatus::decode(unwrapped(object)?)?;
    Ok(Status::failure(&message, &reason).with_code(u16::try_from(code).unwrap_or_default()))
}

/// The version in the metadata of a list.
pub(super) fn version_of_list(metadata: Bytes) -> Result<String, Unreadable> {
    Ok(ListMeta::decode(metadata)?.resource_version)
}

/// What an object is wrapped in is taken off.
fn unwrapped(mut object: Bytes) -> Result<Bytes, Unreadable> {
    if !object.starts_with(MAGIC) {
        return Err(Unreadable::NoMagic);
    }
    object.advance(MAGIC.len());
    Ok(Unknown::decode(object)?.raw)
}
