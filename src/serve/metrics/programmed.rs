//! Metrics of what the kernel has, and of the problems of objects.

use std::sync::atomic::AtomicU64;

use prometheus_client::{metrics::gauge::Gauge, registry::Registry};
use reconciler::{Observer, Programmed, SyncEvent};

type CountGauge = Gauge<u64, AtomicU64>;

/// Observes the writer thread. Clones share the metrics.
#[derive(Clone, Debug, Default)]
pub(super) struct ProgrammedMetrics {
    virtual_servers: CountGauge,
    real_servers: CountGauge,
    vips: CountGauge,
    problems: CountGauge,
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
        let set = |gauge: &CountGauge, count: usize| gauge.set(count.try_into().unwrap_or(u64::MAX));
        // After a doubt the next sync reads it.
        if let Some(Programmed { virtual_servers, real_servers, vips, .. }) = &sync.stats.programmed {
            set(&self.virtual_servers, *virtual_servers);
            set(&self.real_servers, *real_servers);
            set(&self.vips, *vips);
        }
        set(&self.problems, sync.stats.problems);
    }
}

#[cfg(test)]
mod tests {
    use reconciler::{SyncReport, SyncStats, Trigger};
    use service::{Options, State};

    use super::{super::text, *};

    #[test]
    fn what_the_kernel_has_is_shown_until_more_is_known() {
        let mut registry = Registry::default();
        let mut metrics = ProgrammedMetrics::register(&mut registry);
        let (report, state) = (SyncReport::empty(Trigger::Change), State::new(Options::new("node")));
        let mut page = |programmed, problems| {
            let stats = SyncStats { programmed, problems, ..SyncStats::default() };
            let (report, stats, state) = (&report, &stats, &state);
            metrics.on_sync(&SyncEvent { report, stats, complete: true, state, triggered_at: &[] });
            let shown = text::encode(&registry);
            let values = ["virtual_servers", "real_servers", "vips", "problems"];
            values.map(|name| {
                testkit::metrics::value(&shown, &format!("kube_ipvs_{name}")).unwrap().to_string()
            })
        };
        let programmed =
            Some(Programmed { virtual_servers: 3, real_servers: 7, vips: 2, ..Programmed::default() });
        assert_eq!(page(programmed, 4), ["3", "7", "2", "4"]);
        assert_eq!(page(None, 5), ["3", "7", "2", "5"]);
        assert_eq!(page(Some(Programmed::default()), 0), ["0"; 4]);
    }
}
