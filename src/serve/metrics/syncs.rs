//! Metrics of syncs, and of the changes that cause them.
//!
//! kube-proxy is two proxies, one for each family, with syncs of their own. Here one sync serves both: it is counted
//! for each served family.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

use ipvs::Family;
use reconciler::{ChangeEvent, ObjectKind, Observer, Programmed, SyncEvent};
use service::{State, Traffic, WithoutLocalEndpoint};

use super::text::{ByFamily, Count, Histogram, Registry, Seconds, Total, family_label, labels, since_1970};

/// Observes syncs and changes. Clones share the metrics.
#[derive(Clone, Debug)]
pub(super) struct SyncMetrics {
    families: ByFamily<FamilySyncMetrics>,
    services: ChangeMetrics,
    endpoints: ChangeMetrics,
    refused: Count,
    started: SystemTime,
    /// Whether there was a complete sync: until then every change is pending.
    synced: bool,
}

/// The metrics with the label `ip_family`.
#[derive(Clone, Debug)]
struct FamilySyncMetrics {
    took: Histogram,
    last_ended: Seconds,
    last_requested: Seconds,
    latency: Histogram,
    failures: Total,
    without_internal: Count,
    without_external: Count,
}

impl FamilySyncMetrics {
    fn new(started: SystemTime) -> Self {
        let last_requested = Seconds::default();
        last_requested.set(since_1970(started));
        Self {
            took: Histogram::of_work(),
            last_ended: Seconds::default(),
            last_requested,
            latency: Histogram::new(latency_bounds()),
            failures: Total::default(),
            without_internal: Count::default(),
            without_external: Count::default(),
        }
    }

    fn without_local_endpoint(&self, traffic: Traffic) -> &Count {
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
        let refused = Count::default();
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
                metrics.without_local_endpoint(traffic).set(count);
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
            let now = since_1970(SystemTime::now());
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
                metrics.took.observe(report.took);
            }
            metrics.failures.add(usize::from(report.failed > 0));
            if complete {
                metrics.last_ended.set(since_1970(now));
            }
            // Most of the latency of earlier changes is not ours.
            for triggered_at in triggered_at.iter().filter(|triggered_at| **triggered_at > self.started) {
                // The other clock may be ahead of ours.
                metrics.latency.observe(now.duration_since(*triggered_at).unwrap_or(Duration::ZERO));
            }
        }
        if complete {
            self.synced = true;
            self.services.synced();
            self.endpoints.synced();
            self.count_without_local_endpoint(state);
            self.refused.set(state.reports().refused_count());
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
    let without_local_endpoint = policies
        .into_iter()
        .flat_map(|(policy, traffic)| families.iter().map(move |of| (policy, traffic, of)))
        .map(|(policy, traffic, (family, of))| {
            let labels = format!("{},{}", labels([("traffic_policy", policy)]), family_label(*family));
            (labels, of.without_local_endpoint(traffic).clone())
        });
    registry.register_labelled(
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

/// Metrics of the changes of one kind of object: `kubeproxy_sync_proxy_rules_service_changes_total` and `…_pending`, and
/// the same with `endpoint`.
#[derive(Clone, Debug, Default)]
struct ChangeMetrics {
    total: Total,
    pending: Count,
}

impl ChangeMetrics {
    /// Registers the metrics. `kind` and `title` are the kind's words in names and help, as `service` and `Service`.
    fn register(kind: &str, title: &str, registry: &mut Registry) -> Self {
        let changes = Self::default();
        let name = |suffix| format!("kubeproxy_sync_proxy_rules_{kind}_changes_{suffix}");
        let help = format!("Pending proxy rules {title} changes");
        registry.register(name("pending"), help, changes.pending.clone());
        let help = format!("Cumulative proxy rules {title} changes");
        registry.register(name("total"), help, changes.total.clone());
        changes
    }

    /// Counts changes of so many objects; `waits` if they are pending.
    fn changed(&self, objects: usize, waits: bool) {
        self.total.add(objects);
        if waits {
            self.pending.add(objects);
        }
    }

    /// Resets the pending changes.
    fn synced(&self) {
        self.pending.set(0);
    }
}

/// Observes what the kernel has, and the problems of objects. Clones share the metrics.
#[derive(Clone, Debug, Default)]
pub(super) struct ProgrammedMetrics {
    virtual_servers: Count,
    real_servers: Count,
    vips: Count,
    problems: Count,
}

impl ProgrammedMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        for (name, help, gauge) in [
            (
                "kube_ipvs_virtual_servers",
                "Virtual servers of IPVS, as of the last sync",
                &metrics.virtual_servers,
            ),
            ("kube_ipvs_real_servers", "Their real servers, those that drain too", &metrics.real_servers),
            ("kube_ipvs_vips", "VIPs bound to this node", &metrics.vips),
            ("kube_ipvs_problems", "Problems of Services and EndpointSlices on this node", &metrics.problems),
        ] {
            registry.register(name, help, gauge.clone());
        }
        metrics
    }
}

impl Observer for ProgrammedMetrics {
    fn on_sync(&mut self, sync: &SyncEvent<'_>) {
        // After a doubt the next sync reads it.
        if let Some(Programmed { virtual_servers, real_servers, vips, .. }) = &sync.stats.programmed {
            self.virtual_servers.set(*virtual_servers);
            self.real_servers.set(*real_servers);
            self.vips.set(*vips);
        }
        self.problems.set(sync.stats.problems);
    }
}

#[cfg(test)]
mod tests;
