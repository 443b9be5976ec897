//! Feature gates.

use std::{collections::BTreeMap, str::FromStr};

use serde::{Deserialize, Serialize};

use super::switch;

/// Whether `spec.externalIPs` are served; on unless it is switched off (KEP-5707).
const EXTERNAL_IPS: &str = "AllowServiceExternalIPs";

/// What is switched on and off by name, as the flag `--feature-gates` and the field `featureGates` say it.
///
/// Gates come and go with every release of Kubernetes and most are not about this program, so there is
/// no list of those that exist: one that is not ours is named in a warning, whereas kube-proxy refuses
/// it unless that very release knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FeatureGates(BTreeMap<String, bool>);

/// The text is no list of gates.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidGates {
    /// A gate without a value.
    #[error("{0:?} is no feature gate: expected NAME=true or NAME=false")]
    Malformed(String),
    /// A value that is no boolean.
    #[error("{value:?} is no value for the feature gate {name}: expected true or false")]
    Value {
        /// The gate.
        name: String,
        /// What it is set to.
        value: String,
    },
}

impl FeatureGates {
    /// All gates in one list; of a gate that is set twice the last counts.
    pub(super) fn merged(all: &[Self]) -> Self {
        Self(all.iter().flat_map(|gates| gates.0.clone()).collect())
    }

    /// The gates that were given, and whether they are on.
    pub(super) fn given(&self) -> impl Iterator<Item = (&str, bool)> {
        self.0.iter().map(|(name, on)| (name.as_str(), *on))
    }

    /// Whether `spec.externalIPs` are served.
    pub(super) fn external_ips(&self) -> bool {
        self.0.get(EXTERNAL_IPS).copied().unwrap_or(true)
    }

    /// The gates without those that do nothing here.
    pub(super) fn heeded(&self) -> Self {
        Self(
            self.0
                .iter()
                .filter(|(name, _)| *name == EXTERNAL_IPS)
                .map(|(name, on)| (name.clone(), *on))
                .collect(),
        )
    }

    /// The gates that do nothing here.
    pub(super) fn idle(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str).filter(|name| *name != EXTERNAL_IPS)
    }
}

impl FromStr for FeatureGates {
    type Err = InvalidGates;

    fn from_str(list: &str) -> Result<Self, Self::Err> {
        list.split(',').filter(|gate| !gate.is_empty()).map(gate).collect::<Result<_, _>>().map(Self)
    }
}

fn gate(text: &str) -> Result<(String, bool), InvalidGates> {
    let (name, value) = text.split_once('=').ok_or_else(|| InvalidGates::Malformed(text.to_owned()))?;
    let (name, value) = (name.trim().to_owned(), value.trim());
    match switch(value) {
        Ok(on) => Ok((name, on)),
        Err(_) => Err(InvalidGates::Value { name, value: value.to_owned() }),
    }
}

#[cfg(test)]
impl From<BTreeMap<String, bool>> for FeatureGates {
    fn from(gates: BTreeMap<String, bool>) -> Self {
        Self(gates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn external_ips(lists: &[&str]) -> bool {
        let gates: Vec<FeatureGates> = lists.iter().map(|list| list.parse().unwrap()).collect();
        FeatureGates::merged(&gates).external_ips()
    }

    #[test]
    fn external_ips_are_served_unless_their_gate_is_off() {
        assert!(external_ips(&[]));
        assert!(external_ips(&[""]));
        assert!(external_ips(&["AllAlpha=false,AllBeta=false"]));
        assert!(!external_ips(&["Other=true, AllowServiceExternalIPs = F ,"]));
        assert!(!external_ips(&["AllowServiceExternalIPs=0", "Other=1"]));
    }

    #[test]
    fn of_a_gate_that_is_set_twice_the_last_counts() {
        assert!(external_ips(&["AllowServiceExternalIPs=false,AllowServiceExternalIPs=true"]));
        assert!(!external_ips(&["AllowServiceExternalIPs=true", "AllowServiceExternalIPs=false"]));
    }

    #[test]
    fn what_is_no_gate_with_a_switch_is_refused() {
        assert_eq!("A=true,B".parse::<FeatureGates>(), Err(InvalidGates::Malformed("B".to_owned())));
        for (list, value) in [("B=yes", "yes"), ("B=", ""), ("A=true,B=1=1", "1=1")] {
            let expected = InvalidGates::Value { name: "B".to_owned(), value: value.to_owned() };
            assert_eq!(list.parse::<FeatureGates>(), Err(expected), "{list}");
        }
    }
}
