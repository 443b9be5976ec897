//! Changes to our table, as values.

use std::fmt;

use ipvs::Family;
use serde::{Deserialize, Serialize};

use crate::Element;

/// One change. Its `Display` is one line, for logs and golden tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// Create the family's table if there is none, but for the rules by which it takes new flows from the
    /// destination NAT of other tables; one that is there in another state is installed.
    PrepareTable(Family),
    /// Create the family's table with its sets, chains and rules, or make them so; the elements stay.
    InstallTable(Family),
    /// Add an element; if it exists, nothing.
    AddElement(Element),
    /// Remove an element.
    DeleteElement(Element),
}

impl Change {
    /// The family, and so the table, that is changed.
    pub fn family(&self) -> Family {
        match self {
            Self::PrepareTable(family) | Self::InstallTable(family) => *family,
            Self::AddElement(element) | Self::DeleteElement(element) => element.family(),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PrepareTable(family) => write!(f, "prepare table {family}"),
            Self::InstallTable(family) => write!(f, "install table {family}"),
            Self::AddElement(element) => write!(f, "add element {element}"),
            Self::DeleteElement(element) => write!(f, "delete element {element}"),
        }
    }
}
