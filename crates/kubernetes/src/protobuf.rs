//! The wire format of protobuf.
//!
//! A message is read in place, field by field. Fields that are not asked for are skipped, and text is borrowed.

use std::iter;

/// Why bytes are not protobuf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    /// A varint does not end.
    #[error("a number of more than 64 bits")]
    Number,
    /// A field is longer than the rest of its message.
    #[error("a field ends beyond its message")]
    Truncated,
    /// A field has another wire type than its message says, or one that proto3 lacks.
    #[error("a field of another wire type")]
    WireType,
}

/// A message, or its fields that are still to be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a>(&'a [u8]);

/// The value of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'a> {
    /// An integer or a bool.
    Number(u64),
    /// Text, bytes or a message.
    Bytes(Message<'a>),
    /// Four or eight bytes. No field that is read is one.
    Fixed,
}

/// The wire types.
const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const WITH_LENGTH: u64 = 2;
const FIXED_32: u64 = 5;

impl<'a> Message<'a> {
    /// The message in these bytes.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub(crate) fn as_slice(&self) -> &'a [u8] {
        self.0
    }

    /// The message without its first bytes, if it begins with these.
    pub(crate) fn after(self, prefix: &[u8]) -> Option<Self> {
        self.0.strip_prefix(prefix).map(Self)
    }

    /// Its fields, in their order. Nothing follows an error.
    pub(crate) fn fields(mut self) -> impl Iterator<Item = Result<(u64, Value<'a>), Malformed>> {
        iter::from_fn(move || {
            if self.0.is_empty() {
                return None;
            }
            let field = self.next_field();
            if field.is_err() {
                self.0 = &[];
            }
            Some(field)
        })
    }

    /// The text, bytes or message in the field of this number, empty where there is none.
    pub(crate) fn field(self, number: u64) -> Result<Self, Malformed> {
        self.last(number, Self(&[]), Value::message)
    }

    /// The integer in the field of this number, 0 where there is none.
    pub(crate) fn number(self, number: u64) -> Result<u64, Malformed> {
        self.last(number, 0, Value::number)
    }

    /// The last field of this number, or `none`. Every one of them must be of the type that is read.
    fn last<T>(
        self,
        number: u64,
        none: T,
        read: impl Fn(Value<'a>) -> Result<T, Malformed>,
    ) -> Result<T, Malformed> {
        self.fields().try_fold(none, |found, field| {
            let (other, value) = field?;
            if other == number { read(value) } else { Ok(found) }
        })
    }

    fn next_field(&mut self) -> Result<(u64, Value<'a>), Malformed> {
        let key = self.take_varint()?;
        let value = match key & 7 {
            VARINT => Value::Number(self.take_varint()?),
            WITH_LENGTH => {
                let length = self.take_varint()?;
                Value::Bytes(Self(self.take(length)?))
            }
            FIXED_64 => self.take(8).map(|_| Value::Fixed)?,
            FIXED_32 => self.take(4).map(|_| Value::Fixed)?,
            _ => return Err(Malformed::WireType),
        };
        Ok((key >> 3, value))
    }

    fn take_varint(&mut self) -> Result<u64, Malformed> {
        let (number, rest) = match self.0.split_first() {
            // Nearly all take one byte.
            Some((&byte @ ..0x80, rest)) => (byte.into(), rest),
            _ => varint(self.0)?.ok_or(Malformed::Truncated)?,
        };
        self.0 = rest;
        Ok(number)
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(length).map_err(|_| Malformed::Truncated)?;
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }
}

impl<'a> Value<'a> {
    pub(crate) fn number(self) -> Result<u64, Malformed> {
        if let Self::Number(number) = self { Ok(number) } else { Err(Malformed::WireType) }
    }

    pub(crate) fn message(self) -> Result<Message<'a>, Malformed> {
        if let Self::Bytes(message) = self { Ok(message) } else { Err(Malformed::WireType) }
    }

    /// Whether it is 0, false or empty: what Go writes for a field that is not set, unless it is a pointer.
    pub(crate) fn is_empty(self) -> bool {
        match self {
            Self::Number(number) => number == 0,
            Self::Bytes(message) => message.0.is_empty(),
            Self::Fixed => false,
        }
    }
}

/// Reads a number from the beginning of bytes, and returns what follows it; `None` if not all of it has come.
pub(crate) fn varint(bytes: &[u8]) -> Result<Option<(u64, &[u8])>, Malformed> {
    let (mut number, mut rest) = (0, bytes);
    for shift in (0..u64::BITS).step_by(7) {
        let Some((byte, after)) = rest.split_first() else { return Ok(None) };
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(Some((number, after)));
        }
        rest = after;
    }
    Err(Malformed::Number)
}

/// The header of a field with a length, of bytes of which more may come: its number, its length, and how many bytes
/// the header has. `None` if not all of it has come.
pub(crate) fn header(bytes: &[u8]) -> Result<Option<(u64, u64, usize)>, Malformed> {
    let Some((key, rest)) = varint(bytes)? else { return Ok(None) };
    if key & 7 != WITH_LENGTH {
        return Err(Malformed::WireType);
    }
    let Some((length, rest)) = varint(rest)? else { return Ok(None) };
    Ok(Some((key >> 3, length, bytes.len().saturating_sub(rest.len()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(bytes: &'static [u8]) -> Result<Vec<(u64, String)>, Malformed> {
        let shown = |value: Value<'_>| match value {
            Value::Number(number) => number.to_string(),
            Value::Bytes(message) => format!("{}", message.0.escape_ascii()),
            Value::Fixed => "fixed".to_owned(),
        };
        Message::new(bytes)
            .fields()
            .map(|field| field.map(|(number, value)| (number, shown(value))))
            .collect()
    }

    #[test]
    fn fields_of_each_wire_type_are_read_in_their_order() {
        let bytes = b"\x08\xac\x02\x12\x02ab\x19********\x25****\x82\x01\x00";
        let found = [(1, "300"), (2, "ab"), (3, "fixed"), (4, "fixed"), (16, "")];
        assert_eq!(fields(bytes).unwrap(), found.map(|(number, value)| (number, value.to_owned())));
    }

    #[test]
    fn what_is_not_protobuf_is_refused() {
        for (bytes, why) in [
            (&b"\x08"[..], Malformed::Truncated),
            (b"\x08\x80", Malformed::Truncated),
            (b"\x12\x03ab", Malformed::Truncated),
            (b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", Malformed::Truncated),
            (b"\x19*", Malformed::Truncated),
            (b"\x0b\x0c", Malformed::WireType),
            (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", Malformed::Number),
        ] {
            assert_eq!(fields(bytes), Err(why), "{bytes:?}");
        }
    }

    #[test]
    fn of_a_field_that_is_sent_twice_the_last_counts() {
        let message = Message::new(b"\x08\x01\x08\x02\x12\x01a\x12\x01b");
        assert_eq!((message.number(1), message.number(7)), (Ok(2), Ok(0)));
        assert_eq!(message.field(2).unwrap().as_slice(), b"b");
        assert_eq!(message.field(1).unwrap_err(), Malformed::WireType);
    }
}
