//! What is wrong with the inputs, in words.

use std::fmt;

use super::ObjectName;

/// Something that is wrong with a Service or with one of its slices. It reads as the object and what is
/// wrong; a slice comes with its kind, since a Service could have the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem<'a> {
    /// With a Service, or with what it asks of this node.
    Service(&'a ObjectName, &'a str),
    /// With an EndpointSlice.
    EndpointSlice(&'a ObjectName, &'a str),
}

impl Problem<'_> {
    /// The text for the Service's own Event, which does not repeat the Service's name.
    pub(crate) fn to_its_owner(self) -> String {
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
