//! Kubernetes' JSON: events of a watch, of which each is a line, statuses, and lists.
//!
//! A list is read while it comes in: no more of it is kept than one object. What is between the objects is read here.
//! Each object, and the metadata, is cut out by its brackets and quotation marks; serde_json says whether it is JSON.

use std::{collections::BTreeMap, marker::PhantomData};

use bytes::{Buf as _, Bytes, BytesMut};
use kube::core::{self, ListMeta, Status};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, value::RawValue};
use tokio_util::codec::Decoder;

use super::{LONGEST, Unreadable};
use crate::{
    api::requests::{Part, WatchEvent},
    objects::Kind,
};

/// Reads an event of a watch. A line that is not an event may be the status of an error.
pub(in crate::api) fn event<T: Kind>(line: &str) -> Result<WatchEvent<T>, Unreadable> {
    match read(line.as_bytes()) {
        Ok(event) => Ok(match event {
            core::WatchEvent::Added(view) | core::WatchEvent::Modified(view) => WatchEvent::Applied(view),
            core::WatchEvent::Deleted(view) => WatchEvent::Deleted(view),
            core::WatchEvent::Bookmark(bookmark) => WatchEvent::Bookmark(bookmark.metadata.resource_version),
            core::WatchEvent::Error(status) => WatchEvent::Error(status),
        }),
        Err(error) => serde_json::from_str(line).map(WatchEvent::Error).map_err(|_| error.into()),
    }
}

/// Reads a value from its text. Where serde_json refuses what is JSON all the same, the innermost value is lost and no
/// other: a number out of range, half a surrogate pair, a member that is there twice, brackets within too many others.
fn read<T: DeserializeOwned>(text: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice(text).or_else(|refusal| {
        let value = readable(serde_json::from_slice(text)?, DEEPEST);
        T::deserialize(value).map_err(|_| refusal)
    })
}

/// How many brackets are opened. No object that is read here has as many within each other.
const DEEPEST: usize = 32;

/// The value of a text, in which a list of one text takes the place of what cannot be read.
fn readable(text: &RawValue, depth: usize) -> Value {
    let (text, unreadable) = (text.get(), || Value::from(vec![text.get()]));
    let Some(within) = depth.checked_sub(1) else { return unreadable() };
    if let Ok(members) = serde_json::from_str::<BTreeMap<String, &RawValue>>(text) {
        members.into_iter().map(|(name, member)| (name, readable(member, within))).collect()
    } else if let Ok(elements) = serde_json::from_str::<Vec<&RawValue>>(text) {
        elements.into_iter().map(|element| readable(element, within)).collect()
    } else {
        serde_json::from_str(text).unwrap_or_else(|_| unreadable())
    }
}

/// Reads the answer to a request that was refused.
pub(in crate::api) fn status(text: &[u8]) -> Result<Status, Unreadable> {
    Ok(serde_json::from_slice(text)?)
}

/// Reads the parts of a list from its text.
pub(in crate::api) struct ListDecoder<T> {
    within: Within,
    scan: Scan,
    has_items: bool,
    kind: PhantomData<fn() -> T>,
}

/// The next token, after white space.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Within {
    /// The list's opening bracket.
    Beginning,
    /// The name of a member of the list, or the list's end.
    Name,
    /// The colon after it.
    Colon(Member),
    /// The value of that member.
    Value(Member),
    /// A comma, or the list's end.
    AfterMember,
    /// An object, or the end of `items`.
    Item,
    /// A comma, or the end of `items`.
    AfterItem,
    /// Nothing.
    End,
}

/// A member of a list.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Member {
    Metadata,
    Items,
    Other,
}

impl<T> Default for ListDecoder<T> {
    fn default() -> Self {
        Self { within: Within::Beginning, scan: Scan::default(), has_items: false, kind: PhantomData }
    }
}

impl<T: Kind> Decoder for ListDecoder<T> {
    type Item = Part<T>;
    type Error = Unreadable;

    fn decode(&mut self, text: &mut BytesMut) -> Result<Option<Part<T>>, Unreadable> {
        loop {
            if self.scan == Scan::default() {
                let blank = text.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
                text.advance(blank);
            }
            let Some(&next) = text.first() else { return Ok(None) };
            self.within = match (self.within, next) {
                (Within::Beginning, b'{') | (Within::AfterMember, b',') => Within::Name,
                (Within::Name | Within::AfterMember, b'}') => Within::End,
                (Within::Colon(member), b':') => Within::Value(member),
                (Within::Value(Member::Items), b'[') | (Within::AfterItem, b',') => Within::Item,
                (Within::Item | Within::AfterItem, b']') => Within::AfterMember,
                (Within::Name, b'"') => {
                    let Some(name) = self.scan.take_value(text)? else { return Ok(None) };
                    let member = Member::from_name(&name);
                    self.has_items |= member == Member::Items;
                    self.within = Within::Colon(member);
                    continue;
                }
                (Within::Value(member), _) => {
                    let Some(value) = self.scan.take_value(text)? else { return Ok(None) };
                    self.within = Within::AfterMember;
                    match member {
                        Member::Metadata => {
                            let metadata: ListMeta = serde_json::from_slice(&value)?;
                            return Ok(Some(Part::Version(metadata.resource_version.unwrap_or_default())));
                        }
                        // Go writes null for an empty list.
                        Member::Items if *value != *b"null" => return Err(Unreadable::NoList),
                        Member::Items | Member::Other => _ = serde_json::from_slice::<IgnoredAny>(&value)?,
                    }
                    continue;
                }
                (Within::Item, _) => {
                    let Some(object) = self.scan.take_value(text)? else { return Ok(None) };
                    self.within = Within::AfterItem;
                    return Ok(Some(Part::Object(read(&object)?)));
                }
                _ => return Err(Unreadable::NoList),
            };
            text.advance(1);
        }
    }

    fn decode_eof(&mut self, text: &mut BytesMut) -> Result<Option<Part<T>>, Unreadable> {
        match self.decode(text)? {
            None if self.within != Within::End => Err(Unreadable::Incomplete),
            None if !self.has_items => Err(Unreadable::NoList),
            part => Ok(part),
        }
    }
}

impl Member {
    fn from_name(name: &[u8]) -> Self {
        match name {
            b"\"metadata\"" => Self::Metadata,
            b"\"items\"" => Self::Items,
            _ => Self::Other,
        }
    }
}

/// How much of a value has been scanned.
#[derive(Debug, Default, PartialEq)]
struct Scan {
    length: usize,
    /// The brackets that are open.
    depth: usize,
    in_string: bool,
    /// Whether the next byte of the string is meant literally.
    is_escaped: bool,
}

impl Scan {
    /// Takes the value that the text begins with, when all of it has come.
    fn take_value(&mut self, text: &mut BytesMut) -> Result<Option<Bytes>, Unreadable> {
        let new = text.get(self.length..).unwrap_or_default();
        for (i, byte) in (self.length..).zip(new) {
            if let Some(end) = self.ends_at(i, *byte) {
                *self = Self::default();
                return Ok(Some(text.split_to(end).freeze()));
            }
        }
        self.length = text.len();
        if self.length > LONGEST { Err(Unreadable::TooLong) } else { Ok(None) }
    }

    /// Where the value ends, if this byte of it says so.
    fn ends_at(&mut self, i: usize, byte: u8) -> Option<usize> {
        if self.in_string {
            let is_quoted = self.is_escaped;
            self.is_escaped = byte == b'\\' && !is_quoted;
            self.in_string = byte != b'"' || is_quoted;
            return (!self.in_string && self.depth == 0).then_some(i + 1);
        }
        match byte {
            // A number or a word has no end of its own.
            b',' | b':' | b']' | b'}' if self.depth == 0 => Some(i),
            _ if self.depth == 0 && i > 0 && byte.is_ascii_whitespace() => Some(i),
            b'"' => {
                self.in_string = true;
                None
            }
            b'{' | b'[' => {
                self.depth += 1;
                None
            }
            b'}' | b']' => {
                self.depth -= 1;
                (self.depth == 0).then_some(i + 1)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};
    use serde_json::json;
    use service::Service;

    use super::*;
    use crate::objects::Decoded;

    /// The names and versions in a text that comes in pieces of this size.
    fn read_list(text: &[u8], piece: usize) -> Result<Vec<String>, Unreadable> {
        let (mut decoder, mut buffer, mut parts) =
            (ListDecoder::<Service>::default(), BytesMut::new(), Vec::new());
        let mut note = |part| {
            parts.push(match part {
                Part::Object(view) => view.name.name().to_owned(),
                Part::Version(version) => format!("version {version}"),
            });
        };
        for piece in text.chunks(piece) {
            buffer.extend_from_slice(piece);
            while let Some(part) = decoder.decode(&mut buffer)? {
                note(part);
            }
        }
        while let Some(part) = decoder.decode_eof(&mut buffer)? {
            note(part);
        }
        Ok(parts)
    }

    #[test]
    fn the_parts_of_a_list_are_read_in_its_order() {
        let text = r#" {"kind" : "ServiceList", "more": [1, {"a]": "}\"\\"}, null], "n": -1.5e3 ,
            "metadata":{"resourceVersion":"7"},"items":[ {"metadata":{"name":"a\\","namespace":"x"}} ,
            {"metadata":{"name":"b{[\"","namespace":"x"}}, 17, "text"],"end":true}
            "#;
        for piece in [1, 7, usize::MAX] {
            assert_eq!(read_list(text.as_bytes(), piece).unwrap(), ["version 7", "a\\", "b{[\"", "", ""]);
        }
        assert_eq!(read_list(br#"{"items":null,"metadata":{}}"#, 3).unwrap(), ["version "]);
        assert_eq!(read_list(br#"{"items":[]}"#, 3).unwrap(), [""; 0]);
    }

    #[test]
    fn a_value_that_cannot_be_read_costs_only_itself() {
        let nested = format!("{}{}", "[".repeat(200), "]".repeat(200));
        for wrong in ["7", "1e999", "-1e999", r#""\ud800""#, "{\"a\":1e999}", "[1e999]", &nested] {
            let service = format!(
                r#"{{"metadata":{{"name":"web","name":"web","namespace":"shop","labels":{{"unused":{wrong}}},
                "annotations":{{"kube-ipvs.io/scheduler":{wrong}}}}},"spec":{{"clusterIP":"10.96.0.1",
                "unused":{wrong},"ports":[{{"port":80}},{{"name":"b","port":{wrong}}},{{"name":"c","port":81}}]}}}}"#
            );
            let (list, line) = (
                format!(r#"{{"metadata":{{"resourceVersion":"7"}},"items":[{service},{{}}]}}"#),
                format!(r#"{{"type":"ADDED","object":{service}}}"#),
            );
            assert_eq!(read_list(list.as_bytes(), 7).unwrap(), ["version 7", "web", ""], "{wrong}");
            let Ok(WatchEvent::Applied(view)) = event::<Service>(&line) else { panic!("{wrong}") };
            let Decoded::Object(read) = view.decoded else { panic!("{wrong}: {view:?}") };
            let ports: Vec<_> = read.ports.iter().map(|port| port.port).filter(|port| *port != 7).collect();
            assert_eq!(ports, [80, 81], "{wrong}");
            let is_reported =
                |problem: &String| problem.starts_with("metadata.annotations[kube-ipvs.io/scheduler]");
            assert!(read.problems.iter().any(is_reported), "{read:?}");
        }
        assert!(event::<Service>(r#"{"type":"ADDED","object":{"metadata":}}"#).is_err());
    }

    #[test]
    fn what_is_not_a_list_is_refused() {
        for text in [
            "",
            "[]",
            "{",
            "{}",
            "null",
            r#"{"items":[}"#,
            r#"{"items":7}"#,
            r#"{"items":[]"#,
            r#"{"items":[]}}"#,
            r#"{"items":[{}{}]}"#,
            r#"{"items":[{"a":}]}"#,
            r#"{"items":[{]]}"#,
            r#"{"metadata":7,"items":[]}"#,
            r"{items:[]}",
            r#"{"items" []}"#,
            r#"{"metadata":{"resourceVersion":"7"}}"#,
            "{\"items\":[:]}",
        ] {
            for piece in [1, usize::MAX] {
                assert!(read_list(text.as_bytes(), piece).is_err(), "{text}");
            }
        }
    }

    #[test]
    fn an_object_without_an_end_is_given_up() {
        let mut text = br#"{"items":[{""#.to_vec();
        text.resize(LONGEST + 100, b'x');
        assert!(matches!(read_list(&text, 1 << 20), Err(Unreadable::TooLong)));
    }

    /// Any value whose text needs care.
    fn value() -> impl Strategy<Value = Value> {
        let scalar = prop_oneof![
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            r#"["\\{}\[\],: a\n]{0,8}"#.prop_map(Value::from),
        ];
        scalar.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                vec(inner.clone(), 0..4).prop_map(Value::from),
                vec((r#"["\\{}\[\],:]{0,4}"#, inner), 0..4).prop_map(|members| members.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_list_of_anything_has_as_many_parts_as_it_says(
            items in vec(value(), 0..6), other in value(), pretty: bool, piece in 1..20_usize,
        ) {
            let list = json!({"a": other, "items": items, "metadata": {"resourceVersion": "7"}});
            let text = if pretty { format!("{list:#}") } else { list.to_string() };
            prop_assert_eq!(read_list(text.as_bytes(), piece).unwrap().len(), items.len() + 1);
        }
    }
}
