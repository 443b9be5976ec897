//! Metrics of how full IPVS' own table of connections is.

use std::fmt;

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, metrics::MetricType};

use super::sysctl::Sysctl;
use crate::serve::metrics::text::write;

/// Reads two numbers for each page.
#[derive(Debug)]
pub(crate) struct IpvsTable(pub(crate) Sysctl);

impl Collector for IpvsTable {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Self(sysctl) = self;
        for (value, name) in [
            (
                sysctl.ipvs_entries(),
                ("kube_ipvs_connection_entries", "Connections and persistence templates that IPVS knows"),
            ),
            (sysctl.conn_max(), ("kube_ipvs_connection_entries_limit", "Entries that it may have")),
        ] {
            if let Some(value) = value {
                write(&mut encoder, name, MetricType::Gauge, &value)?;
            }
        }
        Ok(())
    }
}
