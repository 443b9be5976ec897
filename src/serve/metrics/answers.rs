//! Metrics of what is answered and cleaned up beside the syncs: `/healthz` and `/livez`, and the conntrack thread.

use std::{collections::BTreeSet, time::Duration};

use ipvs::Family;
use netfilter::conntrack::{Deleted, StaleFlows};

use super::text::{ByFamily, Histogram, Registry, Total, labels};

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

/// Metrics of the flows that the thread deletes.
#[derive(Clone, Debug)]
pub struct CleanupMetrics(ByFamily<FamilyCleanupMetrics>);

#[derive(Clone, Debug)]
struct FamilyCleanupMetrics {
    took: Histogram,
    deleted: Total,
}

impl CleanupMetrics {
    pub(super) fn register(families: &BTreeSet<Family>, registry: &mut Registry) -> Self {
        let families = ByFamily::new(families, || FamilyCleanupMetrics {
            took: Histogram::of_work(),
            deleted: Total::default(),
        });
        families.register(
            registry,
            "kubeproxy_conntrack_reconciler_sync_duration_seconds",
            "ReconcileConntrackFlowsLatency latency in seconds",
            |of| &of.took,
        );
        families.register(
            registry,
            "kubeproxy_conntrack_reconciler_deleted_entries_total",
            "Cumulative conntrack flows deleted by conntrack reconciler",
            |of| &of.deleted,
        );
        Self(families)
    }

    /// Counts one reading and the entries it deleted. One reading serves both families: it counts for each family
    /// that had a flow to delete.
    pub fn record(&self, flows: &StaleFlows, deleted: Deleted, took: Duration) {
        for (family, of) in self.0.iter() {
            if flows.addresses().any(|to| Family::from(to.ip) == *family) {
                of.took.observe(took);
                of.deleted.add(deleted.count(*family));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ipvs::{Protocol, ServiceAddress};

    use super::*;

    #[test]
    fn answers_are_counted_by_page_and_status() {
        let answers = HealthAnswers::default();
        let mut registry = Registry::default();
        answers.register(&mut registry);
        answers.healthz.count(false);
        answers.healthz.count(false);
        answers.livez.count(true);
        let expected = r#"# HELP kubeproxy_proxy_healthz_total Cumulative proxy healthz HTTP status.
# TYPE kubeproxy_proxy_healthz_total counter
kubeproxy_proxy_healthz_total{code="200"} 0
kubeproxy_proxy_healthz_total{code="503"} 2
# HELP kubeproxy_proxy_livez_total Cumulative proxy livez HTTP status.
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
