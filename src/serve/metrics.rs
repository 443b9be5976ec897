//! What kube-ipvs tells of itself in numbers: kube-proxy's metrics, under kube-proxy's names, and more of its own.
//!
//! Dashboards, alerts and scale tests go by these names, labels and buckets, so they are kept even where one is not
//! what we would have called it. `docs/metrics.md` says what each means here and how that differs.
//!
//! Metrics are written by the threads that do the work and read by whoever asks for the page. The page is put
//! together in memory: a client that reads slowly holds nothing up.

mod api_server;
mod build;
pub(crate) mod by_family;
mod changes;
mod health;
mod kernel_calls;
mod outcomes;
mod pages;
mod process;
mod syncs;
pub(crate) mod text;
mod traffic;

use std::{
    collections::BTreeSet,
    path::Path,
    time::{Instant, SystemTime},
};

use ipvs::Family;
use kubernetes::api::Watches;
use prometheus_client::registry::Registry;
use reconciler::Observer;

use crate::{
    conntrack::{CleanupMetrics, ConntrackTable},
    serve::health::Health,
};
use api_server::ApiServerMetrics;
use health::HealthyGauge;
pub use health::{HealthAnswers, StatusCounts};
pub use kernel_calls::KernelCalls;
use outcomes::OutcomeMetrics;
pub use pages::MetricsPages;
use process::ProcessMetrics;
use syncs::SyncMetrics;
pub use traffic::TrafficMetrics;

/// All metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    syncs: SyncMetrics,
    outcomes: OutcomeMetrics,
    calls: KernelCalls,
    conntrack_cleanup: CleanupMetrics,
}

impl Metrics {
    /// Registers all metrics; nothing has happened yet. `started` is when the daemon did: what was asked for
    /// before that tells nothing of how long we take. `health` is what health checks ask, and counts what they
    /// were answered, `gates` are the feature gates that were given, `api_server` is what is known of the API
    /// server, if there is one. What the kernel says in `proc` is looked for below `root`: `/` on a node.
    pub fn new<'a>(
        families: &BTreeSet<Family>,
        started: SystemTime,
        health: &Health,
        gates: impl IntoIterator<Item = (&'a str, bool)>,
        api_server: Option<Watches>,
        root: &Path,
    ) -> Self {
        let mut registry = Registry::default();
        let syncs = SyncMetrics::register(families, started, &mut registry);
        let outcomes = OutcomeMetrics::register(Instant::now(), &mut registry);
        let calls = KernelCalls::register(&mut registry);
        let conntrack_cleanup = CleanupMetrics::register(families, &mut registry);
        health.answers().register(&mut registry);
        registry.register_collector(Box::new(HealthyGauge(health.clone())));
        build::register(gates, &mut registry);
        if let Some(watches) = api_server {
            registry.register_collector(Box::new(ApiServerMetrics(watches)));
        }
        registry.register_collector(Box::new(ConntrackTable::at(root)));
        registry.register_collector(Box::new(ProcessMetrics));
        Self { registry, syncs, outcomes, calls, conntrack_cleanup }
    }

    /// What the writer thread tells of its work.
    pub fn observers(&self) -> [Box<dyn Observer>; 2] {
        [Box::new(self.syncs.clone()), Box::new(self.outcomes.clone())]
    }

    /// What the writer thread asks of the kernel.
    pub fn kernel_calls(&self) -> KernelCalls {
        self.calls.clone()
    }

    /// What the conntrack thread tells of its work.
    pub fn conntrack_cleanup(&self) -> CleanupMetrics {
        self.conntrack_cleanup.clone()
    }

    /// The page: all metrics, in Prometheus' text format.
    pub fn text(&self) -> String {
        text::encode(&self.registry)
    }
}
