//! The API server goes away and comes back; kubeadm upgrades the cluster and renews its certificates.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::clients::Clients;
use crate::images;
use crate::kubectl::{self, patiently};
use crate::proxy::{self, Proxy};
use crate::state::Cluster;
use crate::web::{End, Web};

/// How long there is none.
const AWAY: Duration = Duration::from_secs(300);

/// Where kubeadm has the static pods, and where their files wait meanwhile.
const MANIFESTS: &str = "/etc/kubernetes/manifests";
const ASIDE: &str = "/etc/kubernetes/aside";

/// Five minutes without an API server, and all pods move as soon as it is back: no request fails.
pub(super) fn goes_and_returns(cluster: &Cluster) -> Result<()> {
    let web = Web::deploy(cluster, 4, End::Drained)?;
    let clients = Clients::start(cluster, &web, 0)?;
    let node = cluster.control_plane()?;
    node.run(cluster, &format!("mkdir -p {ASIDE} && mv {MANIFESTS}/kube-apiserver.yaml {ASIDE}"))?;
    patiently(Duration::from_secs(60), || {
        ensure!(kubectl::output(cluster, &["get", "--raw=/readyz"]).is_err(), "the API server does not end");
        Ok(())
    })?;
    println!("the API server is away");
    thread::sleep(AWAY);
    node.run(cluster, &format!("mv {ASIDE}/* {MANIFESTS}"))?;
    answers(cluster)?;
    println!("the API server is back");
    web.restart()?;
    web.wait()?;
    clients.end()?.expect_all_answered()
}

/// kubeadm upgrades the cluster, which brings kube-proxy's image back, and the change is repeated, as docs/install.md
/// says; then all certificates are renewed and the control plane is restarted. No request fails, no connection breaks.
pub(super) fn upgrades(cluster: &Cluster) -> Result<()> {
    ensure!(cluster.proxy == Proxy::KubeIpvs, "this begins with cargo xtask cluster up");
    let web = Web::deploy(cluster, 4, End::Drained)?;
    let clients = Clients::start(cluster, &web, 25)?;
    let node = cluster.control_plane()?;
    let version = images::kubernetes_version()?;
    let upgrade = format!(
        "kubeadm upgrade apply {version} --yes --force --ignore-preflight-errors=all >/var/log/kubeadm-upgrade.log 2>&1 \
         || {{ tail -n 30 /var/log/kubeadm-upgrade.log >&2; false; }}"
    );
    node.run(cluster, &upgrade)?;
    let image = ["--namespace=kube-system", "get", "daemonset", "kube-proxy", "--output=jsonpath={..image}"];
    let image = kubectl::output(cluster, &image)?;
    ensure!(
        image.contains("/kube-proxy:"),
        "kubeadm upgrade left the image {image}: docs/install.md says otherwise"
    );
    println!("kubeadm has upgraded the cluster, and brought kube-proxy back");
    proxy::change_image(cluster)?;

    node.run(cluster, "kubeadm certs renew all >/dev/null 2>&1")?;
    node.run(cluster, &format!("mkdir -p {ASIDE} && mv {MANIFESTS}/* {ASIDE}"))?;
    thread::sleep(Duration::from_secs(25));
    node.run(cluster, &format!("mv {ASIDE}/* {MANIFESTS}"))?;
    answers(cluster)?;
    println!("the control plane has new certificates");
    let outcomes = clients.end()?;
    outcomes.expect_all_answered()?;
    outcomes.expect_all_held()?;

    let clients = Clients::start(cluster, &web, 0)?;
    web.restart()?;
    web.wait()?;
    clients.end()?.expect_all_answered()
}

fn answers(cluster: &Cluster) -> Result<()> {
    patiently(Duration::from_secs(180), || kubectl::output(cluster, &["get", "--raw=/readyz"]).map(drop))
}
