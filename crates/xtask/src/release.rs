//! `cargo xtask release VERSION`: everything that is published, in `target/release-VERSION`.
//!
//! The sources decide every byte of it but the signatures. CONTRIBUTING.md has the way from
//! here to those who install it.

mod artifacts;
mod readiness;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, ensure};
use guest::{archive::sha256, platform::Platform, source::Source, workspace};

use crate::{
    files, gate, image, package,
    provenance::{self, Subject},
    usr_share,
};

/// The command line of `cargo xtask release`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The version, as Cargo.toml and CHANGELOG.md have it
    version: String,
    /// Sign with cosign by this key: what its `--key` takes, such as a file or a key of a cloud
    #[arg(long, value_name = "KEY")]
    cosign_key: Option<String>,
    /// Sign with minisign by the secret key in this file
    #[arg(long, value_name = "FILE")]
    minisign_key: Option<PathBuf>,
}

/// Makes all of it, if the sources are ready to be released.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let version = args.version.as_str();
    let source = Source::here().context("git does not know these sources: only a commit can be released")?;
    readiness::ensure(version, &source)?;
    gate::ensure_passed(&source)?;

    let directory = workspace::root().join(format!("target/release-{version}"));
    files::make_anew(&directory)?;
    image::write(&Platform::ALL, &directory)?;
    let usr_share = usr_share::make()?;
    for platform in Platform::ALL {
        artifacts::write_program(version, platform, usr_share.path(), &directory)?;
        package::write(package::Version::released(version), platform, &source, usr_share.path(), &directory)?;
    }
    artifacts::write_chart(version, &directory)?;
    artifacts::write_manifests(version, &directory)?;
    ensure!(Source::here().as_ref() == Some(&source), "the sources changed while the release was made");
    write_provenance(version, &source, &directory)?;
    let checksums = artifacts::write_checksums(&directory)?;
    write_signatures(&checksums, args.cosign_key.as_deref(), args.minisign_key.as_deref())?;
    for file in files::list(&directory)? {
        println!("{}", file.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes how all that is there so far was built.
fn write_provenance(version: &str, source: &Source, directory: &Path) -> Result<()> {
    let mut subjects = Vec::new();
    for file in files::list(directory)? {
        let bytes = fs::read(&file).with_context(|| file.display().to_string())?;
        subjects.push(Subject { name: files::name(&file), sha256: sha256(&bytes)? });
    }
    let command = format!("cargo xtask release {version}");
    let statement = provenance::statement(source, &command, &Platform::ALL, &subjects)?;
    let file = directory.join(format!("kube-ipvs-{version}.provenance.json"));
    files::write(&file, (statement + "\n").as_bytes())
}

/// Signs the file with the keys that were named.
fn write_signatures(checksums: &Path, cosign_key: Option<&str>, minisign_key: Option<&Path>) -> Result<()> {
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
