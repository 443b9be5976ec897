//! The Helm chart, packaged.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use guest::archive;
use guest::programs::run;
use guest::workspace;

/// Writes `kube-ipvs-VERSION.tgz`, as `helm package` would but without the time.
pub(super) fn write(version: &str, directory: &Path) -> Result<()> {
    let root = tempfile::tempdir().context("making a directory for the chart")?;
    let chart = workspace::root().join("manifests/helm/kube-ipvs");
    run(Command::new("cp").arg("-r").arg(chart).arg(root.path()))?;
    let file = directory.join(format!("kube-ipvs-{version}.tgz"));
    fs::write(&file, archive::gzip(&archive::tar(root.path())?)?).with_context(|| file.display().to_string())
}
