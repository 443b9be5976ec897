//! The metrics: kube-proxy's, under kube-proxy's names, and more of our own.
//!
//! Dashboards, alerts and scale tests depend on these names, labels and buckets, so they are kept even where we would
//! have chosen another. `docs/metrics.md` says what each means here and how that differs.
//!
//! Metrics are written by the threads that do the work, and read when the page is requested. The page is put together
//! in memory: a slow client holds nothing up.

mod kernel_calls;
mod outcomes;
mod pages;
mod process;
mod read;
mod syncs;
mod text;
mod traffic;

use std::{
    collections::BTreeSet,
    path::Path,
    time::{Duration, Instant, SystemTime},
};

use ipvs::Family;
use kubernetes::api::Watches;
use netfilter::PacketCounts;
use reconciler::Observer;

use crate::{
    finding::Finding, logging::LineLimit, node::sysctl::Sysctl, serve::health::Health,
    serve::liveness::EndpointAnswers,
};
pub use kernel_calls::KernelCalls;
use outcomes::OutcomeMetrics;
pub use outcomes::{CleanupMetrics, HealthAnswers, StatusCounts};
pub use pages::MetricsPages;
use syncs::{ProgrammedMetrics, SyncMetrics};
use text::Registry;
pub use traffic::TrafficMetrics;

/// All metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    syncs: SyncMetrics,
    outcomes: OutcomeMetrics,
    programmed: ProgrammedMetrics,
    calls: KernelCalls,
    conntrack_cleanup: CleanupMetrics,
}

impl Metrics {
    /// Registers all metrics. `started` is the start of the daemon: changes from before say nothing about our
    /// latency. `health` serves the health checks and counts their responses, `gates` are the given feature gates,
    /// `api_server` has the watches if there is an API server. The kernel's files are read below `root`, `/` on a
    /// node.
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
        let programmed = ProgrammedMetrics::register(&mut registry);
        let calls = KernelCalls::register(&mut registry);
        let conntrack_cleanup = CleanupMetrics::register(families, &mut registry);
        health.answers().register(&mut registry);
        read::register_build(gates, &mut registry);
        let health = health.clone();
        registry.read_for_each_page(move |page| read::healthy(page, &health));
        if let Some(watches) = api_server {
            registry.read_for_each_page(move |page| read::api_server(page, &watches));
        }
        let sysctl = Sysctl::at(root);
        registry.read_for_each_page(move |page| {
            read::conntrack_table(page, &sysctl);
            read::ipvs_table(page, &sysctl);
        });
        registry.read_for_each_page(process::write);
        Self { registry, syncs, outcomes, programmed, calls, conntrack_cleanup }
    }

    /// Shows this advice too.
    #[must_use]
    pub fn with_advice(mut self, advice: impl Fn() -> Vec<Finding> + Send + Sync + 'static) -> Self {
        self.registry.read_for_each_page(move |page| read::advice(page, &advice()));
        self
    }

    /// Shows whether endpoints answer too.
    #[must_use]
    pub fn with_answers(mut self, answers: EndpointAnswers) -> Self {
        self.registry.read_for_each_page(move |page| read::endpoint_answers(page, &answers.summary()));
        self
    }

    /// Shows what is not logged too.
    #[must_use]
    pub fn with_log(mut self, limit: LineLimit) -> Self {
        self.registry.read_for_each_page(move |page| read::log(page, limit.dropped()));
        self
    }

    /// Shows what our nf_tables rules count too.
    #[must_use]
    pub fn with_packets(
        mut self,
        families: BTreeSet<Family>,
        counts: impl Fn() -> PacketCounts + Send + Sync + 'static,
    ) -> Self {
        self.registry.read_for_each_page(move |page| {
            let counts = counts();
            read::packets(page, &families, &counts);
            read::tunnels(page, &families, &counts);
        });
        self
    }

    /// The observers of the writer thread.
    pub fn observers(&self) -> [Box<dyn Observer>; 3] {
        [Box::new(self.syncs.clone()), Box::new(self.outcomes.clone()), Box::new(self.programmed.clone())]
    }

    /// Sets how long IPVS keeps an idle TCP connection: for so long a drain waits for a client that has vanished.
    pub fn set_tcp_timeout(&self, timeout: Duration) {
        self.programmed.set_tcp_timeout(timeout);
    }

    /// The metrics of the writer thread's calls of the kernel.
    pub fn kernel_calls(&self) -> KernelCalls {
        self.calls.clone()
    }

    /// The metrics of the conntrack thread.
    pub fn conntrack_cleanup(&self) -> CleanupMetrics {
        self.conntrack_cleanup.clone()
    }

    /// All metrics, in Prometheus' text format.
    pub fn text(&self) -> String {
        self.registry.text()
    }
}
