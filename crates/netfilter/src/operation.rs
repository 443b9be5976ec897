//! Changes to our table, as values.

use std::fmt;

use ipvs::Family;
use serde::{Deserialize, Serialize};

use crate::Element;

/// One change. Its `Display` is one line, for logs and golden tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Create the family's table if there is none, without the rules that take new flows from the destination
    /// NAT of other tables; an existing table in any other state is brought to the installed state.
    PrepareTable(Family),
    /// Create the family's table with its sets, chains and rules, or repair them; the elements stay.
    InstallTable(Family),
    /// Add to the family's table what direct return needs besides; do nothing if it is there.
    AddDirectReturn(Family),
    /// Remove that again.
    RemoveDirectReturn(Family),
    /// Add an element; do nothing if it exists.
    AddElement(Element),
    /// Remove an element.
    DeleteElement(Element),
}

impl Operation {
    /// The family, and so the table, that is changed.
    pub fn family(&self) -> Family {
        match self {
            Self::PrepareTable(family)
            | Self::InstallTable(family)
            | Self::AddDirectReturn(family)
            | Self::RemoveDirectReturn(family) => *family,
            Self::AddElement(element) | Self::DeleteElement(element) => element.family(),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PrepareTable(family) => write!(f, "prepare table {family}"),
            Self::InstallTable(family) => write!(f, "install table {family}"),
            Self::AddDirectReturn(family) => write!(f, "add direct return {family}"),
            Self::RemoveDirectReturn(family) => write!(f, "remove direct return {family}"),
            Self::AddElement(element) => write!(f, "add element {element}"),
            Self::DeleteElement(element) => write!(f, "delete element {element}"),
        }
    }
}
