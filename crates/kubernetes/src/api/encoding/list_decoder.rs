//! Reads a list in protobuf while it comes in: no more of it is kept than one object.
//!
//! It is an `Unknown`, whose field `raw` is the list, whose fields are its metadata and each of its objects. All fields
//! of both are of the wire type that begins with its length.

use std::marker::PhantomData;

use bytes::{Buf as _, Bytes, BytesMut};
use tokio_util::codec::Decoder;

use super::{
    LONGEST, Unreadable,
    protobuf::{MAGIC, RAW, version_of_list},
};
use crate::{
    api::list::Part,
    objects::{Kind, View},
    protobuf::{Malformed, Message, header},
};

/// Reads the parts of a list from its bytes.
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
                    Some(header) => match header.take_field(bytes)? {
                        None => return Ok(None),
                        Some(_) => {}
                    },
                },
                Within::List(0) => self.within = Within::Unknown,
                Within::List(left) => {
                    let Some(header) = Header::read(bytes)? else { return Ok(None) };
                    let Some(field) = header.take_field(bytes)? else { return Ok(None) };
                    let taken = header.size.saturating_add(header.length);
                    self.within = Within::List(left.checked_sub(taken).ok_or(Malformed::Truncated)?);
                    match header.field {
                        METADATA => return version_of_list(&field).map(Part::Version).map(Some),
                        ITEMS => return Ok(Some(Part::Object(View::from_protobuf(Message::new(&field))?))),
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

/// What is before a field of a list or of an `Unknown`.
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
