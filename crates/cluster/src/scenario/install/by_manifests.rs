//! As a DaemonSet of its own, by `kubectl apply -k`.

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result, bail, ensure};
use guest::{files, programs::run, workspace};
use tempfile::TempDir;

use super::{NEXT_TAG, TAG, back, check, check_all, prepare, rolled_out, server, wait_for_configuration};
use crate::{documents, state::Cluster};

/// On all nodes at once; upgraded, rolled back, configured anew, and removed.
pub(crate) fn there_and_back(cluster: &Cluster) -> Result<()> {
    let under_load = prepare(cluster)?;
    let copy = manifests_for(cluster)?;
    let kube_proxy = back::to_make_again("daemonset")?;
    let commands = documents::commands("install/manifests.md", "Change", &[])?;
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
    let commands = documents::commands("install/node-by-node.md", "Steps", &[])?;
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
    one_node_then_all(cluster, copy, TAG)?;
    wait_for_configuration(cluster, "29s")
}

/// To the next version.
fn upgrade(cluster: &Cluster, copy: &TempDir) -> Result<()> {
    let path = copy.path().join("manifests/base/kustomization.yaml");
    replace_in(&path, &format!("newTag: {TAG}"), &format!("newTag: {NEXT_TAG}"))?;
    one_node_then_all(cluster, copy, NEXT_TAG)
}

/// What docs/install/upgrade.md has for whatever has changed in the manifests.
fn one_node_then_all(cluster: &Cluster, copy: &TempDir, tag: &str) -> Result<()> {
    let first = cluster.first_worker()?;
    let words = [("=NODE", &*format!("={}", first.name))];
    for command in documents::commands("install/upgrade.md", "One node, then all", &words)? {
        documents::run_in(copy.path(), &command)?;
        if command.contains("delete pod") {
            check(first, "kube-ipvs", tag)?;
        }
    }
    check_all(cluster, "kube-ipvs", tag)
}

/// A copy of manifests/ in which the two values are set that docs/install/manifests.md names, and for Helm
/// docs/install/helm.md.
fn manifests_for(cluster: &Cluster) -> Result<TempDir> {
    let copy = tempfile::tempdir().context("making a directory for manifests")?;
    run(Command::new("cp").arg("-r").arg(workspace::root().join("manifests")).arg(copy.path()))?;
    let base = copy.path().join("manifests/base");
    let values = copy.path().join("manifests/helm/cluster.yaml");
    let (subnet, subnets) = ("clusterCIDR: 10.244.0.0/16", "clusterCIDR: 10.244.0.0/16,fd00:10:244::/56");
    let (nowhere, server) = ("https://control-plane.example:6443", server(cluster)?);
    replace_in(&base.join("config.conf"), subnet, subnets)?;
    replace_in(&base.join("kubeconfig.conf"), nowhere, &server)?;
    replace_in(&values, subnet, subnets)?;
    replace_in(&values, nowhere, &server)?;
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
    let copy = manifests_for(cluster)?;
    let kube_proxy = back::to_make_again("daemonset")?;
    let section = |heading| documents::commands("install/helm.md", heading, &[]);
    let (change, roll_back, uninstall) = (section("Change")?, section("Upgrade")?, section("Go back")?);
    let run = |commands: &[String]| {
        commands.iter().try_for_each(|command| documents::run_in(copy.path(), command).map(drop))
    };
    let upgrade = change.last().context("no command that installs the chart")?;
    let chart = copy.path().join("manifests/helm/kube-ipvs/Chart.yaml");
    under_load.during(cluster, || {
        run(&change)?;
        rolled_out()?;
        check_all(cluster, "kube-ipvs", TAG)?;
        replace_in(&chart, &format!("appVersion: {TAG}"), &format!("appVersion: {NEXT_TAG}"))?;
        documents::run_in(copy.path(), upgrade)?;
        rolled_out()?;
        check_all(cluster, "kube-ipvs", NEXT_TAG)?;
        run(&roll_back)?;
        rolled_out()?;
        check_all(cluster, "kube-ipvs", TAG)
    })?;
    under_load.during(cluster, || {
        run(&uninstall)?;
        back::kube_proxy_returns(cluster, &kube_proxy)
    })
}
