//! The API server goes away and comes back; kubeadm upgrades the cluster and renews its certificates.

use std::{thread, time::Duration};

use anyhow::{Result, ensure};

use super::{clients::Clients, install};
use crate::{
    disk::images,
    kubectl::{self, patiently},
    node::Node,
    proxy::{self, Proxy},
    state::Cluster,
    web::{End, Web},
};

/// How long there is none.
const AWAY: Duration = Duration::from_secs(300);

/// How long after its return a proxy may ask it again: pauses grow to a minute (docs/evidence/scale.md). What changes before is
/// not known to it.
const PROXIES_ASK_AGAIN: Duration = Duration::from_secs(70);

/// The static pods that make the control plane.
const CONTROL_PLANE: [&str; 4] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd"];

/// Where kubeadm has the static pods, and where their files wait meanwhile.
const MANIFESTS: &str = "/etc/kubernetes/manifests";
const ASIDE: &str = "/etc/kubernetes/aside";

/// Five minutes without an API server, and all pods move when proxies have had time to ask it again: no request fails.
pub(super) fn goes_and_returns(cluster: &Cluster) -> Result<()> {
    let web = Web::deploy(cluster, 4, End::Drained)?;
    let clients = Clients::start(cluster, &web, 0)?;
    without(cluster, &["kube-apiserver"], || {
        println!("the API server is away");
        thread::sleep(AWAY);
        Ok(())
    })?;
    println!("the API server is back");
    thread::sleep(PROXIES_ASK_AGAIN);
    web.restart()?;
    web.wait()?;
    clients.end()?.expect_all_answered()
}

/// kubeadm upgrades the cluster to the version that it has, which brings kube-proxy's image back, and the change is
/// repeated, as docs/install/kubeadm.md says; then all certificates are renewed and the control plane is restarted. No request
/// fails, no connection breaks.
pub(super) fn upgrades(cluster: &Cluster) -> Result<()> {
    let web = Web::deploy(cluster, 4, End::Drained)?;
    let clients = Clients::start(cluster, &web, 25)?;
    let node = cluster.control_plane()?;
    let version = images::kubernetes_version()?;
    let upgrade = format!(
        "kubeadm upgrade apply {version} --yes --force --ignore-preflight-errors=all \
         >/var/log/kubeadm-upgrade.log 2>&1 || {{ tail -n 30 /var/log/kubeadm-upgrade.log >&2; false; }}"
    );
    node.run(&upgrade)?;
    let image = proxy::image()?;
    ensure!(
        image.contains(Proxy::KubeProxyIpvs.image_name()),
        "kubeadm upgrade left the image {image}: docs/install/kubeadm.md says otherwise"
    );
    proxy::wait()?;
    println!("kubeadm has upgraded the cluster, and brought kube-proxy back on every node");
    proxy::change_image()?;
    install::check_all(cluster, "kube-proxy", install::TAG)?;

    let old = certificate(node)?;
    node.run("kubeadm certs renew all >/dev/null 2>&1")?;
    without(cluster, &CONTROL_PLANE, || Ok(()))?;
    let new = certificate(node)?;
    ensure!(old != new, "the API server still has the certificate with {old}");
    println!("the control plane has new certificates: {new} after {old}");
    let outcomes = clients.end()?;
    outcomes.expect_all_answered()?;
    outcomes.expect_all_held()?;

    let clients = Clients::start(cluster, &web, 0)?;
    web.restart()?;
    web.wait()?;
    clients.end()?.expect_all_answered()
}

/// Does something while these static pods, the API server among them, are away; they come back in any case.
fn without(cluster: &Cluster, pods: &[&str], work: impl FnOnce() -> Result<()>) -> Result<()> {
    let node = cluster.control_plane()?;
    let files = pods.iter().map(|pod| format!("{MANIFESTS}/{pod}.yaml")).collect::<Vec<_>>().join(" ");
    node.run(&format!("mkdir -p {ASIDE} && mv {files} {ASIDE}"))?;
    let done = have_ended(node, pods).and_then(|()| work());
    node.run(&format!("mv {ASIDE}/* {MANIFESTS}"))?;
    done?;
    patiently(Duration::from_secs(180), || kubectl::run("get --raw=/readyz --request-timeout=5s"))
}

/// Waits for the end of their processes. The kernel knows fifteen letters of a name.
fn have_ended(node: &Node, pods: &[&str]) -> Result<()> {
    let names = pods.iter().map(|pod| pod.get(..15).unwrap_or(pod)).collect::<Vec<_>>().join("|");
    patiently(Duration::from_secs(120), || {
        node.run(&format!("! pgrep --exact --list-name '{names}' >&2")).map(drop)
    })
}

/// The serial number of the certificate that the API server shows.
fn certificate(node: &Node) -> Result<String> {
    let show = "set -o pipefail; \
                openssl s_client -connect localhost:6443 </dev/null 2>/dev/null | openssl x509 -noout -serial";
    Ok(node.run(show)?.trim_end().to_owned())
}
