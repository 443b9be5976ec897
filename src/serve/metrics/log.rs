//! Metrics of the log.

use std::fmt;

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, metrics::MetricType};

use super::text::write;
use crate::logging::LineLimit;

/// Reads the count for each page.
#[derive(Debug)]
pub(super) struct LogMetrics(pub(super) LineLimit);

impl Collector for LogMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let name = "kube_ipvs_log_lines_dropped_total";
        let help = "Lines that were not logged, because there were too many like them";
        write(&mut encoder, (name, help), MetricType::Counter, &self.0.dropped())
    }
}
