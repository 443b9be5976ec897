//! API objects, read down to what the proxy needs.
//!
//! A [`View`] decodes straight into the plain values of [`service`]; nothing else of the object is
//! kept. Decoding never fails because of a field: an element that cannot be used is left out, and its
//! [`problems`](service::Service::problems) say which and why.

mod address;
mod complaints;
mod endpoint_slice;
mod field;
mod metadata;
mod node;
mod port;
mod service_object;
mod weight;

#[cfg(test)]
mod tests;

use std::{borrow::Cow, fmt, fmt::Display};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use rustc_hash::FxHashSet;
use serde::{Deserialize, Deserializer};
use service::{Change, ObjectName};

pub(crate) use self::complaints::Complaints;
use self::field::{Field, Object};

/// A kind of object that the proxy reads.
pub(crate) trait Kind: Clone + fmt::Debug + PartialEq + Send + Sync + 'static {
    /// The kind, as in a manifest.
    const KIND: &'static str;
    /// The API group; empty for the core group.
    const GROUP: &'static str;
    /// The resource, as in a URL.
    const PLURAL: &'static str;
    /// Whether every cluster has some: an answer without any is doubtful.
    const ALWAYS_SOME: bool;

    /// The object as it comes.
    type Raw: Object;

    /// Reads it.
    fn decode(raw: Self::Raw) -> (ObjectMeta, Decoded<Self>);

    /// What was wrong with it.
    fn problems(&self) -> &[String];

    /// The news as the core takes it; `None` where it does not concern the core.
    fn change(news: News<Self>) -> Option<Change>;
}

/// All kinds are of version 1 of their group.
pub(crate) const VERSION: &str = "v1";

/// What an object says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Decoded<T> {
    /// Something to serve.
    Object(T),
    /// Nothing to this proxy, rightly so.
    NotOurs(&'static str),
    /// Nothing that can be used.
    Unusable(String),
}

/// What happened to the objects of one kind.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum News<T> {
    /// These are in the first list, which is being read.
    List(Vec<T>),
    /// The first list has been read to its end: there are these, and no others.
    Keep(FxHashSet<ObjectName>),
    /// These are all.
    Replace(Vec<T>),
    /// This one is new or different.
    Apply(T),
    /// This one is gone.
    Delete(ObjectName),
}

/// An object of the API, read down to what the proxy needs.
#[derive(Clone, Debug)]
pub(crate) struct View<T> {
    /// Name, namespace and resource version; nothing else.
    pub(crate) metadata: ObjectMeta,
    /// What it says.
    pub(crate) decoded: Decoded<T>,
}

impl<T> View<T> {
    /// Which object it is. The namespace of a cluster-wide object is empty.
    pub(crate) fn name(&self) -> ObjectName {
        let text = |field: &Option<String>| field.as_deref().unwrap_or_default().to_owned();
        ObjectName::new(text(&self.metadata.namespace), text(&self.metadata.name))
    }
}

impl<'de, T: Kind> Deserialize<'de> for View<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut problems = Problems::default();
        let raw = Field::<T::Raw>::deserialize(deserializer)?.read(T::KIND, &mut problems);
        let (metadata, decoded) = match raw {
            Some(raw) => T::decode(raw),
            None => (ObjectMeta::default(), Decoded::Unusable(problems.into_vec().join("; "))),
        };
        Ok(Self { metadata, decoded })
    }
}

impl<T: Kind> Resource for View<T> {
    type DynamicType = ();
    type Scope = k8s_openapi::ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        T::KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        T::GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        T::PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// What was wrong with an object, in words.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    first: Vec<String>,
    more: usize,
}

/// So many problems of an object are told in words. Each goes into the log and an Event, and there is room in an
/// annotation for a hundred thousand.
const MOST_PROBLEMS: usize = 16;

impl Problems {
    /// Notes a problem of the field at this path.
    fn add(&mut self, at: impl Display, what: impl Display) {
        if self.first.len() < MOST_PROBLEMS {
            self.first.push(format!("{at}: {what}"));
        } else {
            self.more += 1;
        }
    }

    fn into_vec(self) -> Vec<String> {
        let Self { first: mut problems, more } = self;
        problems.extend((more > 0).then(|| format!("and {more} more problems")));
        problems
    }
}
