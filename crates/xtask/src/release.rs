//! `cargo xtask release VERSION`: everything that is published, in `target/release-VERSION`.
//!
//! The sources decide every byte of it but the signatures. CONTRIBUTING.md has the way from
//! here to those who install it.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, bail, ensure};
use guest::{
    files,
    go::CLIENTS,
    platform::{self, Platform},
    programs::{printed, run as run_program},
    source::Source,
    workspace,
};

use crate::{gate, image, package, plugin, provenance, usr_share};

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
    /// Add the plugin for macOS: the programs in this directory, which .github/workflows/release.yml builds
    #[arg(long, value_name = "DIRECTORY")]
    plugins: Option<PathBuf>,
}

/// Makes all of it, if the sources are ready to be released.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let version = args.version.as_str();
    let source = Source::here().context("git does not know these sources: only a commit can be released")?;
    ensure_ready(version, &source)?;
    gate::ensure_passed(&source)?;

    let directory = workspace::root().join(format!("target/release-{version}"));
    files::make_anew(&directory)?;
    image::write(&Platform::ALL, &directory)?;
    let usr_share = usr_share::make()?;
    for platform in Platform::ALL {
        write_program(version, platform, usr_share.path(), &directory)?;
        package::write(package::Version::released(version), platform, &source, usr_share.path(), &directory)?;
        plugin::write(version, platform, &directory)?;
    }
    write_chart(version, &directory)?;
    write_manifests(version, &directory)?;
    ensure!(Source::here().as_ref() == Some(&source), "the sources changed while the release was made");
    write_provenance(version, &source, &directory)?;
    // The provenance is that of what was built here.
    if let Some(plugins) = &args.plugins {
        plugin::write_others(version, plugins, &directory)?;
    }
    plugin::write_manifest(version, &checksums(&directory)?, &directory)?;
    let checksums = write_checksums(&directory)?;
    write_signatures(&checksums, args.cosign_key.as_deref(), args.minisign_key.as_deref())?;
    for file in files::list(&directory)? {
        println!("{}", file.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes how all that is there so far was built.
fn write_provenance(version: &str, source: &Source, directory: &Path) -> Result<()> {
    let command = format!("cargo xtask release {version}");
    let statement = provenance::statement(source, &command, &Platform::ALL, &checksums(directory)?)?;
    let file = directory.join(format!("kube-ipvs-{version}.provenance.json"));
    files::write(&file, statement + "\n")
}

/// Signs the file with the keys that were named.
fn write_signatures(checksums: &Path, cosign_key: Option<&str>, minisign_key: Option<&Path>) -> Result<()> {
    if let Some(key) = cosign_key {
        // SHA256SUMS.cosign.bundle. No entry in a public log: the key is what a reader trusts. Instead of these flags
        // cosign
        // 3.1 wants a configuration that names no log; with one it asks the network for the public authority's keys.
        let mut cosign = Command::new("cosign");
        cosign.args(["sign-blob", "--yes", "--key", key]);
        cosign.args(["--use-signing-config=false", "--tlog-upload=false"]);
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

/// Writes `kube-ipvs-VERSION-linux-ARCH.tar.gz`. In it is one directory of that name, laid out as `/usr` is.
fn write_program(version: &str, platform: Platform, usr_share: &Path, directory: &Path) -> Result<()> {
    let name = format!("kube-ipvs-{version}-linux-{}", platform.architecture());
    let root = tempfile::tempdir().context("making a directory for an archive")?;
    let top = root.path().join(&name);
    files::copy(&platform::built_program(platform), &top.join("bin/kube-ipvs"))?;
    // kubectl finds its plugin under this name.
    symlink("kube-ipvs", top.join("bin/kubectl-ipvs")).context("linking kubectl-ipvs")?;
    run_program(Command::new("cp").arg("-r").arg(usr_share).arg(top.join("share")))?;
    let file = directory.join(format!("{name}.tar.gz"));
    files::write(&file, files::gzip(&files::tar(root.path())?)?)
}

/// Writes `kube-ipvs-VERSION.tgz`, as `helm package` would but without the time.
fn write_chart(version: &str, directory: &Path) -> Result<()> {
    let root = tempfile::tempdir().context("making a directory for the chart")?;
    // Of the commit: files that git ignores may lie beside those that it knows.
    let committed = root.path().join("committed.tar");
    let mut archive = Command::new("git");
    archive.current_dir(workspace::root().join("manifests/helm")).args(["archive", "--output"]);
    run_program(archive.arg(&committed).args(["HEAD", "kube-ipvs"]))?;
    run_program(Command::new("tar").arg("-xf").arg(&committed).arg("-C").arg(root.path()))?;
    fs::remove_file(&committed).context("removing what git wrote")?;
    let file = directory.join(format!("kube-ipvs-{version}.tgz"));
    files::write(&file, files::gzip(&files::tar(root.path())?)?)
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
fn write_manifests(version: &str, directory: &Path) -> Result<()> {
    let kubectl = CLIENTS.program("kubectl")?;
    for (kustomization, name) in RENDERED {
        let mut kustomize = Command::new(&kubectl);
        kustomize.arg("kustomize").arg(workspace::root().join("manifests").join(kustomization));
        let manifests = printed(&mut kustomize).with_context(|| format!("manifests/{kustomization}"))?;
        files::write(&directory.join(format!("kube-ipvs-{version}-{name}.yaml")), manifests)?;
    }
    Ok(())
}

/// Writes `SHA256SUMS` for the files of a directory, as `sha256sum --check` reads it.
fn write_checksums(directory: &Path) -> Result<PathBuf> {
    let sums = checksums(directory)?;
    let lines: Vec<String> = sums.iter().map(|(name, sha256)| format!("{sha256}  {name}\n")).collect();
    let file = directory.join("SHA256SUMS");
    files::write(&file, lines.concat())?;
    Ok(file)
}

/// The files of a directory, with their SHA-256.
fn checksums(directory: &Path) -> Result<Vec<(String, String)>> {
    let files = files::list(directory)?.into_iter();
    files.map(|file| Ok((files::name(&file), files::sha256(&files::bytes(&file)?)?))).collect()
}

/// Fails with the first thing that is missing.
fn ensure_ready(version: &str, source: &Source) -> Result<()> {
    let read = |name: &str| files::read(&workspace::root().join(name));
    ensure!(
        source.is_clean,
        "there are changes that are not committed, or files that git does not know (git status)"
    );
    names_version("CHANGELOG.md", &read("CHANGELOG.md")?, version)?;
    is_the_version(version, env!("CARGO_PKG_VERSION"), &read("manifests/helm/kube-ipvs/Chart.yaml")?)
}

/// Fails unless the workspace and the Helm chart have this version.
fn is_the_version(version: &str, own: &str, chart: &str) -> Result<()> {
    ensure!(version == own, "Cargo.toml has the version {own}, not {version}");
    for field in ["version", "appVersion"] {
        let line = format!("{field}: {version}");
        ensure!(chart.lines().any(|has| has == line), "manifests/helm/kube-ipvs/Chart.yaml lacks {line:?}");
    }
    Ok(())
}

/// Fails unless the changelog has a section for the version, with its day and at least one change.
fn names_version(name: &str, changelog: &str, version: &str) -> Result<()> {
    let heading = format!("## [{version}] - ");
    let mut sections = changelog.split("\n## ").skip(1);
    let Some(section) = sections.find(|section| format!("## {section}").starts_with(&heading)) else {
        bail!("{name} has no section that begins with {heading:?} and the day");
    };
    let day = section.lines().next().and_then(|line| line.rsplit(' ').next()).unwrap_or_default();
    let is_day = day.len() == 10 && day.split('-').all(|part| part.parse::<u32>().is_ok());
    ensure!(is_day, "{name} has {version} without a day, such as {heading}2027-01-31");
    ensure!(section.lines().any(|line| line.starts_with("- ")), "{name} names no change in {version}");
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

    use super::*;

    #[test]
    fn changelog_without_the_version_its_day_or_a_change_is_refused() {
        let names = |changelog: &str| {
            let changelog = format!("# Changelog\n\n## [Unreleased]\n\n- Later.\n{changelog}");
            names_version("CHANGELOG.md", &changelog, "1.2.3").map_err(|error| error.to_string())
        };
        names("\n## [1.2.3] - 2027-01-31\n\n- A change.\n").unwrap();
        assert!(names("\n## [1.2.4] - 2027-01-31\n\n- A change.\n").unwrap_err().contains("no section"));
        assert!(names("\n## [1.2.3] - soon\n\n- A change.\n").unwrap_err().contains("without a day"));
        let empty = "\n## [1.2.3] - 2027-01-31\n\n## [1.2.2] - 2027-01-01\n\n- A change.\n";
        assert!(names(empty).unwrap_err().contains("no change"));
    }

    #[test]
    fn changed_sources_are_refused() {
        let source = Source { commit: String::new(), seconds: 0, time: String::new(), is_clean: false };
        let refused = ensure_ready(env!("CARGO_PKG_VERSION"), &source).unwrap_err().to_string();
        assert!(refused.contains("git status"), "{refused}");
    }

    #[test]
    fn another_version_of_the_workspace_or_the_chart_is_refused() {
        let chart = "apiVersion: v2\nversion: 1.2.3\nappVersion: 1.2.3\n";
        let is = |version, own, chart: &str| {
            is_the_version(version, own, chart).map_err(|error| error.to_string())
        };
        assert_eq!(is("1.2.3", "1.2.3", chart), Ok(()));
        assert!(is("1.2.3", "1.2.2", chart).unwrap_err().contains("Cargo.toml"));
        assert!(
            is("1.2.3", "1.2.3", &chart.replace("appVersion: 1.2.3", "")).unwrap_err().contains("appVersion")
        );
    }
}
