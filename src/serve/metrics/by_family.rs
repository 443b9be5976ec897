//! Metrics with the label `ip_family`.

use std::{collections::BTreeSet, fmt::Debug};

use ipvs::Family;
use prometheus_client::{
    encoding::EncodeMetric,
    metrics::TypedMetric,
    registry::{Metric, Registry},
};

use super::text::Labelled;

/// The metrics of each served family. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct ByFamily<T>(Vec<(Family, T)>);

impl<T> ByFamily<T> {
    pub(crate) fn new(families: &BTreeSet<Family>, of_family: impl Fn() -> T) -> Self {
        Self(families.iter().map(|&family| (family, of_family())).collect())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Family, T)> {
        self.0.iter()
    }

    /// Registers one of the metrics under this name.
    pub(crate) fn register<M>(
        &self,
        registry: &mut Registry,
        name: &str,
        help: &str,
        metric: impl Fn(&T) -> &M,
    ) where
        M: Clone + EncodeMetric + TypedMetric,
        Labelled<[(&'static str, String); 1], M>: Metric,
    {
        let labelled = self.iter().map(|(family, of)| (label(*family), metric(of).clone()));
        registry.register(name, help, labelled.collect::<Labelled<_, _>>());
    }
}

pub(crate) fn label(family: Family) -> [(&'static str, String); 1] {
    [("ip_family", family.to_string())]
}
