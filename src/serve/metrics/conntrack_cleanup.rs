//! Metrics of the conntrack thread.

use std::{collections::BTreeSet, time::Duration};

use ipvs::Family;
use netfilter::conntrack::{Deleted, StaleFlows};
use prometheus_client::{metrics::histogram::Histogram, registry::Registry};

use super::{
    by_family::ByFamily,
    text::{Total, work_duration},
};

/// Metrics of the flows that the thread deletes.
#[derive(Clone, Debug)]
pub struct CleanupMetrics(ByFamily<FamilyCleanupMetrics>);

#[derive(Clone, Debug)]
struct FamilyCleanupMetrics {
    took: Histogram,
    deleted: Total,
}

impl CleanupMetrics {
    pub(crate) fn register(families: &BTreeSet<Family>, registry: &mut Registry) -> Self {
        let families = ByFamily::new(families, || FamilyCleanupMetrics {
            took: work_duration(),
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
                of.took.observe(took.as_secs_f64());
                of.deleted.add(deleted.count(*family));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ipvs::{Protocol, ServiceAddress};

    use super::*;
    use crate::serve::metrics::text;

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
        let page = text::encode(&registry);
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
