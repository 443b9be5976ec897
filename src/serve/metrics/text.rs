//! Prometheus' text format 0.0.4.
//!
//! It is the text that kube-proxy writes, whatever a client accepts: it does not switch OpenMetrics on
//! (`legacyregistry.Handler` in k8s.io/component-base/metrics). `prometheus_client` writes OpenMetrics. The two
//! differ in what is here: in OpenMetrics the name of a counter has no `_total`, only its sample has; bounds of
//! buckets are `1.0` and not `1`; and the end is marked.

use std::fmt;

use prometheus_client::{
    encoding::{
        DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet, EncodeMetric, MetricEncoder,
        text::encode_registry,
    },
    metrics::{MetricType, TypedMetric, counter::Counter, histogram::Histogram},
    registry::Registry,
};

/// The content type of the format.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The text between the name of a histogram and the bound of a bucket.
const BOUND: &str = "_bucket{le=\"";

/// All metrics of a registry.
pub(crate) fn encode(registry: &Registry) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail. A metric that cannot be encoded would end the text early, and all before it is
    // right.
    _ = encode_registry(&mut text, registry);
    let mut written = String::with_capacity(text.len());
    for line in text.lines() {
        match line.split_once(BOUND).and_then(|(name, rest)| Some((name, rest.split_once(".0\"")?))) {
            Some((name, (bound, rest))) if bound.bytes().all(|byte| byte.is_ascii_digit()) => {
                written.extend([name, BOUND, bound, "\"", rest]);
            }
            _ => written.push_str(line),
        }
        written.push('\n');
    }
    written
}

/// A counter whose name is written as given, including `_total`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Total(Counter);

impl Total {
    pub(crate) fn add(&self, count: usize) {
        self.0.inc_by(count.try_into().unwrap_or(u64::MAX));
    }
}

impl EncodeMetric for Total {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        // A counter would have `_total` appended; a gauge is written in the same way, without that.
        encoder.encode_gauge(&self.0.get())
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

impl TypedMetric for Total {
    const TYPE: MetricType = MetricType::Counter;
}

/// Writes a metric with one value.
pub(crate) fn write(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    kind: MetricType,
    value: &impl EncodeGaugeValue,
) -> fmt::Result {
    encoder.encode_descriptor(name, help, None, kind)?.encode_gauge(value)
}

/// A metric for each of a fixed list of labels: all are shown, in this order, and nothing has to be looked up.
#[derive(Debug)]
pub(crate) struct Labelled<L, M>(Vec<(L, M)>);

impl<L, M> FromIterator<(L, M)> for Labelled<L, M> {
    fn from_iter<I: IntoIterator<Item = (L, M)>>(metrics: I) -> Self {
        Self(metrics.into_iter().collect())
    }
}

impl<L: EncodeLabelSet, M: EncodeMetric + TypedMetric> EncodeMetric for Labelled<L, M> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(labels, metric)| metric.encode(encoder.encode_family(labels)?))
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A histogram with kube-proxy's buckets for durations of work: 1 ms, 2 ms … 16 s.
pub(crate) fn work_duration() -> Histogram {
    Histogram::new((0..15).map(|power| f64::from(1 << power) / 1000.0))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use prometheus_client::metrics::gauge::Gauge;

    use super::*;

    #[test]
    fn metrics_are_written_as_version_0_0_4_of_the_format_has_them() {
        let mut registry = Registry::default();
        let (events, seen) = (Total::default(), Gauge::<u64, AtomicU64>::default());
        let took = Histogram::new([0.5, 1.0, 60.0]);
        registry.register("events_total", "What happened", events.clone());
        registry.register("now_total", "What there is", seen.clone());
        let labels = [("version", "1.0"), ("family", "\"x\"")];
        registry.register("took_seconds", "How long", Labelled::from_iter([(labels, took.clone())]));
        events.add(3);
        seen.set(2);
        took.observe(1.5);
        let expected = r#"# HELP events_total What happened.
# TYPE events_total counter
events_total 3
# HELP now_total What there is.
# TYPE now_total gauge
now_total 2
# HELP took_seconds How long.
# TYPE took_seconds histogram
took_seconds_sum{version="1.0",family="\"x\""} 1.5
took_seconds_count{version="1.0",family="\"x\""} 1
took_seconds_bucket{le="0.5",version="1.0",family="\"x\""} 0
took_seconds_bucket{le="1",version="1.0",family="\"x\""} 0
took_seconds_bucket{le="60",version="1.0",family="\"x\""} 1
took_seconds_bucket{le="+Inf",version="1.0",family="\"x\""} 1
"#;
        assert_eq!(encode(&registry), expected);
    }
}
