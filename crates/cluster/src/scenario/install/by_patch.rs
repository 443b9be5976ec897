//! Into kubeadm's DaemonSet, as docs/install/kubeadm.md has it, and back to kube-proxy as docs/migration-back.md has it.

use anyhow::{Context as _, Result, ensure};

use super::{TAG, back, check, check_all, edit_configuration, plugins, prepare, wait_for_configuration};
use crate::{documents, state::Cluster};

/// The period in kubeadm's ConfigMap, where 0 is the default, and another.
const SYNC_PERIOD: &str = " syncPeriod: 0s";
const OTHER_SYNC_PERIOD: &str = " syncPeriod: 29s";

/// One node first, then all; another configuration; and back.
pub(crate) fn there_and_back(cluster: &Cluster) -> Result<()> {
    let under_load = prepare(cluster)?;
    before_you_begin(cluster)?;
    let old_image = under_load.during(cluster, || install(cluster))?;
    let configured = under_load.during(cluster, || change_the_configuration(cluster));
    // Others begin with the one of before.
    let restored = edit_configuration(OTHER_SYNC_PERIOD, SYNC_PERIOD);
    configured.and(restored)?;
    under_load.during(cluster, || back::node_by_node(cluster, &old_image))
}

/// What an operator looks at before anything changes.
fn before_you_begin(cluster: &Cluster) -> Result<()> {
    let words = [("REGISTRY", "registry.example")];
    for command in documents::commands("install.md", "Before you begin", &words)? {
        // With 1 there are warnings.
        let plugins = plugins()?.display().to_string();
        let report = documents::run(&format!("PATH=$PATH:{plugins}; {command} || test $? = 1"))?;
        let all = format!("all {} nodes:", cluster.nodes.len());
        ensure!(report.starts_with(&all) && !report.contains("  problem "), "{report}");
    }
    Ok(())
}

/// The image of before.
fn install(cluster: &Cluster) -> Result<String> {
    let first = cluster.first_worker()?;
    let words = [("=NODE", &*format!("={}", first.name))];
    let commands = documents::commands("install/kubeadm.md", "Change", &words)?;
    let image_now =
        commands.iter().find(|command| command.contains("{..image}")).context("no command for the image")?;
    let old_image = documents::run(image_now)?;
    for command in &commands {
        documents::run(command)?;
        if command.contains("one-node.yaml") {
            external_ips()?;
        }
        if command.contains("delete pod") {
            check(first, "kube-proxy", TAG)?;
        }
    }
    check_all(cluster, "kube-proxy", TAG)?;
    Ok(old_image)
}

/// What docs/migration.md has for external IPs: two commands that list them, and the flag.
fn external_ips() -> Result<()> {
    documents::run_all(&documents::commands("migration.md", "Before you begin", &[])?)
}

/// kubeadm's ConfigMap keeps its name: the daemons end by themselves when the kubelets have its new text.
fn change_the_configuration(cluster: &Cluster) -> Result<()> {
    edit_configuration(SYNC_PERIOD, OTHER_SYNC_PERIOD)?;
    wait_for_configuration(cluster, "29s")?;
    check_all(cluster, "kube-proxy", TAG)
}
