//! From kube-proxy in another mode, in the order of docs/migration.md.

use anyhow::{Result, ensure};
use guest::workspace;

use super::{check_all, prepare};
use crate::documents;
use crate::node::Node;
use crate::proxy::{self, Proxy};
use crate::state::Cluster;

/// From nftables or iptables mode, without a restart of kube-proxy in between.
pub(crate) fn there(cluster: &Cluster) -> Result<()> {
    let modes = [Proxy::KubeProxyNftables, Proxy::KubeProxyIptables];
    ensure!(
        modes.contains(&cluster.proxy),
        "this begins with cargo xtask cluster up --proxy kube-proxy-nftables"
    );
    let under_load = prepare(cluster)?;
    under_load.during(cluster, || {
        let old = format!("mode: {}", cluster.proxy.mode());
        let kubectl = "kubectl -n kube-system";
        let change = format!(
            "{kubectl} get configmap kube-proxy -o yaml | sed 's/{old}/mode: ipvs/' | {kubectl} replace -f -"
        );
        documents::run(&workspace::root(), &change, &[])?;
        proxy::change_image(cluster)?;
        check_all(cluster, "kube-proxy")?;
        cluster.nodes.iter().try_for_each(|node| has_nothing_of_kube_proxy(cluster, node))
    })
}

/// What kube-proxy had in nf_tables or iptables is removed; the other chains are the kubelet's.
fn has_nothing_of_kube_proxy(cluster: &Cluster, node: &Node) -> Result<()> {
    let look = "nft list tables | grep kube-proxy; \
         { iptables-save; ip6tables-save; } | grep -E 'KUBE-(SERVICES|NODEPORTS|SVC|SEP|PROXY-FIREWALL)'; true";
    let left = node.run(cluster, look)?;
    ensure!(left.is_empty(), "{} still has of kube-proxy: {left}", node.name);
    Ok(())
}
