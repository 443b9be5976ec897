//! The work of the conntrack thread.

use std::{collections::BTreeSet, time::Duration};

use ipvs::Family;
use netfilter::conntrack::{Deleted, StaleFlow};
use prometheus_client::{metrics::histogram::Histogram, registry::Registry};

use super::text::{Labelled, Total, work_duration};

/// Counts it.
#[derive(Clone, Debug)]
pub struct Tidying(Vec<OfFamily>);

#[derive(Clone, Debug)]
struct OfFamily {
    family: Family,
    took: Histogram,
    deleted: Total,
}

impl Tidying {
    pub(super) fn register(families: &BTreeSet<Family>, registry: &mut Registry) -> Self {
        let of = |&family: &Family| OfFamily { family, took: work_duration(), deleted: Total::default() };
        let families: Vec<_> = families.iter().map(of).collect();
        let label = |of: &OfFamily| [("ip_family", of.family.to_string())];
        registry.register(
            "kubeproxy_conntrack_reconciler_sync_duration_seconds",
            "ReconcileConntrackFlowsLatency latency in seconds",
            families.iter().map(|of| (label(of), of.took.clone())).collect::<Labelled<_, _>>(),
        );
        registry.register(
            "kubeproxy_conntrack_reconciler_deleted_entries_total",
            "Cumulative conntrack flows deleted by conntrack reconciler",
            families.iter().map(|of| (label(of), of.deleted.clone())).collect::<Labelled<_, _>>(),
        );
        Self(families)
    }

    /// These flows were looked for, and the entries that there were are deleted. One reading of the table serves
    /// both families: it counts for each in which there was something to look for.
    pub fn tidied(&self, flows: &BTreeSet<StaleFlow>, deleted: Deleted, took: Duration) {
        for of in &self.0 {
            if flows.iter().any(|flow| Family::of(flow.to.ip) == of.family) {
                of.took.observe(took.as_secs_f64());
                of.deleted.add(deleted.of(of.family));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ipvs::{Protocol, RealServerAddress, ServiceAddress};

    use super::{super::text, *};

    #[test]
    fn a_reading_counts_for_the_families_of_the_flows_that_it_looked_for() {
        let mut registry = Registry::default();
        let tidying = Tidying::register(&Family::BOTH.into(), &mut registry);
        let to = |ip: &str| {
            let (ip, port) = (ip.parse().unwrap(), 53);
            let to = ServiceAddress { protocol: Protocol::Udp, ip, port };
            StaleFlow { to, answered_by: RealServerAddress { ip, port } }
        };
        let took = Duration::from_millis(3);
        tidying.tidied(&[to("10.96.0.10")].into(), Deleted { ipv4: 2, ipv6: 0 }, took);
        tidying.tidied(&[to("10.96.0.10"), to("fd00::10")].into(), Deleted { ipv4: 1, ipv6: 4 }, took);
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
