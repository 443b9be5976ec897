//! `metadata`: the object's name, and its labels and annotations.

use std::{fmt, str};

use jiff::Timestamp;
use serde::de::MapAccess;
use service::ObjectName;

use super::{
    Decoded, Problems, View,
    field::{Field, Merge, Shape, Text, object, owned},
};
use crate::protobuf::{self, Malformed};

object! {
    /// `metadata` as it is sent.
    pub(crate) struct RawMetadata<'a> {
        1 unless is_empty => name: Field<Text<'a>>,
        3 unless is_empty => namespace: Field<Text<'a>>,
        6 unless is_empty => resource_version: Field<Text<'a>>,
        8 => creation_timestamp: Field<Timestamp>,
        9 => deletion_timestamp: Field<Timestamp>,
        11 => labels: Field<Entries<'a>>,
        12 => annotations: Field<Entries<'a>>,
    }
}

/// Labels or annotations. Of some with the same key the last counts.
#[derive(Debug, Default)]
struct Entries<'a>(Vec<(Text<'a>, Field<Text<'a>>)>);

impl<'a> Entries<'a> {
    fn take(&mut self, key: &str) -> Field<Text<'a>> {
        let entry = self.0.iter_mut().rfind(|(other, _)| **other == *key);
        entry.map(|(_, value)| std::mem::take(value)).unwrap_or_default()
    }
}

impl Shape for Entries<'_> {
    const EXPECTED: &'static str = "an object";

    fn from_map<'de, A: MapAccess<'de>>(mut map: A) -> Result<Field<Self>, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, value)) = map.next_entry::<String, _>()? {
            entries.push((key.into(), value));
        }
        Ok(Field::Is(Self(entries)))
    }
}

impl<'a> Merge<'a> for Entries<'a> {
    /// Takes in one entry, a message of key and value. One that is not text is left out.
    fn merge(field: &mut Field<Self>, sent: protobuf::Value<'a>) -> Result<(), Malformed> {
        let entry = sent.message()?;
        let [key, value] = [entry.field(1)?, entry.field(2)?].map(|it| str::from_utf8(it.as_slice()));
        if let (Some(entries), Ok(key), Ok(value)) = (field.or_default(), key, value) {
            entries.0.push((key.into(), Field::Is(value.into())));
        }
        Ok(())
    }
}

/// `metadata` after it was read.
pub(super) struct Metadata<'a> {
    /// Without a namespace if the object is cluster-wide; empty where it cannot be read.
    pub(super) name: ObjectName,
    version: Option<Text<'a>>,
    /// The time of creation, in seconds since 1970.
    pub(super) created: Option<i64>,
    /// Whether the object is being deleted.
    pub(super) leaving: bool,
    labels: Entries<'a>,
    annotations: Entries<'a>,
}

impl<'a> Metadata<'a> {
    pub(super) fn read(raw: Field<RawMetadata<'a>>, problems: &mut Problems) -> Self {
        let raw = raw.read("metadata", problems).unwrap_or_default();
        let name = raw.name.read("metadata.name", problems).unwrap_or_default();
        let namespace = raw.namespace.read("metadata.namespace", problems).unwrap_or_default();
        Self {
            name: ObjectName::new(&*namespace, &*name),
            version: raw
                .resource_version
                .read("metadata.resourceVersion", problems)
                .filter(|version| !version.is_empty()),
            created: raw
                .creation_timestamp
                .read("metadata.creationTimestamp", problems)
                .map(Timestamp::as_second),
            leaving: raw.deletion_timestamp.is_present(),
            labels: raw.labels.read("metadata.labels", problems).unwrap_or_default(),
            annotations: raw.annotations.read("metadata.annotations", problems).unwrap_or_default(),
        }
    }

    /// The object's name, if it has one and a namespace.
    pub(super) fn object_name(&self) -> Option<ObjectName> {
        let (namespace, name) = self.name.parts();
        (!name.is_empty() && !name.contains('/') && !namespace.is_empty()).then(|| self.name.clone())
    }

    /// Whether a label has any value, right or wrong.
    pub(super) fn has_label(&self, key: &str) -> bool {
        self.labels.0.iter().any(|(other, value)| **other == *key && value.is_present())
    }

    /// Takes the value of a label. It is read once.
    pub(super) fn label(&mut self, key: &str, problems: &mut Problems) -> Option<Text<'a>> {
        self.labels.take(key).read(format_args!("metadata.labels[{key}]"), problems)
    }

    /// Takes an annotation. It is read once.
    pub(super) fn annotation(
        &mut self,
        key: &'static str,
        problems: &mut Problems,
    ) -> Option<Annotation<'a>> {
        let text = self.annotations.take(key).read(AnnotationPath(key), problems)?;
        Some(Annotation { at: AnnotationPath(key), text })
    }

    /// The view of the object with this content.
    pub(super) fn view<T>(self, decoded: Decoded<T>) -> View<T> {
        View { name: self.name, version: self.version.map(owned), decoded }
    }
}

/// An annotation.
pub(super) struct Annotation<'a> {
    /// Its path in the object.
    pub(super) at: AnnotationPath,
    pub(super) text: Text<'a>,
}

/// The path of the annotation with a key.
#[derive(Clone, Copy)]
pub(super) struct AnnotationPath(&'static str);

impl fmt::Display for AnnotationPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "metadata.annotations[{}]", self.0)
    }
}

/// Why an object without [`Metadata::object_name`] cannot be used.
pub(super) fn nameless(problems: Problems) -> String {
    let mut reasons = problems.into_vec();
    reasons.push("it has no valid name or namespace".to_owned());
    reasons.join("; ")
}
