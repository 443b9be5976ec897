//! Signatures of the checksums, and so of every file. The keys are the maintainer's, and so are the programs that use
//! them: they ask for the key's password, and know keys of clouds and of smart cards.

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};

/// Signs the file with the keys that were named.
pub(super) fn write(checksums: &Path, cosign_key: Option<&str>, minisign_key: Option<&Path>) -> Result<()> {
    if let Some(key) = cosign_key {
        // SHA256SUMS.cosign.bundle. No entry in a public log: the key is what a reader trusts. Instead of these flags cosign
        // 3.1 wants a configuration that names no log; with one it asks the network for the public authority's keys.
        let mut cosign = Command::new("cosign");
        cosign.args([
            "sign-blob",
            "--yes",
            "--key",
            key,
            "--use-signing-config=false",
            "--tlog-upload=false",
        ]);
        cosign.arg("--bundle").arg(checksums.with_extension("cosign.bundle"));
        sign(&mut cosign, checksums)?;
    }
    if let Some(key) = minisign_key {
        // SHA256SUMS.minisig.
        let mut minisign = Command::new("minisign");
        minisign.args(["-S", "-t", "kube-ipvs", "-s"]).arg(key).arg("-m");
        sign(&mut minisign, checksums)?;
    }
    Ok(())
}

fn sign(program: &mut Command, file: &Path) -> Result<()> {
    let name = program.get_program().to_string_lossy().into_owned();
    let status = program.arg(file).status().with_context(|| format!("starting {name}"))?;
    ensure!(status.success(), "{name} signed nothing ({status})");
    Ok(())
}
