//! kube-ipvs comes into the cluster and leaves it, each way that the documents have, by their own commands.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use guest::workspace;
use tempfile::TempDir;

use super::clients::Clients;
use crate::documents;
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

/// Into kubeadm's DaemonSet, one node first; back to kube-proxy, and its tables removed.
pub(super) fn by_patch(cluster: &Cluster) -> Result<()> {
    let under_load = prepare_beside_kube_proxy(cluster)?;
    let before = documents::commands("install.md", "kubeadm")?;
    let image_now =
        before.iter().find(|command| command.contains("{..image}")).context("no command for the image")?;
    let old_image = documents::run(&workspace::root(), image_now, &[])?;
    let first = cluster.workers().first().context("a cluster without workers")?;
    let words = [REGISTRY, ("=NODE", &format!("={}", first.name))];
    under_load.during(cluster, || {
        for command in &before {
            documents::run(&workspace::root(), command, &words)?;
            if command.contains("delete pod") {
                check(cluster, first, "kube-proxy")?;
            }
        }
        check_all(cluster, "kube-proxy")
    })?;
    under_load.during(cluster, || back_to_kube_proxy(cluster, &old_image))
}

/// As a DaemonSet of its own, by `kubectl apply -k`.
pub(super) fn by_kustomize(cluster: &Cluster) -> Result<()> {
    let under_load = prepare_beside_kube_proxy(cluster)?;
    let copy = manifests_for(cluster)?;
    let kube_proxy = kube_proxy_daemon_set(cluster)?;
    let mut commands = documents::commands("install.md", "Another cluster, or with Helm")?;
    commands.retain(|command| !command.starts_with("helm"));
    under_load.during(cluster, || {
        for command in &commands {
            documents::run(copy.path(), command, &[])?;
        }
        rolled_out(cluster)?;
        check_all(cluster, "kube-ipvs")?;
        upgrade(cluster, &copy)?;
        documents::run(copy.path(), "kubectl -n kube-system rollout undo daemonset/kube-ipvs", &[])?;
        rolled_out(cluster)?;
        check_all(cluster, "kube-ipvs")
    })?;
    under_load.during(cluster, || {
        documents::run(copy.path(), "kubectl delete -k manifests", &[])?;
        kube_proxy_returns(cluster, &kube_proxy)
    })
}

/// The same with the Helm chart.
pub(super) fn by_helm(cluster: &Cluster) -> Result<()> {
    let under_load = prepare_beside_kube_proxy(cluster)?;
    let kube_proxy = kube_proxy_daemon_set(cluster)?;
    let server = server(cluster)?;
    let words = [
        REGISTRY,
        ("https://10.0.0.1:6443", server.as_str()),
        // Both families, and Helm's way to write a comma in a value.
        ("10.244.0.0/16", r"'10.244.0.0/16\,fd00:10:244::/56'"),
    ];
    let root = workspace::root();
    let install = documents::commands("install.md", "Another cluster, or with Helm")?;
    let upgrade = documents::commands("install.md", "Upgrade")?;
    let no_kube_proxy = install.first().context("no command that removes kube-proxy")?;
    let helm = |commands: &[String]| commands.iter().find(|command| command.starts_with("helm")).cloned();
    let (install_chart, upgrade_chart) =
        (helm(&install).context("no helm install")?, helm(&upgrade).context("no helm upgrade")?);
    under_load.during(cluster, || {
        documents::run(&root, no_kube_proxy, &words)?;
        documents::run(&root, &install_chart, &words)?;
        rolled_out(cluster)?;
        check_all(cluster, "kube-ipvs")?;
        documents::run(
            &root,
            &upgrade_chart,
            &[REGISTRY, (&format!("tag={TAG}"), &format!("tag={NEXT_TAG}"))],
        )?;
        rolled_out(cluster)?;
        check_all(cluster, "kube-ipvs")?;
        documents::run(&root, "helm rollback kube-ipvs --namespace kube-system", &[])?;
        rolled_out(cluster)?;
        check_all(cluster, "kube-ipvs")
    })?;
    under_load.during(cluster, || {
        documents::run(&root, "helm uninstall kube-ipvs --namespace kube-system", &[])?;
        kube_proxy_returns(cluster, &kube_proxy)
    })
}

/// From nftables or iptables mode, in the order of docs/migration.md.
pub(super) fn from_another_mode(cluster: &Cluster) -> Result<()> {
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

/// An application, whose clients lose nothing.
struct UnderLoad<'a> {
    web: Web<'a>,
}

impl UnderLoad<'_> {
    fn during(&self, cluster: &Cluster, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let clients = Clients::start(cluster, &self.web, HELD)?;
        let done = work();
        let outcomes = clients.end()?;
        done?;
        outcomes.expect_all_answered()?;
        outcomes.expect_all_held()
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

/// One node first, then all, to the next version.
fn upgrade(cluster: &Cluster, copy: &TempDir) -> Result<()> {
    let first = cluster.workers().first().context("a cluster without workers")?;
    let words =
        [REGISTRY, (TAG, NEXT_TAG), ("=NODE", &format!("={}", first.name)), ("manifests/k3s", "manifests")];
    for command in documents::commands("install.md", "Upgrade")? {
        if command.starts_with("helm") {
            break;
        }
        if command.contains("apply -k") {
            let path = copy.path().join("manifests/base/kustomization.yaml");
            let text = fs::read_to_string(&path)?;
            fs::write(&path, text.replace(&format!("newTag: {TAG}"), &format!("newTag: {NEXT_TAG}")))?;
        }
        documents::run(copy.path(), &command, &words)?;
        if command.contains("delete pod") {
            check(cluster, first, "kube-ipvs")?;
        }
    }
    check_all(cluster, "kube-ipvs")
}

/// docs/migration.md, with its conditions.
fn back_to_kube_proxy(cluster: &Cluster, old_image: &str) -> Result<()> {
    let commands = documents::commands("migration.md", "Back to kube-proxy")?;
    let words = [("THE-IMAGE-OF-BEFORE", old_image.trim())];
    let (image, cleanup) = commands.split_first().context("no command for the image")?;
    documents::run(&workspace::root(), image, &words)?;
    proxy::wait(cluster)?;
    remove_tables(cluster, cleanup)
}

/// Step 2 and 3: when kube-proxy has synced in both families, our tables go.
fn remove_tables(cluster: &Cluster, cleanup: &[String]) -> Result<()> {
    for node in &cluster.nodes {
        kubectl::patiently(std::time::Duration::from_secs(120), || {
            let has = "for save in iptables-save ip6tables-save; do $save -t nat | grep -q KUBE-POSTROUTING || exit 1; done";
            node.run(cluster, has).map(drop)
        })?;
        for command in cleanup {
            if command.contains("logs") {
                let wait = [
                    "--namespace=kube-system",
                    "wait",
                    "--for=condition=Complete",
                    "job",
                    "--selector=k8s-app=kube-ipvs-cleanup",
                    "--timeout=120s",
                ];
                kubectl::output(cluster, &wait)?;
            }
            documents::run(
                &workspace::root(),
                command,
                &[("s/NODE/worker-1/", &format!("s/NODE/{}/", node.name))],
            )?;
        }
        let tables = node.run(cluster, "nft list tables")?;
        ensure!(!tables.contains("kube-ipvs"), "{} still has our tables: {tables}", node.name);
    }
    Ok(())
}

/// kubeadm's DaemonSet, to make it again.
fn kube_proxy_daemon_set(cluster: &Cluster) -> Result<serde_json::Value> {
    let mut object = kubectl::json(cluster, &["--namespace=kube-system", "get", "daemonset", "kube-proxy"])?;
    let root = object.as_object_mut().context("no object")?;
    root.remove("status");
    let metadata =
        root.get_mut("metadata").and_then(serde_json::Value::as_object_mut).context("no metadata")?;
    for given in ["uid", "resourceVersion", "creationTimestamp", "generation"] {
        metadata.remove(given);
    }
    Ok(object)
}

/// As a distribution brings it back.
fn kube_proxy_returns(cluster: &Cluster, object: &serde_json::Value) -> Result<()> {
    kubectl::apply(cluster, std::slice::from_ref(object))?;
    proxy::wait(cluster)?;
    let commands = documents::commands("migration.md", "Back to kube-proxy")?;
    remove_tables(cluster, commands.get(1..).unwrap_or_default())
}

/// An address of the API server that works without Services.
fn server(cluster: &Cluster) -> Result<String> {
    Ok(format!("https://{}:6443", cluster.control_plane()?.ipv4()))
}

/// A copy of manifests/ in which the two values are set that install.md names.
fn manifests_for(cluster: &Cluster) -> Result<TempDir> {
    let copy = tempfile::tempdir().context("making a directory for manifests")?;
    let mut cp = Command::new("cp");
    ensure!(
        cp.arg("-r").arg(workspace::root().join("manifests")).arg(copy.path()).status()?.success(),
        "copying manifests"
    );
    let replace = |file: &str, from: &str, to: &str| -> Result<()> {
        let path = copy.path().join("manifests/base").join(file);
        replace_in(&path, from, to)
    };
    replace("config.conf", "clusterCIDR: 10.244.0.0/16", "clusterCIDR: 10.244.0.0/16,fd00:10:244::/56")?;
    replace("kubeconfig.conf", "https://control-plane.example:6443", &server(cluster)?)?;
    Ok(copy)
}

fn replace_in(path: &Path, from: &str, to: &str) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    ensure!(text.contains(from), "{} has no {from}", path.display());
    fs::write(path, text.replace(from, to)).with_context(|| path.display().to_string())
}
