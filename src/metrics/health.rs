//! What `/healthz` and `/livez` have answered.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, metrics::MetricType};

use crate::health::HealthAnswers;

impl Collector for HealthAnswers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let healthz = [("200", &self.healthz_200), ("503", &self.healthz_503)];
        write(
            &mut encoder,
            "kubeproxy_proxy_healthz_total",
            "Cumulative proxy healthz HTTP status",
            healthz,
        )?;
        let livez = [("200", &self.livez_200), ("503", &self.livez_503)];
        write(&mut encoder, "kubeproxy_proxy_livez_total", "Cumulative proxy livez HTTP status", livez)
    }
}

fn write(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    answers: [(&str, &AtomicU64); 2],
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    answers.into_iter().try_for_each(|(code, count)| {
        metric.encode_family(&[("code", code)])?.encode_gauge(&count.load(Ordering::Relaxed))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prometheus_client::registry::Registry;

    use super::{super::text, *};

    #[test]
    fn answers_are_counted_by_page_and_status() {
        let answers = Arc::new(HealthAnswers::default());
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Arc::clone(&answers)));
        answers.healthz_503.fetch_add(2, Ordering::Relaxed);
        answers.livez_200.fetch_add(1, Ordering::Relaxed);
        let expected = r#"# HELP kubeproxy_proxy_healthz_total Cumulative proxy healthz HTTP status
# TYPE kubeproxy_proxy_healthz_total counter
kubeproxy_proxy_healthz_total{code="200"} 0
kubeproxy_proxy_healthz_total{code="503"} 2
# HELP kubeproxy_proxy_livez_total Cumulative proxy livez HTTP status
# TYPE kubeproxy_proxy_livez_total counter
kubeproxy_proxy_livez_total{code="200"} 1
kubeproxy_proxy_livez_total{code="503"} 0
"#;
        assert_eq!(text::encode(&registry), expected);
    }
}
