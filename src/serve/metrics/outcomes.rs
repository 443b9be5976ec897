//! Metrics of results: of syncs (the time to the first one, failures, repairs, drains), of requests for the health, and
//! of the conntrack thread.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use ipvs::Family;
use netfilter::conntrack::{Deleted, StaleFlows};
use reconciler::{DrainStats, FailureKind, Observer, RepairKind, Subsystem, SyncEvent, SyncStats};

use super::text::{ByFamily, Count, Histogram, Kind, Real, Registry, Seconds, Total, labels};

/// Observes the writer thread. Clones share the metrics.
#[derive(Clone, Debug)]
pub(super) struct OutcomeMetrics {
    /// Monotonic, since the wall clock may be set meanwhile.
    started: Instant,
    first_sync: Seconds,
    failures: Vec<((Subsystem, FailureKind), Total)>,
    repairs: Vec<(RepairKind, Total)>,
    drains_started: Total,
    drains_ended: Total,
    cut_off: Total,
    draining: Count,
    /// When the oldest drain began. Its age is computed for each page.
    oldest: Arc<Mutex<Option<Instant>>>,
}

impl OutcomeMetrics {
    /// Registers the metrics of a daemon started at this time.
    pub(super) fn register(started: Instant, registry: &mut Registry) -> Self {
        let kinds = Subsystem::ALL
            .into_iter()
            .flat_map(|subsystem| FailureKind::ALL.map(|failure| (subsystem, failure)));
        let outcomes = Self {
            started,
            first_sync: registry.register(
                "kube_ipvs_time_to_first_sync_seconds",
                "Time from the start of the daemon to the end of the first complete sync, which has read the kernel and \
                 found kube-ipvs0 and our tables there",
            ),
            failures: registry.register_each(
                "kube_ipvs_sync_failures_total",
                "Failed reads of the kernel and failed operations, retries included",
                Total::default,
                kinds,
                |(subsystem, failure)| labels([("subsystem", subsystem.name()), ("cause", failure.name())]),
            ),
            repairs: registry.register_each(
                "kube_ipvs_repairs_total",
                "Operations that repaired what another program had changed",
                Total::default,
                RepairKind::ALL,
                |kind| labels([("kind", kind.name())]),
            ),
            drains_started: registry
                .register("kube_ipvs_drains_started_total", "Real servers that began to drain"),
            drains_ended: registry
                .register("kube_ipvs_drains_ended_total", "Real servers that stopped draining"),
            cut_off: registry.register(
                "kube_ipvs_drain_connections_cut_off_total",
                "Connections cut off because their real server's drain time was over",
            ),
            draining: registry.register(
                "kube_ipvs_draining_real_servers",
                "Real servers that get no new connections, and are removed when their last one ends",
            ),
            oldest: Arc::default(),
        };
        let oldest = Arc::clone(&outcomes.oldest);
        registry.read_for_each_page(move |page| {
            let since = *oldest.lock().unwrap_or_else(PoisonError::into_inner);
            let age = since.map_or(0.0, |since| since.elapsed().as_secs_f64());
            let help = "How long the longest current drain has lasted; 0 if none";
            page.single("kube_ipvs_oldest_drain_seconds", Kind::Gauge, help, Real(age));
        });
        outcomes
    }

    fn drained(&self, drains: DrainStats) {
        self.drains_started.add(drains.started);
        self.drains_ended.add(drains.ended);
        self.cut_off.add(drains.cut_off.try_into().unwrap_or(usize::MAX));
        self.draining.set(drains.pending);
        // No holder of the lock can panic.
        *self.oldest.lock().unwrap_or_else(PoisonError::into_inner) = drains.oldest;
    }
}

impl Observer for OutcomeMetrics {
    fn on_sync(&mut self, sync: &SyncEvent<'_>) {
        let SyncStats { failures, repairs, drains, .. } = sync.stats;
        for (kind, total) in &self.failures {
            total.add(failures.get(kind).copied().unwrap_or(0));
        }
        for (kind, total) in &self.repairs {
            total.add(repairs.get(kind).copied().unwrap_or(0));
        }
        self.drained(*drains);
        if sync.complete && sync.report.left == 0 && self.first_sync.get() <= 0.0 {
            self.first_sync.set(self.started.elapsed());
        }
    }
}

/// The counts of responses. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct HealthAnswers {
    /// Responses of `/healthz`.
    pub healthz: StatusCounts,
    /// Responses of `/livez`.
    pub livez: StatusCounts,
}

/// The counts of one page, by status.
#[derive(Clone, Debug, Default)]
pub struct StatusCounts {
    ok: Total,
    unavailable: Total,
}

impl HealthAnswers {
    pub(super) fn register(&self, registry: &mut Registry) {
        self.healthz.register(
            registry,
            "kubeproxy_proxy_healthz_total",
            "Cumulative proxy healthz HTTP status",
        );
        self.livez.register(registry, "kubeproxy_proxy_livez_total", "Cumulative proxy livez HTTP status");
    }
}

impl StatusCounts {
    /// Counts a response: 200, or 503.
    pub fn count(&self, ok: bool) {
        if ok { &self.ok } else { &self.unavailable }.add(1);
    }

    fn register(&self, registry: &mut Registry, name: &str, help: &str) {
        let by_code = [("200", &self.ok), ("503", &self.unavailable)];
        let labelled = by_code.map(|(code, count)| (labels([("code", code)]), count.clone()));
        registry.register_labelled(name, help, labelled);
    }
}

/// Metrics of the flows that the conntrack thread deletes. Clones share them.
#[derive(Clone, Debug)]
pub struct CleanupMetrics {
    took: ByFamily<Histogram>,
    deleted: ByFamily<Total>,
}

impl CleanupMetrics {
    pub(super) fn register(families: &BTreeSet<Family>, registry: &mut Registry) -> Self {
        Self {
            took: registry.register_by_family(
                "kubeproxy_conntrack_reconciler_sync_duration_seconds",
                "ReconcileConntrackFlowsLatency latency in seconds",
                Histogram::of_work,
                families,
            ),
            deleted: registry.register_by_family(
                "kubeproxy_conntrack_reconciler_deleted_entries_total",
                "Cumulative conntrack flows deleted by conntrack reconciler",
                Total::default,
                families,
            ),
        }
    }

    /// Counts one reading and the entries it deleted. One reading serves both families: it counts for each family
    /// that had a flow to delete.
    pub fn record(&self, flows: &StaleFlows, deleted: Deleted, took: Duration) {
        for ((family, durations), (_, total)) in self.took.iter().zip(&self.deleted) {
            if flows.addresses().any(|to| Family::from(to.ip) == *family) {
                durations.observe(took);
                total.add(deleted.count(*family));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ipvs::{Protocol, ServiceAddress};
    use reconciler::{SyncReport, Trigger};
    use service::{Options, State};

    use super::*;

    /// The page after these syncs of a daemon that started ten seconds ago.
    fn page(syncs: &[(SyncStats, bool)]) -> String {
        let mut registry = Registry::default();
        let started = Instant::now().checked_sub(Duration::from_secs(10)).unwrap();
        let mut outcomes = OutcomeMetrics::register(started, &mut registry);
        let (report, state) = (SyncReport::empty(Trigger::Change), State::new(Options::new("node")));
        for (stats, complete) in syncs {
            let (stats, complete) = (stats, *complete);
            outcomes.on_sync(&SyncEvent {
                report: &report,
                stats,
                complete,
                state: &state,
                triggered_at: &[],
            });
        }
        registry.text()
    }

    fn value(page: &str, metric: &str) -> f64 {
        testkit::metrics::value(page, metric).unwrap()
    }

    #[test]
    fn the_time_to_the_first_sync_is_that_of_the_first_complete_one() {
        let name = "kube_ipvs_time_to_first_sync_seconds";
        assert!(page(&[(SyncStats::default(), false)]).contains(&format!("{name} 0.0\n")), "not yet");
        let took = value(&page(&[(SyncStats::default(), false), (SyncStats::default(), true)]), name);
        assert!((10.0..20.0).contains(&took), "{took}");
    }

    #[test]
    fn failures_and_repairs_add_up_by_their_kind() {
        let refused = SyncStats {
            failures: BTreeMap::from([((Subsystem::Ipvs, FailureKind::Refused), 2)]),
            repairs: BTreeMap::from([(RepairKind::VirtualServer, 3)]),
            ..SyncStats::default()
        };
        let unread = SyncStats {
            failures: BTreeMap::from([((Subsystem::DummyInterface, FailureKind::Unread), 1)]),
            ..SyncStats::default()
        };
        let page = page(&[(refused.clone(), true), (unread, false), (refused, true)]);
        for line in [
            "# TYPE kube_ipvs_sync_failures_total counter",
            r#"kube_ipvs_sync_failures_total{subsystem="ipvs",cause="refused"} 4"#,
            r#"kube_ipvs_sync_failures_total{subsystem="links",cause="unread"} 1"#,
            r#"kube_ipvs_sync_failures_total{subsystem="nf_tables",cause="put_off"} 0"#,
            r#"kube_ipvs_repairs_total{kind="virtual_server"} 6"#,
            r#"kube_ipvs_repairs_total{kind="device"} 0"#,
        ] {
            assert!(page.lines().any(|it| it == line), "{line} is not in\n{page}");
        }
    }

    #[test]
    fn drains_add_up_and_the_oldest_is_as_old_as_when_it_is_asked_for() {
        let since = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
        let drains = |oldest| SyncStats {
            drains: DrainStats { started: 3, ended: 2, cut_off: 5, pending: 1, oldest },
            ..SyncStats::default()
        };
        let drain = page(&[(drains(None), true), (drains(Some(since)), true)]);
        assert_eq!(value(&drain, "kube_ipvs_drains_started_total").to_string(), "6");
        assert_eq!(value(&drain, "kube_ipvs_drains_ended_total").to_string(), "4");
        assert_eq!(value(&drain, "kube_ipvs_drain_connections_cut_off_total").to_string(), "10");
        assert_eq!(value(&drain, "kube_ipvs_draining_real_servers").to_string(), "1");
        assert!((60.0..70.0).contains(&value(&drain, "kube_ipvs_oldest_drain_seconds")), "{drain}");
        let none = page(&[(drains(Some(since)), true), (drains(None), true)]);
        assert_eq!(value(&none, "kube_ipvs_oldest_drain_seconds").to_string(), "0");
    }

    #[test]
    fn answers_are_counted_by_page_and_status() {
        let answers = HealthAnswers::default();
        let mut registry = Registry::default();
        answers.register(&mut registry);
        answers.healthz.count(false);
        answers.healthz.count(false);
        answers.livez.count(true);
        let expected = r#"# HELP kubeproxy_proxy_healthz_total Cumulative proxy healthz HTTP status
# TYPE kubeproxy_proxy_healthz_total counter
kubeproxy_proxy_healthz_total{code="200"} 0
kubeproxy_proxy_healthz_total{code="503"} 2
# HELP kubeproxy_proxy_livez_total Cumulative proxy livez HTTP status
# TYPE kubeproxy_proxy_livez_total counter
kubeproxy_proxy_livez_total{code="200"} 1
kubeproxy_proxy_livez_total{code="503"} 0
"#;
        assert_eq!(registry.text(), expected);
    }

    #[test]
    fn a_reading_counts_for_the_families_of_the_flows_that_it_looked_for() {
        let mut registry = Registry::default();
        let metrics = CleanupMetrics::register(&Family::BOTH.into(), &mut registry);
        let to = |ip: &str| {
            (ServiceAddress { protocol: Protocol::Udp, ip: ip.parse().unwrap(), port: 53 }, BTreeSet::new())
        };
        let took = Duration::from_millis(3);
        metrics.record(&[to("10.96.0.10")].into_iter().collect(), Deleted { ipv4: 2, ipv6: 0 }, took);
        metrics.record(
            &[to("10.96.0.10"), to("fd00::10")].into_iter().collect(),
            Deleted { ipv4: 1, ipv6: 4 },
            took,
        );
        let page = registry.text();
        for line in [
            "# TYPE kubeproxy_conntrack_reconciler_deleted_entries_total counter",
            r#"kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv4"} 3"#,
            r#"kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv6"} 4"#,
            r#"kubeproxy_conntrack_reconciler_sync_duration_seconds_count{ip_family="IPv4"} 2"#,
            r#"kubeproxy_conntrack_reconciler_sync_duration_seconds_count{ip_family="IPv6"} 1"#,
            r#"kubeproxy_conntrack_reconciler_sync_duration_seconds_bucket{le="0.002",ip_family="IPv6"} 0"#,
            r#"kubeproxy_conntrack_reconciler_sync_duration_seconds_bucket{le="0.004",ip_family="IPv6"} 1"#,
        ] {
            assert!(page.lines().any(|it| it == line), "{line} is not in\n{page}");
        }
    }
}
