//! Metrics of the advice about the node that holds now.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};

use crate::finding::{Cause, Finding, Severity};

/// Counts the advice for each page. There are a few pieces of it at most.
pub(super) struct AdviceMetrics<F>(pub(super) F);

impl<F> fmt::Debug for AdviceMetrics<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdviceMetrics").finish_non_exhaustive()
    }
}

impl<F: Fn() -> Vec<Finding> + Send + Sync + 'static> Collector for AdviceMetrics<F> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let all = (self.0)();
        let (name, help) = ("kube_ipvs_advice", "What on this node hurts traffic to Services, or may");
        let mut series = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for severity in Severity::WHILE_RUNNING {
            for cause in Cause::ALL {
                let held = all.iter().filter(|it| (it.severity, it.cause) == (severity, Some(cause)));
                let count = u64::try_from(held.count()).unwrap_or(u64::MAX);
                let labels = [("severity", severity.name()), ("cause", cause.name())];
                ConstGauge::new(count).encode(series.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::serve::metrics::text;

    #[test]
    fn advice_is_counted_by_severity_and_cause_and_what_does_not_hold_is_0() {
        let mut registry = Registry::default();
        let held = || {
            let chain = |name| Finding::warning(name, "it drops");
            let all = [chain("input"), chain("forward"), Finding::note("nft", "not read")];
            all.map(|finding| finding.cause(Cause::HostFirewall)).to_vec()
        };
        registry.register_collector(Box::new(AdviceMetrics(held)));
        let page = text::encode(&registry);
        for line in [
            r#"kube_ipvs_advice{severity="warning",cause="host-firewall"} 2"#,
            r#"kube_ipvs_advice{severity="note",cause="host-firewall"} 1"#,
            r#"kube_ipvs_advice{severity="warning",cause="contested"} 0"#,
        ] {
            assert!(page.lines().any(|it| it == line), "{line} is not in\n{page}");
        }
        assert_eq!(
            page.lines().filter(|line| !line.starts_with('#')).count(),
            2 * Cause::ALL.len(),
            "{page}"
        );
    }
}
