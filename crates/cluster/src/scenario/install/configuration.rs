//! Another configuration.

use std::time::Duration;

use anyhow::{Result, ensure};
use guest::workspace;

use crate::{
    documents,
    kubectl::{self, patiently},
    state::Cluster,
};

/// Changes these words in kubeadm's ConfigMap.
pub(super) fn edit(from: &str, to: &str) -> Result<()> {
    let text =
        kubectl::output(&["--namespace=kube-system", "get", "configmap", "kube-proxy", "--output=yaml"])?;
    ensure!(text.contains(from), "the ConfigMap kube-proxy has no {from:?}");
    let kubectl = "kubectl -n kube-system";
    let change =
        format!("{kubectl} get configmap kube-proxy -o yaml | sed 's/{from}/{to}/' | {kubectl} replace -f -");
    documents::run(&workspace::root(), &change).map(drop)
}

/// Waits until every node has this sync period. The kubelet writes a changed ConfigMap within a minute or two.
pub(super) fn wait(cluster: &Cluster, sync_period: &str) -> Result<()> {
    let has_it =
        format!(r#"curl -s http://127.0.0.1:10249/configz | grep -q '"syncPeriod":"{sync_period}"'"#);
    cluster
        .nodes
        .iter()
        .try_for_each(|node| patiently(Duration::from_secs(180), || node.run(cluster, &has_it)).map(drop))
}
