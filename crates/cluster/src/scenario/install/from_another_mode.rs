//! From kube-proxy in another mode, in the order of docs/migration.md.

use anyhow::{Result, ensure};

use super::{TAG, check_all, configuration, kube_proxy_rules, prepare};
use crate::proxy::{self, Proxy};
use crate::state::Cluster;

/// From nftables or iptables mode, without a restart of kube-proxy in between.
pub(crate) fn there(cluster: &Cluster) -> Result<()> {
    for node in &cluster.nodes {
        ensure!(!kube_proxy_rules(cluster, node)?.is_empty(), "{} has no rules of kube-proxy", node.name);
    }
    let under_load = prepare(cluster)?;
    under_load.during(cluster, || {
        configuration::edit(&format!("mode: {}", cluster.proxy.mode()), "mode: ipvs")?;
        proxy::change_image()?;
        check_all(cluster, "kube-proxy", TAG)
    })?;
    Cluster { proxy: Proxy::KubeIpvs, ..cluster.clone() }.save()
}
