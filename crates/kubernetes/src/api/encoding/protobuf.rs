//! Kubernetes' protobuf: what every object is wrapped in, events of a watch, and statuses. The field numbers are those of
//! `generated.proto` in k8s.io/apimachinery.

use bytes::Bytes;
use kube::core::Status;

use super::Unreadable;
use crate::{
    api::events::WatchEvent,
    objects::{Kind, View},
    protobuf::{Malformed, Message},
};

/// What every answer begins with. An `Unknown` (pkg/runtime) follows, whose field [`RAW`] is the object.
pub(super) const MAGIC: &[u8] = b"k8s\0";
pub(super) const RAW: u64 = 2;

/// Reads an event of a watch: a `WatchEvent` (pkg/apis/meta/v1), whose object is in a `RawExtension`.
pub(in crate::api) fn event<T: Kind>(frame: &Bytes) -> Result<WatchEvent<T>, Unreadable> {
    let frame = Message::new(frame);
    let (kind, object) = (frame.field(1)?, frame.field(2)?.field(1)?);
    let view = || Ok::<_, Unreadable>(View::<T>::from_protobuf(unwrapped(object)?)?);
    Ok(match kind.as_slice() {
        b"ADDED" | b"MODIFIED" => WatchEvent::Applied(view()?),
        b"DELETED" => WatchEvent::Deleted(view()?),
        b"BOOKMARK" => WatchEvent::Bookmark(view()?.version.unwrap_or_default().to_string()),
        b"ERROR" => WatchEvent::Error(Box::new(read_status(object)?)),
        other => return Err(Unreadable::EventType(String::from_utf8_lossy(other).into_owned())),
    })
}

/// Reads the answer to a request that was refused.
pub(in crate::api) fn status(answer: &Bytes) -> Result<Status, Unreadable> {
    read_status(Message::new(answer))
}

/// Reads a wrapped `Status`.
fn read_status(object: Message<'_>) -> Result<Status, Unreadable> {
    let status = unwrapped(object)?;
    let code = u16::try_from(status.number(6)?).unwrap_or_default();
    Ok(Status::failure(&text(status, 3)?, &text(status, 4)?).with_code(code))
}

/// The version in the `ListMeta` of a list.
pub(super) fn version_of_list(metadata: &Bytes) -> Result<String, Unreadable> {
    Ok(text(Message::new(metadata), 2)?)
}

/// The text in the field of this number.
fn text(message: Message<'_>, number: u64) -> Result<String, Malformed> {
    Ok(String::from_utf8_lossy(message.field(number)?.as_slice()).into_owned())
}

/// The object without its wrapping.
fn unwrapped(object: Message<'_>) -> Result<Message<'_>, Unreadable> {
    Ok(object.after(MAGIC).ok_or(Unreadable::NoMagic)?.field(RAW)?)
}
