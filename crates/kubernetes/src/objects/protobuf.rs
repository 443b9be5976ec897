//! Objects as the API server writes them in protobuf: only the fields that are used, by the numbers of `generated.proto`
//! in k8s.io/api and k8s.io/apimachinery.
//!
//! A field that Go has as a pointer is an `Option` here, and may be sent empty. Any other is always sent, and counts as
//! absent when it is empty or zero, as JSON leaves it out then.

use prost::bytes::Bytes;

use super::field::{Field, List, Shape, Text};

/// Text that may be empty.
pub(super) fn given(text: Option<Bytes>) -> Field<Text> {
    text.map_or(Field::Absent, |text| match Text::try_from(text.clone()) {
        Ok(text) => Field::Is(text),
        Err(_) => Field::Wrong(String::from_utf8_lossy(&text).into()),
    })
}

/// Text that is left out when it is empty.
pub(super) fn text(text: Bytes) -> Field<Text> {
    given(Some(text).filter(|text| !text.is_empty()))
}

pub(super) fn texts(texts: Vec<Bytes>) -> List<Text> {
    list(texts, |text| given(Some(text)))
}

/// A number that is left out when it is zero.
pub(super) fn number(number: i32) -> Field<i64> {
    is(Some(number).filter(|number| *number != 0))
}

/// A value, or a message, that may be missing.
pub(super) fn is<T, U: From<T>>(value: Option<T>) -> Field<U> {
    value.map_or(Field::Absent, |value| Field::Is(value.into()))
}

pub(super) fn messages<T, U: From<T> + Shape>(messages: Vec<T>) -> List<U> {
    list(messages, |message| Field::Is(message.into()))
}

fn list<T, U>(sent: Vec<T>, element: impl Fn(T) -> Field<U>) -> List<U> {
    if sent.is_empty() { Field::Absent } else { Field::Is(sent.into_iter().map(element).collect()) }
}
