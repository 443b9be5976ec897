//! Metrics of the results of syncs: the time to the first one, failures, repairs, drains.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use reconciler::{DrainStats, FailureKind, Observer, RepairKind, Subsystem, SyncEvent, SyncStats};

use super::text::{Count, Kind, Real, Registry, Seconds, Total, labels};

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
        let kinds =
            Subsystem::ALL.into_iter().flat_map(|seam| FailureKind::ALL.map(|failure| (seam, failure)));
        let outcomes = Self {
            started,
            first_sync: Seconds::default(),
            failures: kinds.map(|kind| (kind, Total::default())).collect(),
            repairs: RepairKind::ALL.map(|kind| (kind, Total::default())).into(),
            drains_started: Total::default(),
            drains_ended: Total::default(),
            cut_off: Total::default(),
            draining: Count::default(),
            oldest: Arc::default(),
        };
        outcomes.register_syncs(registry);
        outcomes.register_drains(registry);
        outcomes
    }

    fn register_syncs(&self, registry: &mut Registry) {
        registry.register(
            "kube_ipvs_time_to_first_sync_seconds",
            "From the start of the daemon to the end of the first complete sync: the kernel read, kube-ipvs0 and our tables there",
            self.first_sync.clone(),
        );
        let failures = self.failures.iter().map(|((seam, failure), total)| {
            (labels([("seam", seam.name()), ("cause", failure.name())]), total.clone())
        });
        registry.register_labelled(
            "kube_ipvs_sync_failures_total",
            "Readings and operations that failed, each time they did",
            failures,
        );
        let repairs =
            self.repairs.iter().map(|(kind, total)| (labels([("kind", kind.name())]), total.clone()));
        registry.register_labelled(
            "kube_ipvs_repairs_total",
            "Operations that put right what something else had changed",
            repairs,
        );
    }

    fn register_drains(&self, registry: &mut Registry) {
        let totals = [
            ("kube_ipvs_drains_started_total", "Real servers that began to drain", &self.drains_started),
            ("kube_ipvs_drains_ended_total", "Real servers that no longer drain", &self.drains_ended),
            (
                "kube_ipvs_drain_connections_cut_off_total",
                "Connections of real servers whose time to drain was over",
                &self.cut_off,
            ),
        ];
        for (name, help, total) in totals {
            registry.register(name, help, total.clone());
        }
        registry.register(
            "kube_ipvs_draining_real_servers",
            "Real servers that get no new connections and wait for their last one to end",
            self.draining.clone(),
        );
        let oldest = Arc::clone(&self.oldest);
        registry.read_for_each_page(move |page| {
            let since = *oldest.lock().unwrap_or_else(PoisonError::into_inner);
            let age = since.map_or(0.0, |since| since.elapsed().as_secs_f64());
            let help = "For how long the first of those that drain has; 0: none";
            page.single("kube_ipvs_oldest_drain_seconds", Kind::Gauge, help, Real(age));
        });
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

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

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
            r#"kube_ipvs_sync_failures_total{seam="ipvs",cause="refused"} 4"#,
            r#"kube_ipvs_sync_failures_total{seam="links",cause="unread"} 1"#,
            r#"kube_ipvs_sync_failures_total{seam="nf_tables",cause="put_off"} 0"#,
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
}
