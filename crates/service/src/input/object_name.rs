//! Names of objects, and their problems.

use std::{cmp::Ordering, fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// A namespace and a name: what identifies a Service, or an EndpointSlice. Cheap to clone, and small, because the
/// state and its indexes hold several for each Service. Sorted by namespace, then by name.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ObjectName {
    /// NAMESPACE/NAME.
    text: Arc<str>,
}

/// Neither a namespace nor a name has it.
const SEPARATOR: char = '/';

impl ObjectName {
    /// Puts the two together.
    pub fn new(namespace: impl AsRef<str>, name: impl AsRef<str>) -> Self {
        let (namespace, name) = (namespace.as_ref(), name.as_ref());
        let mut text = String::with_capacity(namespace.len() + SEPARATOR.len_utf8() + name.len());
        text.push_str(namespace);
        text.push(SEPARATOR);
        text.push_str(name);
        Self { text: text.into() }
    }

    /// The namespace; empty if the object is cluster-wide.
    pub fn namespace(&self) -> &str {
        self.parts().0
    }

    /// The name in it.
    pub fn name(&self) -> &str {
        self.parts().1
    }

    /// Whether it is this name in this namespace.
    pub(crate) fn is(&self, namespace: &str, name: &str) -> bool {
        self.text.len() == namespace.len() + SEPARATOR.len_utf8() + name.len()
            && self.parts() == (namespace, name)
    }

    /// The namespace and the name.
    pub fn parts(&self) -> (&str, &str) {
        self.text.split_once(SEPARATOR).unwrap_or_default()
    }
}

/// The name of an object without one.
impl Default for ObjectName {
    fn default() -> Self {
        Self::new("", "")
    }
}

impl Ord for ObjectName {
    fn cmp(&self, other: &Self) -> Ordering {
        // The same as comparing the parts, without looking for where they begin: a namespace comes before all longer ones.
        let rank = |byte: u8| (char::from(byte) != SEPARATOR, byte);
        let mut pairs = self.text.bytes().zip(other.text.bytes());
        match pairs.find(|(one, other)| one != other) {
            Some((one, other)) => rank(one).cmp(&rank(other)),
            None => self.text.len().cmp(&other.text.len()),
        }
    }
}

impl PartialOrd for ObjectName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for ObjectName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ObjectName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// The text is not NAMESPACE/NAME.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid name {0:?}: expected NAMESPACE/NAME")]
pub struct InvalidName(pub String);

impl FromStr for ObjectName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(SEPARATOR) {
            Some((namespace, name))
                if !namespace.is_empty() && !name.is_empty() && !name.contains(SEPARATOR) =>
            {
                Ok(Self { text: text.into() })
            }
            _ => Err(InvalidName(text.to_owned())),
        }
    }
}

/// A problem of a Service or of one of its slices. It prints as the object and the problem; a slice is printed with its
/// kind, since a Service could have the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem<'a> {
    /// Of a Service, or of what it asks of this node.
    Service(&'a ObjectName, &'a str),
    /// Of an EndpointSlice.
    EndpointSlice(&'a ObjectName, &'a str),
}

impl Problem<'_> {
    /// The namespace of the object.
    pub fn namespace(&self) -> &str {
        match self {
            Self::Service(name, _) | Self::EndpointSlice(name, _) => name.namespace(),
        }
    }

    /// The text in an Event of the Service, which does not repeat the Service's name.
    pub(crate) fn event_text(self) -> String {
        match self {
            Self::Service(_, what) => what.to_owned(),
            Self::EndpointSlice(..) => self.to_string(),
        }
    }
}

impl fmt::Display for Problem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(service, what) => write!(f, "{service}: {what}"),
            Self::EndpointSlice(slice, what) => write!(f, "EndpointSlice {slice}: {what}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_by_namespace_and_then_by_name() {
        let parts = ["", "a", "a-b", "a.b", "a0", "ab", "b"];
        let mut names: Vec<_> =
            parts.iter().flat_map(|namespace| parts.map(|name| ObjectName::new(namespace, name))).collect();
        names.reverse();
        names.sort();
        assert!(names.is_sorted_by_key(ObjectName::parts), "{names:?}");
    }
}
