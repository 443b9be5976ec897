//! API objects, decoded into what the proxy needs.
//!
//! A [`View`] is decoded straight into the plain values of [`service`]; nothing else of the object is kept. Decoding
//! never fails because of a field: an element that cannot be used is left out, and the object's
//! [`problems`](service::Service::problems) say which and why.

mod endpoint_slice;
mod field;
mod metadata;
mod node;
mod service_object;
mod values;

#[cfg(test)]
mod tests;

use std::fmt::{self, Display};

use serde::{Deserialize, Deserializer};
use service::{Named, ObjectName};

use self::field::{Field, Fields};
use crate::protobuf::{Malformed, Message};

/// A kind of object that the proxy reads.
pub(crate) trait Kind: Named + Clone + fmt::Debug + PartialEq + Send + Sync + 'static {
    /// The kind, as in a manifest.
    const KIND: &'static str;
    /// The API group; empty for the core group.
    const GROUP: &'static str;
    /// The resource, as in a URL.
    const PLURAL: &'static str;
    /// Whether every cluster has some: an answer without any is doubtful.
    const ALWAYS_SOME: bool;

    /// The object as it is sent, in JSON or protobuf.
    type Raw<'a>: Fields<'a>;

    /// Where all of them are, in a URL.
    fn path() -> String {
        let group = if Self::GROUP.is_empty() { "api".to_owned() } else { format!("apis/{}", Self::GROUP) };
        format!("/{group}/{VERSION}/{}", Self::PLURAL)
    }

    /// Reads an object.
    fn read(raw: Self::Raw<'_>) -> View<Self>;

    /// The problems of the object.
    fn problems(&self) -> &[String];
}

/// The version of all kinds that are read, in their group.
pub(crate) const VERSION: &str = "v1";

/// The result of decoding an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Decoded<T> {
    /// The object has something to serve.
    Object(T),
    /// The object is valid and does not concern this proxy, for this reason.
    NotOurs(&'static str),
    /// Nothing of the object can be used, for this reason.
    Unusable(String),
}

/// An API object, decoded into what the proxy needs.
#[derive(Clone, Debug)]
pub(crate) struct View<T> {
    /// The name of the object. The namespace of a cluster-wide object is empty, and so is a part that cannot be read.
    pub(crate) name: ObjectName,
    /// Its resource version.
    pub(crate) version: Option<Box<str>>,
    /// Its content.
    pub(crate) decoded: Decoded<T>,
}

impl<T: Kind> View<T> {
    /// Reads an object in protobuf.
    pub(crate) fn from_protobuf(object: Message<'_>) -> Result<Self, Malformed> {
        let mut raw = T::Raw::<'_>::default();
        raw.take(object)?;
        Ok(T::read(raw))
    }
}

impl<'de, T: Kind> Deserialize<'de> for View<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut problems = Problems::default();
        let raw = Field::<T::Raw<'static>>::deserialize(deserializer)?.read(T::KIND, &mut problems);
        Ok(raw.map_or_else(
            || Self {
                name: ObjectName::default(),
                version: None,
                decoded: Decoded::Unusable(problems.into_vec().join("; ")),
            },
            T::read,
        ))
    }
}

/// The problems of an object.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    first: Vec<String>,
    more: usize,
}

/// How many problems of an object are reported by their texts. Each goes into the log and an Event, and an annotation
/// has room for a hundred thousand.
const MOST_PROBLEMS: usize = 16;

impl Problems {
    /// Notes a problem of the field at a path.
    fn add(&mut self, at: impl Display, what: impl Display) {
        if self.first.len() < MOST_PROBLEMS {
            self.first.push(format!("{at}: {what}"));
        } else {
            self.more += 1;
        }
    }

    /// Returns what was found. If that is nothing, notes a problem of the field at a path.
    fn require<T>(&mut self, found: Option<T>, at: impl Display, otherwise: impl Display) -> Option<T> {
        if found.is_none() {
            self.add(at, otherwise);
        }
        found
    }

    fn into_vec(self) -> Vec<String> {
        let Self { first: mut problems, more } = self;
        problems.extend((more > 0).then(|| format!("and {more} more problems")));
        problems
    }
}
