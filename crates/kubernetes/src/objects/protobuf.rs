//! Objects as the API server writes them in protobuf: only the fields that are used, by the numbers of `generated.proto`
//! in k8s.io/api and k8s.io/apimachinery.
//!
//! A field that Go has as a pointer is an `Option` here, and may be sent empty. Any other is always sent, and counts as
//! absent when it is empty or zero, as JSON leaves it out then.

use prost::bytes::Bytes;

use super::field::{Field, First, List, Shape, Text};

/// Text that may be empty.
pub(super) fn given(text: Option<Bytes>) -> Field<Text> {
    let Some(text) = text else { return Field::Absent };
    Text::try_from(text).map_or_else(|_| Field::Wrong("(bytes that are no UTF-8)".into()), Field::Is)
}

/// Text that is left out when it is empty.
pub(super) fn text(text: Bytes) -> Field<Text> {
    given(Some(text).filter(|text| !text.is_empty()))
}

/// The first of some texts that all mean the same.
pub(super) fn first(texts: Vec<Bytes>) -> Field<First<Text>> {
    Field::Is(First(given(texts.into_iter().next())))
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
