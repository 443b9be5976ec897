//! Which Service proxy the cluster has, and how it comes there.

use std::{path::PathBuf, process::Command, time::Duration};

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
    pub(crate) const ALL: [Self; 4] =
        [Self::KubeIpvs, Self::KubeProxyIpvs, Self::KubeProxyNftables, Self::KubeProxyIptables];

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

/// Where the image is, as the documents call it.
pub(crate) const REGISTRY: (&str, &str) = ("REGISTRY", "registry.example");

/// kube-ipvs as the manifests name it.
pub(crate) const IMAGE: &str = concat!("registry.example/kube-ipvs:", env!("CARGO_PKG_VERSION"));

/// Builds the image as a user does; where the archive is.
pub(crate) fn build_image() -> Result<PathBuf> {
    let mut image = workspace::cargo();
    image.args(["xtask", "image", "--platform", Platform::HERE.architecture()]);
    run(&mut image).context("cargo xtask image")?;
    Ok(image_archive())
}

/// Where it is then.
pub(crate) fn image_archive() -> PathBuf {
    let name = concat!("kube-ipvs-", env!("CARGO_PKG_VERSION"), ".oci.tar");
    workspace::root().join("target/image").join(name)
}

/// Gives a node an image, which takes the place of a registry.
pub(crate) fn load_image(cluster: &Cluster, node: &Node, archive: &PathBuf) -> Result<()> {
    let file = std::fs::File::open(archive).with_context(|| archive.display().to_string())?;
    let mut ssh: Command = node.ssh(cluster);
    ssh.arg("ctr --namespace k8s.io images import - >/dev/null").stdin(file);
    ensure!(ssh.status().context("starting ssh")?.success(), "{} did not take the image", node.name);
    Ok(())
}

/// The change that docs/install.md has for kubeadm after an upgrade: the image in the DaemonSet, and a probe that lets
/// the roll-out wait for each node.
pub(crate) fn change_image() -> Result<()> {
    let commands = documents::commands("install.md", "kubeadm", &[REGISTRY])?;
    let is_patch = |command: &&String| command.contains("RollingUpdate") && command.contains("/readyz");
    let patch = commands.iter().find(is_patch).context("no command for the image on all nodes")?;
    documents::run(&workspace::root(), patch)?;
    wait()
}

/// Lets annotations ask for direct return.
pub(crate) fn allow_direct_return() -> Result<()> {
    const FLAG: &str = "--external-forwarding-method=by-annotation";
    let of = ["--namespace=kube-system", "daemonset", "kube-proxy"];
    let command = kubectl::output(&[&["get"], &of[..], &["--output=jsonpath={..command}"]].concat())?;
    if !command.contains(FLAG) {
        let place = "/spec/template/spec/containers/0/command/-";
        let patch = format!(r#"--patch=[{{"op": "add", "path": "{place}", "value": "{FLAG}"}}]"#);
        kubectl::output(&[&["patch"], &of[..], &["--type=json", &patch]].concat())?;
    }
    wait()
}

/// The image in kubeadm's DaemonSet.
pub(crate) fn image() -> Result<String> {
    kubectl::output(&[
        "--namespace=kube-system",
        "get",
        "daemonset",
        "kube-proxy",
        "--output=jsonpath={..image}",
    ])
}

/// Fails unless the proxy that the cluster is known by, and no other, runs on every node.
pub(crate) fn check(cluster: &Cluster) -> Result<()> {
    wait()?;
    let (image, proxy) = (image()?, cluster.proxy);
    ensure!(image.contains(proxy.image_name()), "{image} runs instead of {}", proxy.name());
    for node in &cluster.nodes {
        let mode = node.run(cluster, "curl -sf http://127.0.0.1:10249/proxyMode")?;
        ensure!(
            mode.trim_end() == proxy.mode(),
            "{} has the mode {mode} instead of {}",
            node.name,
            proxy.mode()
        );
    }
    Ok(())
}

/// Waits until the proxy runs on every node.
pub(crate) fn wait() -> Result<()> {
    let timeout = format!("--timeout={}s", Duration::from_secs(300).as_secs());
    let arguments = ["--namespace=kube-system", "rollout", "status", "daemonset/kube-proxy", &timeout];
    kubectl::output(&arguments).map(drop)
}
