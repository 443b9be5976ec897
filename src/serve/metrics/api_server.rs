//! Metrics of the contact with the API server.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use kubernetes::api::Watches;
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, metrics::MetricType};

use super::text::write;

/// Reads the watches for each page.
#[derive(Debug)]
pub(super) struct ApiServerMetrics(pub(super) Watches);

impl Collector for ApiServerMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let since_1970 = |moment: SystemTime| moment.duration_since(SystemTime::UNIX_EPOCH).ok();
        let heard = self.0.last_heard().and_then(since_1970).unwrap_or(Duration::ZERO).as_secs_f64();
        let name = (
            "kube_ipvs_api_server_last_heard_timestamp_seconds",
            "When the API server last said something; 0: never",
        );
        write(&mut encoder, name, MetricType::Gauge, &heard)?;
        let unwatched = u64::try_from(self.0.failing()).unwrap_or(u64::MAX);
        let name = ("kube_ipvs_unwatched_resources", "Kinds of objects that cannot be watched now");
        write(&mut encoder, name, MetricType::Gauge, &unwatched)
    }
}
