//! From kube-proxy in another mode, and on to it again, in the order of docs/migration.md.

use anyhow::{Result, ensure};

use super::{TAG, check_all, configuration, kube_proxy_rules, prepare, to_another_mode};
use crate::{
    proxy::{self, Proxy},
    state::Cluster,
};

/// From nftables or iptables mode, without a restart of kube-proxy in between, and then node by node to the same mode.
pub(crate) fn there_and_back(cluster: &Cluster) -> Result<()> {
    for node in &cluster.nodes {
        ensure!(!kube_proxy_rules(cluster, node)?.is_empty(), "{} has no rules of kube-proxy", node.name);
    }
    let old_image = proxy::image()?;
    let under_load = prepare(cluster)?;
    under_load.during(cluster, || {
        configuration::edit(&format!("mode: {}", cluster.proxy.mode()), "mode: ipvs")?;
        proxy::change_image()?;
        check_all(cluster, "kube-proxy", TAG)
    })?;
    let changed = Cluster { proxy: Proxy::KubeIpvs, ..cluster.clone() };
    changed.save()?;
    to_another_mode::go_on(&changed, &under_load, cluster.proxy, old_image.trim())
}
