//! What a release is made of beside images and packages: archives, the chart, manifests, checksums.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use guest::{
    archive,
    archive::sha256,
    go::CLIENTS,
    platform::{self, Platform},
    programs::run,
    workspace,
};

use crate::files;

/// Writes `kube-ipvs-VERSION-linux-ARCH.tar.gz`. In it is one directory of that name, laid out as `/usr` is.
pub(super) fn write_program(
    version: &str,
    platform: Platform,
    usr_share: &Path,
    directory: &Path,
) -> Result<()> {
    let name = format!("kube-ipvs-{version}-linux-{}", platform.architecture());
    let root = tempfile::tempdir().context("making a directory for an archive")?;
    let top = root.path().join(&name);
    let programs = top.join("bin");
    fs::create_dir_all(&programs).context("making a directory for programs")?;
    let program = programs.join("kube-ipvs");
    fs::copy(platform::built_program(platform), &program).context("copying kube-ipvs")?;
    // kubectl finds its plugin under this name.
    symlink("kube-ipvs", programs.join("kubectl-ipvs")).context("linking kubectl-ipvs")?;
    run(Command::new("cp").arg("-r").arg(usr_share).arg(top.join("share")))?;
    let file = directory.join(format!("{name}.tar.gz"));
    files::write(&file, &archive::gzip(&archive::tar(root.path())?)?)
}

/// Writes `kube-ipvs-VERSION.tgz`, as `helm package` would but without the time.
pub(super) fn write_chart(version: &str, directory: &Path) -> Result<()> {
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

/// The kustomizations, and what the file is for.
const RENDERED: [(&str, &str); 7] = [
    (".", "any-cluster"),
    ("kubespray", "kubespray"),
    ("k3s", "k3s"),
    ("rke2", "rke2"),
    ("talos", "talos"),
    ("preflight", "preflight"),
    ("cleanup", "cleanup"),
];

/// Writes `kube-ipvs-VERSION-DISTRIBUTION.yaml` for each. kubeadm's DaemonSet is patched, and has none.
pub(super) fn write_manifests(version: &str, directory: &Path) -> Result<()> {
    let kubectl = CLIENTS.program("kubectl")?;
    for (kustomization, name) in RENDERED {
        let mut command = Command::new(&kubectl);
        command.arg("kustomize").arg(workspace::root().join("manifests").join(kustomization));
        let output = command.stderr(Stdio::inherit()).output().context("starting kubectl")?;
        ensure!(output.status.success(), "kubectl kustomize manifests/{kustomization} failed");
        let file = directory.join(format!("kube-ipvs-{version}-{name}.yaml"));
        files::write(&file, &output.stdout)?;
    }
    Ok(())
}

/// Writes `SHA256SUMS` for the files of a directory, as `sha256sum --check` reads it.
pub(super) fn write_checksums(directory: &Path) -> Result<PathBuf> {
    let mut lines = Vec::new();
    for file in files::list(directory)? {
        let bytes = fs::read(&file).with_context(|| file.display().to_string())?;
        lines.push(format!("{}  {}\n", sha256(&bytes)?, files::name(&file)));
    }
    let checksums = directory.join("SHA256SUMS");
    files::write(&checksums, lines.concat().as_bytes())?;
    Ok(checksums)
}
