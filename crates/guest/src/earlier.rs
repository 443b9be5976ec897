//! The program of the version before, which the present one has to go together with.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context as _, ensure};

use crate::{cache, programs::run, workspace};

/// What stands for it until there is a tag: a commit of the days before the API server was asked for protobuf.
const UNTIL_THERE_IS_A_TAG: &str = "24c03c91f26459a45568e5c66c24934e793099ca";

/// Where the program of the version before is, built once.
pub fn program() -> anyhow::Result<PathBuf> {
    let version = version()?;
    let cache = cache::directory("earlier")?;
    let lock = fs::File::create(cache.join("lock")).context("creating a lock file")?;
    lock.lock().context("waiting for another xtask's build")?;
    let finished = cache.join(&version);
    if finished.is_file() {
        return Ok(finished);
    }
    eprintln!("xtask: building kube-ipvs of {version} (once; it takes minutes)");
    let building = cache::workplace(&cache)?;
    let sources = building.path().join("sources");
    run(Command::new("git")
        .args(["clone", "--quiet", "--no-checkout"])
        .arg(workspace::root())
        .arg(&sources))?;
    run(Command::new("git").arg("-C").arg(&sources).args(["checkout", "--quiet", "--detach", &version]))
        .with_context(|| format!("is the history of this clone whole? It lacks {version}"))?;
    let mut build = workspace::cargo();
    build.current_dir(&sources).args(["build", "--quiet", "--locked", "--bin", "kube-ipvs"]);
    run(&mut build)?;
    let built = sources.join("target/debug/kube-ipvs");
    ensure!(built.is_file(), "cargo built no kube-ipvs of {version}");
    fs::rename(built, &finished).with_context(|| format!("moving it to {}", finished.display()))?;
    Ok(finished)
}

/// What git knows the version before by: the newest tag before this commit. A clone that lacks it has no stand-in.
pub fn version() -> anyhow::Result<String> {
    if let Some(tag) = tag() {
        return Ok(tag);
    }
    let changelog =
        fs::read_to_string(workspace::root().join("CHANGELOG.md")).context("reading CHANGELOG.md")?;
    // The first may be what is being released.
    let released = changelog.lines().filter(|line| line.starts_with("## [")).nth(1);
    ensure!(released.is_none(), "this clone has no tag of a version before: git fetch --tags --unshallow");
    Ok(UNTIL_THERE_IS_A_TAG.to_owned())
}

fn tag() -> Option<String> {
    let mut describe = Command::new("git");
    describe.arg("-C").arg(workspace::root()).args([
        "describe",
        "--tags",
        "--abbrev=0",
        "--match=v*",
        // No version before another one, such as a release candidate.
        "--exclude=*-*",
        "HEAD^",
    ]);
    let output = describe.output().ok()?;
    let tag = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !tag.is_empty()).then_some(tag)
}
