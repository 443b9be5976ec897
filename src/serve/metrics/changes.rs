//! Metrics of the changes of one kind of object: their number, and how many are pending.
//!
//! They are `kubeproxy_sync_proxy_rules_service_changes_total` and `…_pending`, and
//! `kubeproxy_sync_proxy_rules_endpoint_changes_total` and `…_pending`.

use std::sync::atomic::AtomicU64;

use prometheus_client::{metrics::gauge::Gauge, registry::Registry};

use super::text::Total;

#[derive(Clone, Debug, Default)]
pub(super) struct ChangeMetrics {
    total: Total,
    pending: Gauge<u64, AtomicU64>,
}

impl ChangeMetrics {
    /// Registers the metrics. `kind` and `title` are the kind's words in names and help, as `service` and `Service`.
    pub(super) fn register(kind: &str, title: &str, registry: &mut Registry) -> Self {
        let changes = Self::default();
        let name = |suffix| format!("kubeproxy_sync_proxy_rules_{kind}_changes_{suffix}");
        let help = format!("Pending proxy rules {title} changes");
        registry.register(name("pending"), help, changes.pending.clone());
        let help = format!("Cumulative proxy rules {title} changes");
        registry.register(name("total"), help, changes.total.clone());
        changes
    }

    /// Counts changes of so many objects; `waits` if they are pending.
    pub(super) fn changed(&self, objects: usize, waits: bool) {
        self.total.add(objects);
        if waits {
            self.pending.inc_by(objects.try_into().unwrap_or(u64::MAX));
        }
    }

    /// Resets the pending changes.
    pub(super) fn synced(&self) {
        self.pending.set(0);
    }
}
