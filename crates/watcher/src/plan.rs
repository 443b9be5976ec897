//! A plan: what is to be done to the kernel, as a value.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Operations in the order in which they must be done. Prints one operation a line.
///
/// The same type serves the first sync, one changed endpoint, the periodic repair and the forced
/// resync.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The operations.
    pub operations: Vec<Operation>,
}

/// One operation on one of the three seams.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// On virtual and real servers.
    Ipvs(ipvs::Command),
    /// On our nf_tables tables.
    Netfilter(netfilter::Change),
    /// On kube-ipvs0.
    Link(dummy_interface::Change),
}

impl Plan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// How many operations there are.
    pub fn len(&self) -> usize {
        self.operations.len()
    }
}

impl Operation {
    /// Whether everything else rests on it: the tables, and kube-ipvs0.
    pub fn is_foundation(&self) -> bool {
        matches!(
            self,
            Self::Netfilter(netfilter::Change::PrepareTable(_) | netfilter::Change::InstallTable(_))
                | Self::Link(dummy_interface::Change::EnsureDevice)
        )
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.operations.iter().try_for_each(|operation| writeln!(f, "{operation}"))
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ipvs(command) => command.fmt(f),
            Self::Netfilter(change) => change.fmt(f),
            Self::Link(change) => change.fmt(f),
        }
    }
}

impl From<ipvs::Command> for Operation {
    fn from(command: ipvs::Command) -> Self {
        Self::Ipvs(command)
    }
}

impl From<netfilter::Change> for Operation {
    fn from(change: netfilter::Change) -> Self {
        Self::Netfilter(change)
    }
}

impl From<dummy_interface::Change> for Operation {
    fn from(change: dummy_interface::Change) -> Self {
        Self::Link(change)
    }
}
