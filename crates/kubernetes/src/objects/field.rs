//! A field of an object: absent, of the expected shape, or of another.
//!
//! [`object!`] describes an object once for both encodings: serde reads it from JSON by the names of its fields, and
//! [`Fields`] from protobuf by their numbers. Decoding a [`Field`] fails only where the text is not JSON, or the bytes
//! are not protobuf, so that one element of the wrong shape can never take the object, the list or the watch down with
//! it. Fields that are not asked for (`managedFields`, conditions) are skipped without being stored.

#[cfg(test)]
mod tests;

use std::{
    borrow::Cow,
    fmt::{self, Display},
    marker::PhantomData,
    str,
};

use jiff::Timestamp;
use serde::{
    Deserialize, Deserializer,
    de::{
        DeserializeOwned, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
        value::{MapAccessDeserializer, SeqAccessDeserializer},
    },
};
use serde_json::Value;

use super::Problems;
use crate::protobuf::{self, Malformed};

/// A field of an object.
#[derive(Clone, Debug, Default)]
pub(crate) enum Field<T> {
    /// The field is missing, or null.
    #[default]
    Absent,
    /// The field has the expected shape.
    Is(T),
    /// The field has another shape.
    Wrong(Box<Value>),
}

/// A list, of which each element may be wrong by itself.
pub(crate) type List<T> = Field<Vec<Field<T>>>;

impl<T: Shape> Field<T> {
    /// Returns the value. One of another shape is reported, and counts as absent.
    pub(crate) fn read(self, at: impl Display, problems: &mut Problems) -> Option<T> {
        match self {
            Self::Absent => None,
            Self::Is(value) => Some(value),
            Self::Wrong(value) => {
                problems.add(at, format_args!("{} is not {}", brief(&value), T::EXPECTED));
                None
            }
        }
    }

    /// Whether the field has any value, right or wrong.
    pub(crate) fn is_present(&self) -> bool {
        !matches!(self, Self::Absent)
    }
}

impl<T: Shape> List<T> {
    /// Reads each element with `read`, which gets its path, and returns those that can be used.
    pub(crate) fn read_each<U>(
        self,
        of: impl Display,
        problems: &mut Problems,
        mut read: impl FnMut(T, fmt::Arguments<'_>, &mut Problems) -> Option<U>,
    ) -> Vec<U> {
        let list = self.read(&of, problems).unwrap_or_default();
        let mut found = Vec::with_capacity(list.len());
        for (i, field) in list.into_iter().enumerate() {
            let at = format_args!("{of}[{i}]");
            found.extend(field.read(at, problems).and_then(|value| read(value, at, problems)));
        }
        found
    }
}

impl<T> Field<T> {
    fn wrong(value: impl Into<Value>) -> Self {
        Self::Wrong(Box::new(value.into()))
    }
}

impl<T: Default> Field<T> {
    /// Puts a value there unless there is one, and returns it.
    pub(super) fn or_default(&mut self) -> Option<&mut T> {
        if !matches!(self, Self::Is(_)) {
            *self = Self::Is(T::default());
        }
        if let Self::Is(value) = self { Some(value) } else { None }
    }
}

/// How many characters of a wrong value are repeated in its report at most.
const LONGEST_REPORT: usize = 80;

/// The value as JSON, shortened. Characters that would move a terminal's cursor are escaped, of which JSON
/// itself escapes only some.
fn brief(value: &Value) -> String {
    let text = value.to_string();
    let (text, dots) = shortened(&text);
    let mut brief = String::with_capacity(text.len() + dots.len());
    for character in text.chars() {
        match character {
            '"' | '\'' | '\\' => brief.push(character),
            _ => brief.extend(character.escape_debug()),
        }
    }
    brief + dots
}

/// Text from outside. Prints it in quotation marks, shortened and escaped.
pub(super) struct Quoted<'a>(pub(super) &'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (text, dots) = shortened(self.0);
        write!(f, "{text:?}{dots}")
    }
}

/// The beginning of a text, and dots where that is not all.
fn shortened(text: &str) -> (&str, &'static str) {
    let end = text.char_indices().nth(LONGEST_REPORT);
    end.and_then(|(end, _)| text.get(..end)).map_or((text, ""), |beginning| (beginning, "..."))
}

/// A value that a [`Field`] can hold. Each method makes it from one kind of JSON; `None` where that cannot be.
pub(crate) trait Shape: Sized {
    /// The expected shape, as in "is not ...".
    const EXPECTED: &'static str;

    fn from_bool(_: bool) -> Option<Self> {
        None
    }

    fn from_integer(_: i64) -> Option<Self> {
        None
    }

    fn from_text(_: &str) -> Option<Self> {
        None
    }

    fn from_list<'de, A: SeqAccess<'de>>(list: A) -> Result<Field<Self>, A::Error> {
        Value::deserialize(SeqAccessDeserializer::new(list)).map(Field::wrong)
    }

    fn from_map<'de, A: MapAccess<'de>>(map: A) -> Result<Field<Self>, A::Error> {
        Value::deserialize(MapAccessDeserializer::new(map)).map(Field::wrong)
    }
}

/// A value that a field of a message can hold.
pub(crate) trait Merge<'a>: Shape {
    /// Takes in a field of a message. If it is sent again, elements are added to a list, fields to an object, and a
    /// scalar is replaced.
    fn merge(field: &mut Field<Self>, sent: protobuf::Value<'a>) -> Result<(), Malformed>;
}

impl Shape for bool {
    const EXPECTED: &'static str = "true or false";

    fn from_bool(value: bool) -> Option<Self> {
        Some(value)
    }
}

impl Merge<'_> for bool {
    fn merge(field: &mut Field<Self>, sent: protobuf::Value<'_>) -> Result<(), Malformed> {
        *field = Field::Is(sent.number()? != 0);
        Ok(())
    }
}

impl Shape for i64 {
    const EXPECTED: &'static str = "an integer";

    fn from_integer(value: i64) -> Option<Self> {
        Some(value)
    }
}

impl Merge<'_> for i64 {
    fn merge(field: &mut Field<Self>, sent: protobuf::Value<'_>) -> Result<(), Malformed> {
        *field = Field::Is(sent.number()?.cast_signed());
        Ok(())
    }
}

impl Shape for Timestamp {
    const EXPECTED: &'static str = "a time";

    fn from_text(value: &str) -> Option<Self> {
        value.parse().ok()
    }
}

impl Merge<'_> for Timestamp {
    /// Takes in a `Time`, whose field 1 is the seconds since 1970. One that is not set is sent without them.
    fn merge(field: &mut Field<Self>, sent: protobuf::Value<'_>) -> Result<(), Malformed> {
        let seconds = sent.message()?.number(1)?.cast_signed();
        *field = match Self::from_second(seconds) {
            Ok(time) if seconds != 0 => Field::Is(time),
            _ => Field::Absent,
        };
        Ok(())
    }
}

/// A string, borrowed from protobuf.
pub(crate) type Text<'a> = Cow<'a, str>;

/// A copy of a string, which outlives the answer that it came in.
#[expect(clippy::needless_pass_by_value, reason = "what is owned afterwards is not needed as it was")]
pub(super) fn owned<T: for<'a> From<&'a str>>(text: Text<'_>) -> T {
    T::from(&*text)
}

impl Shape for Text<'_> {
    const EXPECTED: &'static str = "a string";

    fn from_text(value: &str) -> Option<Self> {
        Some(value.to_owned().into())
    }
}

impl<'a> Merge<'a> for Text<'a> {
    fn merge(field: &mut Field<Self>, sent: protobuf::Value<'a>) -> Result<(), Malformed> {
        *field = match str::from_utf8(sent.message()?.as_slice()) {
            Ok(text) => Field::Is(text.into()),
            Err(_) => Field::wrong("(bytes that are not UTF-8)"),
        };
        Ok(())
    }
}

impl<T: Shape> Shape for Vec<Field<T>> {
    const EXPECTED: &'static str = "a list";

    fn from_list<'de, A: SeqAccess<'de>>(mut list: A) -> Result<Field<Self>, A::Error> {
        let mut elements = Self::new();
        while let Some(element) = list.next_element()? {
            elements.push(element);
        }
        Ok(Field::Is(elements))
    }
}

impl<'a, T: Merge<'a>> Merge<'a> for Vec<Field<T>> {
    fn merge(field: &mut Field<Self>, sent: protobuf::Value<'a>) -> Result<(), Malformed> {
        let Some(list) = field.or_default() else { return Ok(()) };
        list.push(Field::Absent);
        list.last_mut().map_or(Ok(()), |element| T::merge(element, sent))
    }
}

/// The first element of a list whose elements all mean the same.
#[derive(Debug, Default)]
pub(crate) struct First<T>(pub(crate) Field<T>);

impl<T: Shape> Shape for First<T> {
    const EXPECTED: &'static str = "a list";

    fn from_list<'de, A: SeqAccess<'de>>(mut list: A) -> Result<Field<Self>, A::Error> {
        let first = list.next_element()?.unwrap_or_default();
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Field::Is(Self(first)))
    }
}

impl<'a, T: Merge<'a>> Merge<'a> for First<T> {
    fn merge(field: &mut Field<Self>, sent: protobuf::Value<'a>) -> Result<(), Malformed> {
        if field.is_present() {
            return Ok(());
        }
        let mut first = Field::Absent;
        T::merge(&mut first, sent)?;
        *field = Field::Is(Self(first));
        Ok(())
    }
}

/// An object in JSON: a struct whose fields are [`Field`]s. [`object!`] defines it, and implements [`Fields`].
pub(crate) trait Object: DeserializeOwned + Default {}

/// The same as a message in protobuf.
pub(crate) trait Fields<'a>: Object {
    /// Takes in the field of a number. One of another number is ignored.
    fn set(&mut self, number: u64, sent: protobuf::Value<'a>) -> Result<(), Malformed>;

    /// Takes in all fields of a message.
    fn take(&mut self, message: protobuf::Message<'a>) -> Result<(), Malformed> {
        for field in message.fields() {
            let (number, sent) = field?;
            self.set(number, sent)?;
        }
        Ok(())
    }
}

/// Defines objects: the struct of each, and the numbers of its fields in protobuf, in whose order they stand.
///
/// The numbers are those of `generated.proto` in k8s.io/api and k8s.io/apimachinery. The name of a field in JSON is its
/// own in camelCase, except where `serde(rename)` has another.
///
/// Go sends a field that is a pointer only if it is set, and then it may be empty. Any other is always sent: it is set
/// `unless is_empty`, as JSON leaves it out then.
macro_rules! object {
    ($(
        $(#[$doc:meta])*
        $visibility:vis struct $object:ident $(<$lifetime:lifetime>)? {
            $($(#[$rename:meta])? $number:literal $(unless $unset:ident)? => $field:ident: $type:ty),* $(,)?
        }
    )+) => {$(
        $(#[$doc])*
        #[derive(Debug, Default, ::serde::Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        $visibility struct $object $(<$lifetime>)? {
            $($(#[$rename])? $field: $type,)*
        }

        impl<'a> $crate::objects::field::Object for $object $(<$lifetime>)? {}

        impl<'a> $crate::objects::field::Fields<'a> for $object $(<$lifetime>)? {
            fn set(
                &mut self,
                number: u64,
                sent: $crate::protobuf::Value<'a>,
            ) -> Result<(), $crate::protobuf::Malformed> {
                match number {
                    $($number => {
                        $(if sent.$unset() {
                            self.$field = $crate::objects::field::Field::Absent;
                            return Ok(());
                        })?
                        $crate::objects::field::Merge::merge(&mut self.$field, sent)
                    })*
                    _ => Ok(()),
                }
            }
        }
    )+};
}
pub(crate) use object;

impl<T: Object> Shape for T {
    const EXPECTED: &'static str = "an object";

    fn from_map<'de, A: MapAccess<'de>>(map: A) -> Result<Field<Self>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Field::Is)
    }
}

impl<'a, T: Fields<'a>> Merge<'a> for T {
    fn merge(field: &mut Field<Self>, sent: protobuf::Value<'a>) -> Result<(), Malformed> {
        let message = sent.message()?;
        field.or_default().map_or(Ok(()), |object| object.take(message))
    }
}

impl<'de, T: Shape> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FieldVisitor(PhantomData))
    }
}

struct FieldVisitor<T>(PhantomData<T>);

/// The value made of a scalar, or the scalar itself.
fn field<T>(value: Option<T>, scalar: impl Into<Value>) -> Field<T> {
    value.map_or_else(|| Field::wrong(scalar), Field::Is)
}

impl<'de, T: Shape> Visitor<'de> for FieldVisitor<T> {
    type Value = Field<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Field::Absent)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        Ok(field(T::from_bool(value), value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        Ok(field(T::from_integer(value), value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(field(i64::try_from(value).ok().and_then(T::from_integer), value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        Ok(Field::wrong(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Self::Value, E> {
        Ok(field(T::from_text(value), value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        T::from_list(list)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::from_map(map)
    }
}
