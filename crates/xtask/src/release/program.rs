//! The program by itself: an archive with what goes with it.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use anyhow::{Context as _, Result};
use guest::{archive, image_program, platform::Platform, programs::run};

use crate::files;

/// Writes `kube-ipvs-VERSION-linux-ARCH.tar.gz`. In it is one directory of that name, laid out as `/usr` is.
pub(super) fn write(version: &str, platform: Platform, usr_share: &Path, directory: &Path) -> Result<()> {
    let name = format!("kube-ipvs-{version}-linux-{}", platform.architecture());
    let root = tempfile::tempdir().context("making a directory for an archive")?;
    let top = root.path().join(&name);
    let programs = top.join("bin");
    fs::create_dir_all(&programs).context("making a directory for programs")?;
    let program = programs.join("kube-ipvs");
    fs::copy(image_program::built(platform), &program).context("copying kube-ipvs")?;
    // kubectl finds its plugin under this name.
    symlink("kube-ipvs", programs.join("kubectl-ipvs")).context("linking kubectl-ipvs")?;
    run(Command::new("cp").arg("-r").arg(usr_share).arg(top.join("share")))?;
    let file = directory.join(format!("{name}.tar.gz"));
    files::write(&file, &archive::gzip(&archive::tar(root.path())?)?)
}
