//! Which Service proxy the cluster has, and how it comes there.

use anyhow::{Context as _, Result, ensure};
use guest::{platform::Platform, programs::run, workspace};
use serde::{Deserialize, Serialize};

use crate::{documents, kubectl, node::Node, state::Cluster};

/// A Service proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(clippy::enum_variant_names, reason = "they are called so")]
pub(crate) enum Proxy {
    /// kube-ipvs, in kubeadm's own DaemonSet
    KubeIpvs,
    /// kube-proxy in ipvs mode
    KubeProxyIpvs,
    /// kube-proxy in nftables mode
    KubeProxyNftables,
    /// kube-proxy in iptables mode
    KubeProxyIptables,
}

impl Proxy {
    /// As the command line has it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::KubeIpvs => "kube-ipvs",
            Self::KubeProxyIpvs => "kube-proxy-ipvs",
            Self::KubeProxyNftables => "kube-proxy-nftables",
            Self::KubeProxyIptables => "kube-proxy-iptables",
        }
    }

    /// How its image is called.
    pub(crate) const fn image_name(self) -> &'static str {
        match self {
            Self::KubeIpvs => "/kube-ipvs:",
            Self::KubeProxyIpvs | Self::KubeProxyNftables | Self::KubeProxyIptables => "/kube-proxy:",
        }
    }

    /// Where it says at port 10256 that it has programmed everything. kube-proxy has no `/readyz`.
    pub(crate) const fn readiness(self) -> &'static str {
        match self {
            Self::KubeIpvs => "/readyz",
            Self::KubeProxyIpvs | Self::KubeProxyNftables | Self::KubeProxyIptables => "/healthz",
        }
    }

    /// The mode in kube-proxy's configuration.
    pub(crate) const fn mode(self) -> &'static str {
        match self {
            Self::KubeIpvs | Self::KubeProxyIpvs => "ipvs",
            Self::KubeProxyNftables => "nftables",
            Self::KubeProxyIptables => "iptables",
        }
    }
}

/// kube-ipvs as the manifests name it.
pub(crate) const IMAGE: &str = concat!("registry.example/kube-ipvs:", env!("CARGO_PKG_VERSION"));

/// Builds the image as a user does.
pub(crate) fn build_image() -> Result<()> {
    let mut image = workspace::cargo();
    image.args(["xtask", "image", "--platform", Platform::HERE.architecture()]);
    run(&mut image).context("cargo xtask image")
}

/// Gives a node that image, which takes the place of a registry.
pub(crate) fn load_image(node: &Node) -> Result<()> {
    let archive = concat!("target/image/kube-ipvs-", env!("CARGO_PKG_VERSION"), ".oci.tar");
    node.send(&workspace::root().join(archive), "ctr --namespace k8s.io images import -")
}

/// The change that docs/install/kubeadm.md has for all nodes: the image in the DaemonSet, and a probe that lets the
/// roll-out wait for each node.
pub(crate) fn change_image() -> Result<()> {
    let commands = documents::commands("install/kubeadm.md", "Change", &[])?;
    let is_patch = |command: &&String| command.contains("all-nodes.yaml");
    let patch = commands.iter().find(is_patch).context("no command for the image on all nodes")?;
    documents::run(patch)?;
    wait()
}

/// Lets annotations ask for direct return.
pub(crate) fn allow_direct_return() -> Result<()> {
    const FLAG: &str = "--external-forwarding-method=by-annotation";
    let daemon_set = "--namespace=kube-system daemonset kube-proxy";
    if !kubectl::output(&format!("get {daemon_set} --output=jsonpath={{..command}}"))?.contains(FLAG) {
        let place = "/spec/template/spec/containers/0/command/-";
        let patch = format!(r#"[{{"op":"add","path":"{place}","value":"{FLAG}"}}]"#);
        kubectl::run(&format!("patch {daemon_set} --type=json --patch={patch}"))?;
    }
    wait()
}

/// The image in kubeadm's DaemonSet.
pub(crate) fn image() -> Result<String> {
    kubectl::output("--namespace=kube-system get daemonset kube-proxy --output=jsonpath={..image}")
}

/// Fails unless the proxy that the cluster is known by, and no other, runs on every node.
pub(crate) fn check(cluster: &Cluster) -> Result<()> {
    wait()?;
    let (image, proxy) = (image()?, cluster.proxy);
    ensure!(image.contains(proxy.image_name()), "{image} runs instead of {}", proxy.name());
    for node in &cluster.nodes {
        let (mode, wanted) = (node.run("curl -sf http://127.0.0.1:10249/proxyMode")?, proxy.mode());
        ensure!(mode.trim_end() == wanted, "{} has the mode {mode} instead of {wanted}", node.name);
    }
    Ok(())
}

/// Waits until the proxy runs on every node.
pub(crate) fn wait() -> Result<()> {
    kubectl::wait_for_rollout("kube-system", "daemonset/kube-proxy")
}
