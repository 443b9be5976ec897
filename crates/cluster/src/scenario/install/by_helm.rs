//! As a DaemonSet of its own, by the Helm chart.

use anyhow::{Context as _, Result};
use guest::workspace;

use super::{NEXT_TAG, REGISTRY, TAG, back, check_all, prepare, rolled_out, server};
use crate::{documents, state::Cluster};

/// Installed, upgraded, rolled back, and removed.
pub(crate) fn there_and_back(cluster: &Cluster) -> Result<()> {
    let under_load = prepare(cluster)?;
    let kube_proxy = back::to_make_again("daemonset")?;
    let server = server(cluster)?;
    let words = [
        REGISTRY,
        ("https://10.0.0.1:6443", server.as_str()),
        // Both families, and Helm's way to write a comma in a value.
        ("10.244.0.0/16", r"'10.244.0.0/16\,fd00:10:244::/56'"),
    ];
    let root = workspace::root();
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
        documents::run(&root, no_kube_proxy)?;
        documents::run(&root, &install_chart)?;
        rolled_out()?;
        check_all(cluster, "kube-ipvs", TAG)?;
        documents::run(&root, &upgrade_chart)?;
        rolled_out()?;
        check_all(cluster, "kube-ipvs", NEXT_TAG)?;
        documents::run(&root, &roll_back)?;
        rolled_out()?;
        check_all(cluster, "kube-ipvs", TAG)
    })?;
    under_load.during(cluster, || {
        documents::run(&root, &uninstall)?;
        back::kube_proxy_returns(cluster, &kube_proxy)
    })
}
