//! What happens to an installation in kubeadm's DaemonSet by mistake, as docs/install/upgrade.md has it under
//! "Reboots and other events": traffic goes on, and there is a way back.

use std::{thread, time::Duration};

use anyhow::{Result, ensure};
use serde_json::Value;

use super::{TAG, back, check_all, only_pod, pods_on, prepare};
use crate::{
    kubectl::{self, patiently},
    node::Node,
    proxy::{self, Proxy},
    state::Cluster,
};

/// How long a kubelet may take to notice that a ConfigMap has gone, and longer.
const NOTICED: Duration = Duration::from_secs(150);

/// How long a pod must be pending to count as one that will not start.
const DOES_NOT_START: Duration = Duration::from_secs(20);

/// The ConfigMap is deleted, and made again; the DaemonSet's change is undone, and made again.
pub(crate) fn happen(cluster: &Cluster) -> Result<()> {
    let under_load = prepare(cluster)?;
    under_load.during(cluster, || {
        let config_map = back::to_make_again("configmap")?;
        kubectl::run("--namespace=kube-system delete configmap kube-proxy")?;
        let seen = without_config_map(cluster);
        // Whatever was seen.
        kubectl::apply(&config_map.to_string())?;
        seen
    })?;
    proxy::wait()?;
    check_all(cluster, "kube-proxy", TAG)?;
    println!("the ConfigMap was away");

    under_load.during(cluster, || undone(cluster))?;
    under_load.during(cluster, || {
        proxy::change_image()?;
        cluster.save()?;
        check_all(cluster, "kube-proxy", TAG)
    })
}

/// Pods that run go on, and a new one does not start; its node serves on.
fn without_config_map(cluster: &Cluster) -> Result<()> {
    thread::sleep(NOTICED);
    check_all(cluster, "kube-proxy", TAG)?;
    let node = cluster.first_worker()?;
    kubectl::run(&format!("delete {}", pods_on(node, "kube-proxy")))?;
    patiently(Duration::from_secs(60), || expect_pending(node))?;
    thread::sleep(DOES_NOT_START);
    expect_pending(node)
}

fn expect_pending(node: &Node) -> Result<()> {
    let pod = only_pod(node, "kube-proxy")?;
    let phase = pod.pointer("/status/phase").and_then(Value::as_str);
    ensure!(phase == Some("Pending"), "{}: {pod}", node.name);
    Ok(())
}

/// The revision before is kube-proxy's, in ipvs mode: our tables must go.
fn undone(cluster: &Cluster) -> Result<()> {
    kubectl::run("--namespace=kube-system rollout undo daemonset/kube-proxy")?;
    let kube_proxy = Cluster { proxy: Proxy::KubeProxyIpvs, ..cluster.clone() };
    kube_proxy.save()?;
    // That revision has no probe: its pods count as ready before they answer.
    patiently(Duration::from_secs(60), || proxy::check(&kube_proxy))?;
    back::remove_tables(cluster)
}
