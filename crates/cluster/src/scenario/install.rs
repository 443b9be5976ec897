//! kube-ipvs comes into the cluster and leaves it, each way that the documents have, by their own commands.

mod back;
pub(super) mod by_helm;
pub(super) mod by_manifests;
pub(super) mod by_patch;
pub(super) mod from_another_mode;

use anyhow::{Result, ensure};

use super::clients::Clients;
use crate::kubectl;
use crate::node::Node;
use crate::proxy::{self, Proxy};
use crate::state::Cluster;
use crate::web::{End, Web};

/// How many connections each client holds meanwhile.
const HELD: u32 = 25;

/// Where the image is, as the documents call it.
const REGISTRY: (&str, &str) = ("REGISTRY", "registry.example");

/// The image's tag in the documents, and one that stands for the next version.
const TAG: &str = env!("CARGO_PKG_VERSION");
const NEXT_TAG: &str = "0.1.1-next";

/// An application, whose clients lose nothing.
struct UnderLoad<'a> {
    web: Web<'a>,
}

impl UnderLoad<'_> {
    fn during<T>(&self, cluster: &Cluster, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let clients = Clients::start(cluster, &self.web, HELD)?;
        let done = work();
        let outcomes = clients.end()?;
        let done = done?;
        outcomes.expect_all_answered()?;
        outcomes.expect_all_held()?;
        Ok(done)
    }
}

/// [`prepare`], where kube-proxy serves in ipvs mode.
fn prepare_beside_kube_proxy(cluster: &Cluster) -> Result<UnderLoad<'_>> {
    ensure!(
        cluster.proxy == Proxy::KubeProxyIpvs,
        "this begins with cargo xtask cluster up --proxy kube-proxy-ipvs"
    );
    prepare(cluster)
}

/// Gives the nodes both images, which differ by name, and starts the application.
fn prepare(cluster: &Cluster) -> Result<UnderLoad<'_>> {
    let image = proxy::build_image()?;
    for node in &cluster.nodes {
        proxy::load_image(cluster, node, &image)?;
        let next = proxy::IMAGE.replace(TAG, NEXT_TAG);
        node.run(
            cluster,
            &format!("ctr --namespace k8s.io images tag --force {} {next} >/dev/null", proxy::IMAGE),
        )?;
    }
    Ok(UnderLoad { web: Web::deploy(cluster, 4, End::Drained)? })
}

/// What the documents have an operator look at, on one node.
fn check(cluster: &Cluster, node: &Node, app: &str) -> Result<()> {
    let selector = format!("--selector=k8s-app={app}");
    let field = format!("--field-selector=spec.nodeName={}", node.name);
    kubectl::output(
        cluster,
        &[
            "--namespace=kube-system",
            "wait",
            "--for=condition=Ready",
            "pod",
            &selector,
            &field,
            "--timeout=120s",
        ],
    )?;
    let name = "--output=jsonpath={.items[0].metadata.name}";
    let pod = kubectl::output(cluster, &["--namespace=kube-system", "get", "pods", &selector, &field, name])?;
    let exec = |arguments: &[&str]| {
        let words = ["--namespace=kube-system", "exec", &pod, "--", "kube-ipvs"];
        kubectl::output(cluster, &[&words[..], arguments].concat())
    };
    let status = exec(&["status"])?;
    ensure!(
        status.lines().any(|line| line.starts_with("synced:") && line.contains("yes")),
        "{}: {status}",
        node.name
    );
    let problems: Vec<&str> =
        status.lines().filter(|line| line.starts_with("failed:") || line.starts_with("problem:")).collect();
    ensure!(problems.is_empty(), "{}: {problems:?}", node.name);
    let difference = exec(&["diff"])?;
    ensure!(difference.is_empty(), "{} differs: {difference}", node.name);
    let explained = exec(&["explain", "default/kubernetes"])?;
    ensure!(explained.contains(" used,"), "{}: {explained}", node.name);
    Ok(())
}

fn check_all(cluster: &Cluster, app: &str) -> Result<()> {
    cluster.nodes.iter().try_for_each(|node| check(cluster, node, app))
}

fn rolled_out(cluster: &Cluster) -> Result<()> {
    let arguments = ["--namespace=kube-system", "rollout", "status", "daemonset/kube-ipvs", "--timeout=300s"];
    kubectl::output(cluster, &arguments).map(drop)
}

/// An address of the API server that works without Services.
fn server(cluster: &Cluster) -> Result<String> {
    Ok(format!("https://{}:6443", cluster.control_plane()?.ipv4()))
}
