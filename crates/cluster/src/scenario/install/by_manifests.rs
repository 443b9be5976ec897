//! As a DaemonSet of its own, by `kubectl apply -k`.

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result, bail, ensure};
use guest::{files, programs::run, workspace};
use tempfile::TempDir;

use super::{
    NEXT_TAG, REGISTRY, TAG, back, check, check_all, prepare, rolled_out, server, wait_for_configuration,
};
use crate::{documents, state::Cluster};

/// On all nodes at once; upgraded, rolled back, configured anew, and removed.
pub(crate) fn there_and_back(cluster: &Cluster) -> Result<()> {
    let under_load = prepare(cluster)?;
    let copy = manifests_for(cluster)?;
    let kube_proxy = back::to_make_again("daemonset")?;
    let mut commands = documents::commands("install.md", "Another cluster, or with Helm", &[])?;
    commands.retain(|command| !command.starts_with("helm"));
    under_load.during(cluster, || {
        for command in &commands {
            documents::run_in(copy.path(), command)?;
        }
        rolled_out()?;
        check_all(cluster, "kube-ipvs", TAG)?;
        upgrade(cluster, &copy)?;
        documents::run_in(copy.path(), "kubectl -n kube-system rollout undo daemonset/kube-ipvs")?;
        rolled_out()?;
        check_all(cluster, "kube-ipvs", TAG)
    })?;
    under_load.during(cluster, || change_the_configuration(cluster, &copy))?;
    under_load.during(cluster, || {
        documents::run_in(copy.path(), "kubectl delete -k manifests")?;
        back::kube_proxy_returns(cluster, &kube_proxy)
    })
}

/// One node after the other, by a label; at last the label is no longer asked for.
pub(crate) fn node_by_node(cluster: &Cluster) -> Result<()> {
    let under_load = prepare(cluster)?;
    let copy = manifests_for(cluster)?;
    let kube_proxy = back::to_make_again("daemonset")?;
    let commands = documents::commands("install.md", "Node by node", &[("manifests/talos", "manifests")])?;
    let is_for_a_node = |command: &&String| command.contains("NODE");
    let (of_a_node, others): (Vec<_>, Vec<_>) = commands.iter().partition(is_for_a_node);
    let [orphan, apply_with_label, apply] = others[..] else { bail!("Node by node has other commands") };
    under_load.during(cluster, || {
        documents::run_in(copy.path(), orphan)?;
        documents::run_in(copy.path(), apply_with_label)?;
        for node in &cluster.nodes {
            for command in &of_a_node {
                documents::run_in(copy.path(), &command.replace("NODE", &node.name))?;
            }
            check(node, "kube-ipvs", TAG)?;
        }
        documents::run_in(copy.path(), apply)?;
        rolled_out()?;
        check_all(cluster, "kube-ipvs", TAG)
    })?;
    under_load.during(cluster, || {
        documents::run_in(copy.path(), "kubectl delete -k manifests")?;
        back::kube_proxy_returns(cluster, &kube_proxy)
    })?;
    documents::run_in(copy.path(), "kubectl label node --all node-proxy-").map(drop)
}

/// Another configuration, on one node first, then on all.
fn change_the_configuration(cluster: &Cluster, copy: &TempDir) -> Result<()> {
    let base = copy.path().join("manifests/base");
    // What was rolled back is what is applied.
    replace_in(&base.join("kustomization.yaml"), &format!("newTag: {NEXT_TAG}"), &format!("newTag: {TAG}"))?;
    replace_in(&base.join("config.conf"), "syncPeriod: 30s", "syncPeriod: 29s")?;
    let first = cluster.first_worker()?;
    let words = [("=NODE", &*format!("={}", first.name)), ("manifests/k3s", "manifests")];
    for command in documents::commands("install.md", "Change the configuration", &words)? {
        documents::run_in(copy.path(), &command)?;
        if command.contains("delete pod") {
            check(first, "kube-ipvs", TAG)?;
        }
    }
    wait_for_configuration(cluster, "29s")?;
    check_all(cluster, "kube-ipvs", TAG)
}

/// One node first, then all, to the next version.
fn upgrade(cluster: &Cluster, copy: &TempDir) -> Result<()> {
    let first = cluster.first_worker()?;
    let words =
        [REGISTRY, (TAG, NEXT_TAG), ("=NODE", &*format!("={}", first.name)), ("manifests/k3s", "manifests")];
    for command in documents::commands("install.md", "Upgrade", &words)? {
        if command.starts_with("helm") {
            break;
        }
        if command.contains("apply -k") {
            let path = copy.path().join("manifests/base/kustomization.yaml");
            replace_in(&path, &format!("newTag: {TAG}"), &format!("newTag: {NEXT_TAG}"))?;
        }
        documents::run_in(copy.path(), &command)?;
        if command.contains("delete pod") {
            check(first, "kube-ipvs", NEXT_TAG)?;
        }
    }
    check_all(cluster, "kube-ipvs", NEXT_TAG)
}

/// A copy of manifests/ in which the two values are set that install.md names.
fn manifests_for(cluster: &Cluster) -> Result<TempDir> {
    let copy = tempfile::tempdir().context("making a directory for manifests")?;
    run(Command::new("cp").arg("-r").arg(workspace::root().join("manifests")).arg(copy.path()))?;
    let base = copy.path().join("manifests/base");
    let (subnet, subnets) = ("clusterCIDR: 10.244.0.0/16", "clusterCIDR: 10.244.0.0/16,fd00:10:244::/56");
    replace_in(&base.join("config.conf"), subnet, subnets)?;
    replace_in(&base.join("kubeconfig.conf"), "https://control-plane.example:6443", &server(cluster)?)?;
    Ok(copy)
}

fn replace_in(path: &Path, from: &str, to: &str) -> Result<()> {
    let text = files::read(path)?;
    ensure!(text.contains(from), "{} has no {from}", path.display());
    files::write(path, text.replace(from, to))
}

/// As a DaemonSet of its own, by the Helm chart.
///
/// Installed, upgraded, rolled back, and removed.
pub(crate) fn by_helm_there_and_back(cluster: &Cluster) -> Result<()> {
    let under_load = prepare(cluster)?;
    let kube_proxy = back::to_make_again("daemonset")?;
    let server = server(cluster)?;
    let words = [
        REGISTRY,
        ("https://10.0.0.1:6443", server.as_str()),
        // Both families, and Helm's way to write a comma in a value.
        ("10.244.0.0/16", r"'10.244.0.0/16\,fd00:10:244::/56'"),
    ];
    let install = documents::commands("install.md", "Another cluster, or with Helm", &words)?;
    let next = [REGISTRY, (&*format!("tag={TAG}"), &*format!("tag={NEXT_TAG}"))];
    let upgrade = documents::commands("install.md", "Upgrade", &next)?;
    let go_back = documents::commands("install.md", "Go back", &[])?;
    let no_kube_proxy = install.first().context("no command that removes kube-proxy")?;
    let helm = |commands: &[String], verb: &str| {
        let begins = format!("helm {verb} ");
        let found = commands.iter().find(|command| command.starts_with(&begins)).cloned();
        found.with_context(|| format!("no {begins}"))
    };
    let (install_chart, upgrade_chart) = (helm(&install, "install")?, helm(&upgrade, "upgrade")?);
    let (roll_back, uninstall) = (helm(&upgrade, "rollback")?, helm(&go_back, "uninstall")?);
    under_load.during(cluster, || {
        documents::run(no_kube_proxy)?;
        documents::run(&install_chart)?;
        rolled_out()?;
        check_all(cluster, "kube-ipvs", TAG)?;
        documents::run(&upgrade_chart)?;
        rolled_out()?;
        check_all(cluster, "kube-ipvs", NEXT_TAG)?;
        documents::run(&roll_back)?;
        rolled_out()?;
        check_all(cluster, "kube-ipvs", TAG)
    })?;
    under_load.during(cluster, || {
        documents::run(&uninstall)?;
        back::kube_proxy_returns(cluster, &kube_proxy)
    })
}
