//! Metrics of the responses of `/healthz` and `/livez`, and of whether the proxy works.

use std::fmt;

use prometheus_client::{
    collector::Collector, encoding::DescriptorEncoder, metrics::MetricType, registry::Registry,
};

use super::text::{Labelled, Total, write};
use crate::serve::health::Health;

/// What `/livez` would answer now. Where no probe asks it, as in kubeadm's DaemonSet, no responses are counted.
#[derive(Debug)]
pub(super) struct HealthyGauge(pub(super) Health);

impl Collector for HealthyGauge {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let name = ("kube_ipvs_healthy", "Whether /livez answers 200 now (1) or 503 (0)");
        write(&mut encoder, name, MetricType::Gauge, &u64::from(self.0.is_healthy()))
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
        let labelled = by_code.map(|(code, count)| ([("code", code)], count.clone()));
        registry.register(name, help, Labelled::from_iter(labelled));
    }
}

#[cfg(test)]
mod tests {
    use super::{super::text, *};

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
        assert_eq!(text::encode(&registry), expected);
    }
}
