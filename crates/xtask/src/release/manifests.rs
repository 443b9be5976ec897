//! The manifests for each distribution, as one file for `kubectl apply -f`.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use guest::{go::clients, workspace};

use crate::files;

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
pub(super) fn write(version: &str, directory: &Path) -> Result<()> {
    let kubectl = clients::MODULE.built()?.join("kubectl");
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
