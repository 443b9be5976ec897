//! What kube-ipvs tells of itself in numbers: kube-proxy's metrics, under kube-proxy's names.
//!
//! Dashboards, alerts and scale tests go by these names, labels and buckets, so they are kept even where one is not
//! what we would have called it. `docs/metrics.md` says what each means here and how that differs.
//!
//! Metrics are written by the threads that do the work and read by whoever asks for the page. The page is put
//! together in memory: a client that reads slowly holds nothing up.

mod build;
mod by_family;
mod changes;
mod conntrack;
mod health;
mod pages;
mod process;
mod syncs;
mod text;

use std::{collections::BTreeSet, time::SystemTime};

use ipvs::Family;
use prometheus_client::registry::Registry;
use reconciler::Observer;

pub use conntrack::Tidying;
pub use health::{Answered, HealthAnswers};
pub use pages::MetricsPages;
use process::Process;
use syncs::Syncs;

/// All metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    syncs: Syncs,
    tidying: Tidying,
}

impl Metrics {
    /// Nothing has happened yet. `started` is when the daemon did: what was asked for before that tells nothing of
    /// how long we take. `health` counts what health checks were answered, `gates` are the feature gates that were
    /// given.
    pub fn new<'a>(
        families: &BTreeSet<Family>,
        started: SystemTime,
        health: &HealthAnswers,
        gates: impl IntoIterator<Item = (&'a str, bool)>,
    ) -> Self {
        let mut registry = Registry::default();
        let syncs = Syncs::register(families, started, &mut registry);
        let tidying = Tidying::register(families, &mut registry);
        health.register(&mut registry);
        build::register(gates, &mut registry);
        registry.register_collector(Box::new(Process));
        Self { registry, syncs, tidying }
    }

    /// What the writer thread tells of its work.
    pub fn observer(&self) -> Box<dyn Observer> {
        Box::new(self.syncs.clone())
    }

    /// What the conntrack thread tells of its work.
    pub fn tidying(&self) -> Tidying {
        self.tidying.clone()
    }

    /// The page: all metrics, in Prometheus' text format.
    pub fn text(&self) -> String {
        text::encode(&self.registry)
    }
}
