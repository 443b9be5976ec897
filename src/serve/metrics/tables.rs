//! Metrics of how full the tables of connections are, conntrack's and IPVS' own. A full table drops new
//! connections.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, metrics::MetricType};

use super::text::write;
use crate::node::sysctl::Sysctl;

/// Conntrack's table. Reads two numbers of this network namespace for each page.
#[derive(Debug)]
pub(super) struct ConntrackTable(PathBuf);

impl ConntrackTable {
    /// Reads the files below a directory, `/` on a node.
    pub(super) fn at(root: &Path) -> Self {
        Self(root.join("proc/sys/net/netfilter"))
    }

    /// Reads a number. `None` without conntrack, or if the file cannot be read.
    fn read(&self, file: &str) -> Option<u64> {
        fs::read_to_string(self.0.join(file)).ok()?.trim().parse().ok()
    }
}

impl Collector for ConntrackTable {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (file, name) in [
            ("nf_conntrack_count", ("kube_ipvs_conntrack_entries", "Connections that conntrack knows")),
            (
                "nf_conntrack_max",
                ("kube_ipvs_conntrack_entries_limit", "Connections that it may know; 0: any"),
            ),
        ] {
            if let Some(value) = self.read(file) {
                write(&mut encoder, name, MetricType::Gauge, &value)?;
            }
        }
        Ok(())
    }
}

/// IPVS' own table. Reads two numbers for each page.
#[derive(Debug)]
pub(super) struct IpvsTable(pub(super) Sysctl);

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

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::serve::metrics::text;

    #[test]
    fn the_kernels_numbers_are_shown_and_what_it_does_not_say_is_left_out() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("proc/sys/net/netfilter");
        fs::create_dir_all(&directory).unwrap();
        let mut registry = Registry::default();
        registry.register_collector(Box::new(ConntrackTable::at(root.path())));
        assert_eq!(text::encode(&registry), "");
        fs::write(directory.join("nf_conntrack_count"), "7\n").unwrap();
        fs::write(directory.join("nf_conntrack_max"), "262144\n").unwrap();
        let page = text::encode(&registry);
        assert!(page.contains("\nkube_ipvs_conntrack_entries 7\n"), "{page}");
        assert!(page.contains("\nkube_ipvs_conntrack_entries_limit 262144\n"), "{page}");
    }
}
