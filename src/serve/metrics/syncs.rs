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
use service::{Traffic, WithoutLocalEndpoint};

use super::text::{ByFamily, Count, Histogram, Registry, Seconds, Total, family_label, labels, since_1970};

/// Observes syncs and changes. Clones share the metrics.
#[derive(Clone, Debug)]
pub(super) struct SyncMetrics {
    took: ByFamily<Histogram>,
    last_ended: ByFamily<Seconds>,
    last_requested: ByFamily<Seconds>,
    latency: ByFamily<Histogram>,
    endpoints: ChangeMetrics,
    services: ChangeMetrics,
    failures: ByFamily<Total>,
    without_local_endpoint: Vec<(WithoutLocalEndpoint, Count)>,
    refused: Count,
    served: Count,
    without_endpoints: Count,
    /// Ejected, and on trial after that.
    ejected: Count,
    on_trial: Count,
    started: SystemTime,
    /// Whether there was a complete sync: until then every change is pending.
    synced: bool,
}

impl SyncMetrics {
    pub(super) fn register(
        families: &BTreeSet<Family>,
        started: SystemTime,
        registry: &mut Registry,
    ) -> Self {
        let metrics = Self {
            took: registry.register_by_family(
                "kubeproxy_sync_proxy_rules_duration_seconds",
                "SyncProxyRules latency in seconds",
                Histogram::of_work,
                families,
            ),
            last_ended: registry.register_by_family(
                "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
                "The last time proxy rules were successfully synced",
                Seconds::default,
                families,
            ),
            last_requested: registry.register_by_family(
                "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
                "The last time a sync of proxy rules was queued",
                Seconds::default,
                families,
            ),
            latency: registry.register_by_family(
                "kubeproxy_network_programming_duration_seconds",
                "In Cluster Network Programming Latency in seconds",
                || Histogram::new(latency_bounds()),
                families,
            ),
            endpoints: ChangeMetrics::register("endpoint", "Endpoint", registry),
            services: ChangeMetrics::register("service", "Service", registry),
            failures: registry.register_by_family(
                "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
                "Syncs in which the kernel refused an operation; iptables is not used",
                Total::default,
                families,
            ),
            without_local_endpoint: without_local_endpoint(families, registry),
            refused: registry.register(
                "kube_ipvs_refused_addresses",
                "External addresses of Services that are refused, and so not served",
            ),
            served: registry.register("kube_ipvs_services", "Services that are served on this node"),
            without_endpoints: registry.register(
                "kube_ipvs_services_without_endpoints",
                "Services that are served on this node and have no endpoint, for reasons other than policy Local",
            ),
            ejected: registry.register(
                "kube_ipvs_ejected_endpoints",
                "Endpoints that get no new connections because clients fail there",
            ),
            on_trial: registry.register(
                "kube_ipvs_endpoints_on_trial",
                "Endpoints that were ejected, get few new connections, and have not answered since",
            ),
            started,
            synced: false,
        };
        metrics.requested_at(started);
        metrics
    }

    fn requested_at(&self, time: SystemTime) {
        self.last_requested.iter().for_each(|(_, last)| last.set(since_1970(time)));
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
            self.requested_at(SystemTime::now());
        }
    }

    fn on_sync(&mut self, sync: &SyncEvent<'_>) {
        let SyncEvent { report, complete, state, triggered_at, .. } = *sync;
        let now = SystemTime::now();
        // The kernel notifies of our own changes too. Reading those and doing nothing is not a pass over the rules, and
        // there are as many as passes.
        if !report.is_echo() {
            self.took.iter().for_each(|(_, took)| took.observe(report.took));
        }
        self.failures.iter().for_each(|(_, failures)| failures.add(usize::from(report.failed > 0)));
        // Most of the latency of earlier changes is not ours.
        for triggered_at in triggered_at.iter().filter(|triggered_at| **triggered_at > self.started) {
            // The other clock may be ahead of ours.
            let waited = now.duration_since(*triggered_at).unwrap_or(Duration::ZERO);
            self.latency.iter().for_each(|(_, latency)| latency.observe(waited));
        }
        if complete {
            self.synced = true;
            self.last_ended.iter().for_each(|(_, last)| last.set(since_1970(now)));
            self.services.synced();
            self.endpoints.synced();
            for (case, count) in &self.without_local_endpoint {
                count.set(state.reports().without_local_endpoint(*case));
            }
            self.refused.set(state.reports().refused_count());
            self.served.set(state.reports().served());
            self.without_endpoints.set(state.reports().lacking_endpoints().len());
            let [ejected, on_trial] = state.reports().ejected_count();
            self.ejected.set(ejected);
            self.on_trial.set(on_trial);
        }
    }
}

fn without_local_endpoint(
    families: &BTreeSet<Family>,
    registry: &mut Registry,
) -> Vec<(WithoutLocalEndpoint, Count)> {
    let cases = [Traffic::Internal, Traffic::External]
        .into_iter()
        .flat_map(|traffic| families.iter().map(move |&family| WithoutLocalEndpoint { traffic, family }));
    registry.register_each(
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
        "Number of services with a Local traffic policy and no endpoints",
        Count::default,
        cases,
        |WithoutLocalEndpoint { traffic, family }| {
            let policy = match traffic {
                Traffic::Internal => "internal",
                Traffic::External => "external",
            };
            format!("{},{}", labels([("traffic_policy", policy)]), family_label(*family))
        },
    )
}

/// The buckets of the latency, as kube-proxy has them (`NetworkProgrammingLatency` in
/// pkg/proxy/metrics/metrics.go).
fn latency_bounds() -> impl Iterator<Item = f64> {
    let whole = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30));
    [0.25, 0.5].into_iter().chain(whole.map(f64::from))
}

/// Metrics of the changes of one kind of object: `kubeproxy_sync_proxy_rules_service_changes_total` and `…_pending`,
/// and the same with `endpoint`.
#[derive(Clone, Debug)]
struct ChangeMetrics {
    pending: Count,
    total: Total,
}

impl ChangeMetrics {
    /// Registers the metrics. `kind` and `title` are the kind's words in names and help, as `service` and `Service`.
    fn register(kind: &str, title: &str, registry: &mut Registry) -> Self {
        let name = |suffix| format!("kubeproxy_sync_proxy_rules_{kind}_changes_{suffix}");
        Self {
            pending: registry.register(name("pending"), format!("Pending proxy rules {title} changes")),
            total: registry.register(name("total"), format!("Cumulative proxy rules {title} changes")),
        }
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
#[derive(Clone, Debug)]
pub(super) struct ProgrammedMetrics {
    virtual_servers: Count,
    real_servers: Count,
    vips: Count,
    problems: Count,
    /// In seconds.
    tcp_timeout: Count,
}

impl ProgrammedMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        Self {
            virtual_servers: registry
                .register("kube_ipvs_virtual_servers", "Virtual servers of IPVS as of the last sync"),
            real_servers: registry.register(
                "kube_ipvs_real_servers",
                "Real servers of IPVS as of the last sync, draining ones included",
            ),
            vips: registry.register("kube_ipvs_vips", "VIPs bound to this node"),
            problems: registry
                .register("kube_ipvs_problems", "Problems of Services and EndpointSlices on this node"),
            tcp_timeout: registry.register(
                "kube_ipvs_tcp_timeout_seconds",
                "How long IPVS keeps an idle TCP connection, as of startup; 0 until then",
            ),
        }
    }

    /// Sets how long IPVS keeps an idle TCP connection.
    pub(super) fn set_tcp_timeout(&self, timeout: Duration) {
        self.tcp_timeout.set(timeout.as_secs().try_into().unwrap_or(usize::MAX));
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
