//! Problems of the inputs, in words.

use std::fmt;

use super::ObjectName;

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
