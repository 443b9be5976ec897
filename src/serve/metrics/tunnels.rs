//! Metrics of packets that go through tunnels.

use std::{collections::BTreeSet, fmt};

use ipvs::Family;
use netfilter::TunnelCounts;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, gauge::ConstGauge},
};

/// Reads the counts for each page: `count` has those of a family, all 0 where nothing is answered directly.
pub(super) struct TunnelMetrics<F> {
    pub(super) families: BTreeSet<Family>,
    pub(super) count: F,
}

impl<F> fmt::Debug for TunnelMetrics<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TunnelMetrics").field("families", &self.families).finish_non_exhaustive()
    }
}

impl<F: Fn(Family) -> TunnelCounts + Send + Sync + 'static> Collector for TunnelMetrics<F> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Packets sent through tunnels, received by them, and refused there";
        let mut series =
            encoder.encode_descriptor("kube_ipvs_tunnel_packets_total", help, None, MetricType::Counter)?;
        for family in &self.families {
            let TunnelCounts { sent, received, refused } = (self.count)(*family);
            for (direction, packets) in [("sent", sent), ("received", received), ("refused", refused)] {
                let labels = [("ip_family", family.to_string()), ("direction", direction.to_owned())];
                // A counter would have `_total` appended.
                ConstGauge::new(packets).encode(series.encode_family(&labels)?)?;
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
    fn each_family_has_a_count_of_each_kind() {
        let mut registry = Registry::default();
        let count = |family| match family {
            Family::V4 => TunnelCounts { sent: 7, received: 5, refused: 2 },
            Family::V6 => TunnelCounts::default(),
        };
        registry.register_collector(Box::new(TunnelMetrics { families: Family::BOTH.into(), count }));
        let page = text::encode(&registry);
        for line in [
            "# TYPE kube_ipvs_tunnel_packets_total counter",
            "kube_ipvs_tunnel_packets_total{ip_family=\"IPv4\",direction=\"sent\"} 7",
            "kube_ipvs_tunnel_packets_total{ip_family=\"IPv4\",direction=\"received\"} 5",
            "kube_ipvs_tunnel_packets_total{ip_family=\"IPv4\",direction=\"refused\"} 2",
            "kube_ipvs_tunnel_packets_total{ip_family=\"IPv6\",direction=\"refused\"} 0",
        ] {
            assert!(page.lines().any(|it| it == line), "{line} in:\n{page}");
        }
    }
}
