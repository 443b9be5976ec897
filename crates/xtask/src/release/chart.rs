//! The Helm chart, packaged.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use guest::archive;
use guest::programs::run;
use guest::workspace;

use crate::files;

/// Writes `kube-ipvs-VERSION.tgz`, as `helm package` would but without the time.
pub(super) fn write(version: &str, directory: &Path) -> Result<()> {
    let root = tempfile::tempdir().context("making a directory for the chart")?;
    let chart = workspace::root().join("manifests/helm/kube-ipvs");
    run(Command::new("cp").arg("-r").arg(chart).arg(root.path()))?;
    let file = directory.join(format!("kube-ipvs-{version}.tgz"));
    files::write(&file, &archive::gzip(&archive::tar(root.path())?)?)
}
