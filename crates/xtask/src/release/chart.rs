//! The Helm chart, packaged.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result};
use guest::{archive, programs::run, workspace};

use crate::files;

/// Writes `kube-ipvs-VERSION.tgz`, as `helm package` would but without the time.
pub(super) fn write(version: &str, directory: &Path) -> Result<()> {
    let root = tempfile::tempdir().context("making a directory for the chart")?;
    // Of the commit: files that git ignores may lie beside those that it knows.
    let committed = root.path().join("committed.tar");
    let mut archive = Command::new("git");
    archive.current_dir(workspace::root().join("manifests/helm")).args(["archive", "--output"]);
    run(archive.arg(&committed).args(["HEAD", "kube-ipvs"]))?;
    run(Command::new("tar").arg("-xf").arg(&committed).arg("-C").arg(root.path()))?;
    fs::remove_file(&committed).context("removing what git wrote")?;
    let file = directory.join(format!("kube-ipvs-{version}.tgz"));
    files::write(&file, &archive::gzip(&archive::tar(root.path())?)?)
}
