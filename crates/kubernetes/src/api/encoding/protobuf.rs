//! Kubernetes' protobuf: the wrapping of every object, events of a watch, statuses, and lists. The field numbers are
//! those of `generated.proto` in k8s.io/apimachinery.

use std::marker::PhantomData;

use bytes::{Buf as _, Bytes, BytesMut};
use kube::core::Status;
use tokio_util::codec::Decoder;

use super::{LONGEST, Unreadable};
use crate::{
    api::requests::{Part, WatchEvent},
    objects::{Kind, View},
    protobuf::{Malformed, Message, header},
};

/// The beginning of every answer. An `Unknown` (pkg/runtime) follows, whose field [`RAW`] is the object.
const MAGIC: &[u8] = b"k8s\0";
const RAW: u64 = 2;

/// Reads an event of a watch: a `WatchEvent` (pkg/apis/meta/v1), whose object is in a `RawExtension`.
pub(in crate::api) fn event<T: Kind>(frame: &Bytes) -> Result<WatchEvent<T>, Unreadable> {
    let frame = Message::new(frame);
    let (kind, object) = (frame.field(1)?, frame.field(2)?.field(1)?);
    let view = || Ok::<_, Unreadable>(View::<T>::from_protobuf(unwrapped(object)?)?);
    Ok(match kind.as_slice() {
        b"ADDED" | b"MODIFIED" => WatchEvent::Applied(view()?),
        b"DELETED" => WatchEvent::Deleted(view()?),
        b"BOOKMARK" => WatchEvent::Bookmark(view()?.version.unwrap_or_default().into()),
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

/// The text in the field of this number.
fn text(message: Message<'_>, number: u64) -> Result<String, Malformed> {
    Ok(String::from_utf8_lossy(message.field(number)?.as_slice()).into_owned())
}

/// The object without its wrapping.
fn unwrapped(object: Message<'_>) -> Result<Message<'_>, Unreadable> {
    Ok(object.after(MAGIC).ok_or(Unreadable::NoMagic)?.field(RAW)?)
}

/// Reads the parts of a list from its bytes while it comes in: no more of it is kept than one object.
///
/// A list is wrapped too. Its fields are its metadata and each of its objects; they and those of the `Unknown` have the
/// wire type that begins with its length.
pub(in crate::api) struct ListDecoder<T> {
    within: Within,
    kind: PhantomData<fn() -> T>,
}

/// Where the next bytes belong.
#[derive(Clone, Copy, Debug)]
enum Within {
    /// Nothing has been read.
    Beginning,
    /// Between the fields of `Unknown`.
    Unknown,
    /// Between the fields of the list, of which so many bytes are to come.
    List(usize),
}

/// The fields of a list.
const METADATA: u64 = 1;
const ITEMS: u64 = 2;

impl<T> Default for ListDecoder<T> {
    fn default() -> Self {
        Self { within: Within::Beginning, kind: PhantomData }
    }
}

impl<T: Kind> Decoder for ListDecoder<T> {
    type Item = Part<T>;
    type Error = Unreadable;

    fn decode(&mut self, bytes: &mut BytesMut) -> Result<Option<Part<T>>, Unreadable> {
        loop {
            match self.within {
                Within::Beginning => {
                    let Some(begin) = bytes.get(..MAGIC.len()) else { return Ok(None) };
                    if begin != MAGIC {
                        return Err(Unreadable::NoMagic);
                    }
                    bytes.advance(MAGIC.len());
                    self.within = Within::Unknown;
                }
                Within::Unknown => match Header::read(bytes)? {
                    None => return Ok(None),
                    Some(header) if header.field == RAW => {
                        bytes.advance(header.size);
                        self.within = Within::List(header.length);
                    }
                    Some(header) => {
                        if header.take_field(bytes)?.is_none() {
                            return Ok(None);
                        }
                    }
                },
                Within::List(0) => self.within = Within::Unknown,
                Within::List(left) => {
                    let Some(header) = Header::read(bytes)? else { return Ok(None) };
                    let Some(field) = header.take_field(bytes)? else { return Ok(None) };
                    let message = Message::new(&field);
                    let taken = header.size.saturating_add(header.length);
                    self.within = Within::List(left.checked_sub(taken).ok_or(Malformed::Truncated)?);
                    match header.field {
                        // A `ListMeta`, whose field 2 is the version.
                        METADATA => return Ok(Some(Part::Version(text(message, 2)?))),
                        ITEMS => return Ok(Some(Part::Object(View::from_protobuf(message)?))),
                        _ => {}
                    }
                }
            }
        }
    }

    fn decode_eof(&mut self, bytes: &mut BytesMut) -> Result<Option<Part<T>>, Unreadable> {
        match self.decode(bytes)? {
            None if !bytes.is_empty() || !matches!(self.within, Within::Unknown) => {
                Err(Unreadable::Incomplete)
            }
            part => Ok(part),
        }
    }
}

/// The header of a field of a list or of an `Unknown`.
struct Header {
    /// The number of the field.
    field: u64,
    /// The length of the field, in bytes.
    length: usize,
    /// The length of the header, in bytes.
    size: usize,
}

impl Header {
    /// `None` as long as not all of it has come.
    fn read(bytes: &[u8]) -> Result<Option<Self>, Unreadable> {
        let Some((field, length, size)) = header(bytes)? else { return Ok(None) };
        let length = usize::try_from(length).map_err(|_| Unreadable::TooLong)?;
        Ok(Some(Self { field, length, size }))
    }

    /// The field's bytes, when all have come; its header goes with them.
    fn take_field(&self, bytes: &mut BytesMut) -> Result<Option<Bytes>, Unreadable> {
        if self.length > LONGEST {
            return Err(Unreadable::TooLong);
        }
        let end = self.size.saturating_add(self.length);
        if bytes.len() < end {
            bytes.reserve(end.saturating_sub(bytes.len()));
            return Ok(None);
        }
        bytes.advance(self.size);
        Ok(Some(bytes.split_to(self.length).freeze()))
    }
}
