//! Metrics of syncs, and of the changes that cause them.
//!
//! kube-proxy is two proxies, one for each family, with syncs of their own. Here one sync serves both: it is counted
//! for each served family.

use std::{
    collections::BTreeSet,
    sync::atomic::AtomicU64,
    time::{Duration, SystemTime},
};

use ipvs::Family;
use prometheus_client::{
    metrics::{gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use reconciler::{ChangeEvent, ObjectKind, Observer, SyncEvent};
use service::{State, Traffic, WithoutLocalEndpoint};

use super::{
    by_family::{ByFamily, label},
    changes::ChangeMetrics,
    text::{Labelled, Total, work_duration},
};

/// Seconds since 1970.
type TimestampGauge = Gauge<f64, AtomicU64>;
type CountGauge = Gauge<u64, AtomicU64>;

/// Observes the writer thread. Clones share the metrics.
#[derive(Clone, Debug)]
pub(super) struct SyncMetrics {
    families: ByFamily<FamilySyncMetrics>,
    services: ChangeMetrics,
    endpoints: ChangeMetrics,
    refused: CountGauge,
    started: SystemTime,
    /// Whether there was a complete sync: until then every change is pending.
    synced: bool,
}

/// The metrics with the label `ip_family`.
#[derive(Clone, Debug)]
struct FamilySyncMetrics {
    took: Histogram,
    last_ended: TimestampGauge,
    last_requested: TimestampGauge,
    latency: Histogram,
    failures: Total,
    without_internal: CountGauge,
    without_external: CountGauge,
}

impl FamilySyncMetrics {
    fn new(started: SystemTime) -> Self {
        let last_requested = TimestampGauge::default();
        last_requested.set(seconds(started));
        Self {
            took: work_duration(),
            last_ended: TimestampGauge::default(),
            last_requested,
            latency: Histogram::new(latency_bounds()),
            failures: Total::default(),
            without_internal: CountGauge::default(),
            without_external: CountGauge::default(),
        }
    }

    fn without_local_endpoint(&self, traffic: Traffic) -> &CountGauge {
        match traffic {
            Traffic::Internal => &self.without_internal,
            Traffic::External => &self.without_external,
        }
    }
}

impl SyncMetrics {
    pub(super) fn register(
        families: &BTreeSet<Family>,
        started: SystemTime,
        registry: &mut Registry,
    ) -> Self {
        let families = ByFamily::new(families, || FamilySyncMetrics::new(started));
        register_syncs(&families, registry);
        let endpoints = ChangeMetrics::register("endpoint", "Endpoint", registry);
        let services = ChangeMetrics::register("service", "Service", registry);
        register_outcomes(&families, registry);
        let refused = CountGauge::default();
        registry.register(
            "kube_ipvs_refused_addresses",
            "External addresses that Services ask for and that are not served to any",
            refused.clone(),
        );
        Self { families, services, endpoints, refused, started, synced: false }
    }

    fn count_without_local_endpoint(&self, state: &State) {
        for (family, metrics) in self.families.iter() {
            for traffic in [Traffic::Internal, Traffic::External] {
                let case = WithoutLocalEndpoint { traffic, family: *family };
                let count = state.reports().without_local_endpoint(case);
                metrics.without_local_endpoint(traffic).set(count.try_into().unwrap_or(u64::MAX));
            }
        }
    }
}

impl Observer for SyncMetrics {
    fn on_change_applied(&mut self, ChangeEvent { kind, objects, waits, .. }: ChangeEvent) {
        match kind {
            ObjectKind::Services => self.services.changed(objects, waits || !self.synced),
            ObjectKind::EndpointSlices => self.endpoints.changed(objects, waits || !self.synced),
            ObjectKind::Node | ObjectKind::Peers => {}
        }
        if waits {
            let now = seconds(SystemTime::now());
            for (_, metrics) in self.families.iter() {
                metrics.last_requested.set(now);
            }
        }
    }

    fn on_sync(&mut self, sync: &SyncEvent<'_>) {
        let SyncEvent { report, complete, state, triggered_at, .. } = *sync;
        let now = SystemTime::now();
        for (_, metrics) in self.families.iter() {
            // The kernel notifies of our own changes too. To read those and do nothing is no pass over the rules, and
            // there are as many as passes.
            if !report.is_echo() {
                metrics.took.observe(report.took.as_secs_f64());
            }
            metrics.failures.add(usize::from(report.failed > 0));
            if complete {
                metrics.last_ended.set(seconds(now));
            }
            // Most of the latency of earlier changes is not ours.
            for triggered_at in triggered_at.iter().filter(|triggered_at| **triggered_at > self.started) {
                // The other clock may be ahead of ours.
                let latency = now.duration_since(*triggered_at).unwrap_or(Duration::ZERO);
                metrics.latency.observe(latency.as_secs_f64());
            }
        }
        if complete {
            self.synced = true;
            self.services.synced();
            self.endpoints.synced();
            self.count_without_local_endpoint(state);
            self.refused.set(state.reports().refused_count().try_into().unwrap_or(u64::MAX));
        }
    }
}

fn register_syncs(families: &ByFamily<FamilySyncMetrics>, registry: &mut Registry) {
    families.register(
        registry,
        "kubeproxy_sync_proxy_rules_duration_seconds",
        "SyncProxyRules latency in seconds",
        |of| &of.took,
    );
    families.register(
        registry,
        "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
        "The last time proxy rules were successfully synced",
        |of| &of.last_ended,
    );
    families.register(
        registry,
        "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
        "The last time a sync of proxy rules was queued",
        |of| &of.last_requested,
    );
    families.register(
        registry,
        "kubeproxy_network_programming_duration_seconds",
        "In Cluster Network Programming Latency in seconds",
        |of| &of.latency,
    );
}

fn register_outcomes(families: &ByFamily<FamilySyncMetrics>, registry: &mut Registry) {
    families.register(
        registry,
        "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
        "Syncs that the kernel refused in part; iptables is not used",
        |of| &of.failures,
    );
    let policies = [("internal", Traffic::Internal), ("external", Traffic::External)];
    let without_local_endpoint: Labelled<_, _> = policies
        .into_iter()
        .flat_map(|(policy, traffic)| families.iter().map(move |of| (policy, traffic, of)))
        .map(|(policy, traffic, (family, of))| {
            let labels = ([("traffic_policy", policy)], label(*family));
            (labels, of.without_local_endpoint(traffic).clone())
        })
        .collect();
    registry.register(
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
        "Number of services with a Local traffic policy and no endpoints",
        without_local_endpoint,
    );
}

/// The buckets of the latency, as kube-proxy has them (`NetworkProgrammingLatency` in
/// pkg/proxy/metrics/metrics.go).
fn latency_bounds() -> impl Iterator<Item = f64> {
    let whole = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30));
    [0.25, 0.5].into_iter().chain(whole.map(f64::from))
}

fn seconds(moment: SystemTime) -> f64 {
    moment.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64()
}

#[cfg(test)]
mod tests;
