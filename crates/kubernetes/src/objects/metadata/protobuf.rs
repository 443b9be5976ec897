//! `metadata` in protobuf.

use jiff::Timestamp;
use prost::{Message, bytes::Bytes};
use serde::{
    Deserialize,
    de::value::{Error, MapDeserializer},
};

use super::RawMetadata;
use crate::objects::{
    field::Field,
    protobuf::{is, text},
};

#[derive(Clone, PartialEq, Message)]
pub(in crate::objects) struct ObjectMeta {
    #[prost(bytes = "bytes", tag = "1")]
    name: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    namespace: Bytes,
    #[prost(bytes = "bytes", tag = "6")]
    resource_version: Bytes,
    #[prost(message, optional, tag = "8")]
    creation_timestamp: Option<Time>,
    #[prost(message, optional, tag = "9")]
    deletion_timestamp: Option<Time>,
    #[prost(message, repeated, tag = "11")]
    labels: Vec<Entry>,
    #[prost(message, repeated, tag = "12")]
    annotations: Vec<Entry>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Time {
    /// Since 1970.
    #[prost(int64, tag = "1")]
    seconds: i64,
}

/// Of a map.
#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

impl From<ObjectMeta> for RawMetadata {
    fn from(sent: ObjectMeta) -> Self {
        Self {
            name: text(sent.name),
            namespace: text(sent.namespace),
            resource_version: text(sent.resource_version),
            creation_timestamp: time(sent.creation_timestamp),
            deletion_timestamp: time(sent.deletion_timestamp),
            labels: map(&sent.labels),
            annotations: map(&sent.annotations),
        }
    }
}

/// A time that nobody has set is sent without seconds.
fn time(sent: Option<Time>) -> Field<Timestamp> {
    is(sent.filter(|time| time.seconds != 0).and_then(|time| Timestamp::from_second(time.seconds).ok()))
}

/// Some of the entries, by the keys that JSON has too.
fn map<'de, T: Deserialize<'de>>(entries: &'de [Entry]) -> Field<T> {
    let texts = entries
        .iter()
        .filter_map(|entry| Some((str::from_utf8(&entry.key).ok()?, str::from_utf8(&entry.value).ok()?)));
    T::deserialize(MapDeserializer::<_, Error>::new(texts)).map_or(Field::Absent, Field::Is)
}
