//! The same commit, built again under other circumstances.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use guest::image_program::Platform;
use guest::programs::run;
use serde_json::Value;

use super::clones::{self, xtask};
use super::{VERSION, manifests, printed};

/// Builds this machine's architecture again: in another directory, later, with one process at a time, and with cargo's
/// sources at another place.
pub(super) fn is_equal(clone: &Path, place: &Path) -> Result<()> {
    let other = place.join("somewhere/else");
    clones::make(clone, &other)?;
    let mut build = xtask(&other);
    build.args(["image", "--platform", Platform::HERE.architecture()]);
    build.env("CARGO_BUILD_JOBS", "1").env("CARGO_HOME", linked_cargo_home(place)?);
    run(&mut build)?;

    let built = |root: &Path| root.join("target").join(Platform::HERE.target()).join("release/kube-ipvs");
    let programs = [built(clone), built(&other)];
    let [one, another] =
        programs.map(|program| fs::read(&program).with_context(|| program.display().to_string()));
    ensure!(one? == another?, "the programs differ");
    let archive = format!("kube-ipvs-{VERSION}.oci.tar");
    let of_release = index_of(&clone.join(format!("target/release-{VERSION}")).join(&archive))?;
    let of_other = index_of(&other.join("target/image").join(&archive))?;
    ensure!(!of_other.is_empty(), "the other image is empty");
    for manifest in of_other {
        ensure!(of_release.contains(&manifest), "the release lacks {manifest}");
    }
    Ok(())
}

/// The manifests of the image in an archive.
fn index_of(archive: &Path) -> Result<Vec<Value>> {
    let read = |file: &str| printed(Command::new("tar").arg("-xOf").arg(archive).arg(file));
    let named = manifests(&read("index.json")?)?;
    let digest = named.first().and_then(|image| image.get("digest")?.as_str());
    let digest = digest.with_context(|| format!("{} has no image", archive.display()))?;
    manifests(&read(&format!("blobs/{}", digest.replace(':', "/")))?)
}

/// Cargo's home, at another place.
fn linked_cargo_home(place: &Path) -> Result<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo"))).context("cargo has no home")?;
    let other = place.join("cargo-home");
    fs::create_dir_all(&other).context("making another home for cargo")?;
    for entry in fs::read_dir(&home).with_context(|| home.display().to_string())? {
        let entry = entry?;
        symlink(entry.path(), other.join(entry.file_name())).context("linking cargo's home")?;
    }
    Ok(other)
}
