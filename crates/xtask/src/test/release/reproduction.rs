//! The same commit, released again under other circumstances.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use guest::programs::run;

use super::{
    VERSION,
    clones::{self, xtask},
};

/// With another umask, and another name of the machine.
const ELSEWHERE: &str = r#"umask 0077; hostname elsewhere; exec "$@""#;

/// Makes the release again: in another directory, later, with one process at a time, and with cargo's sources at another
/// place. Fails unless every file has the same checksum.
pub(super) fn is_equal(clone: &Path, commit: &str, place: &Path) -> Result<()> {
    let other = place.join("somewhere/else");
    clones::make(clone, &other)?;
    clones::note_gate(&other, commit)?;
    let release = xtask(&other);
    let mut again = Command::new("unshare");
    again.args(["--uts", "sh", "-c", ELSEWHERE, "sh"]).arg(release.get_program()).args(release.get_args());
    again.args(["release", VERSION]).current_dir(&other);
    again.env("CARGO_BUILD_JOBS", "1").env("CARGO_HOME", linked_cargo_home(place)?);
    run(&mut again)?;

    let checksums = |root: &Path| {
        let file = root.join(format!("target/release-{VERSION}/SHA256SUMS"));
        fs::read_to_string(&file).with_context(|| file.display().to_string())
    };
    let (one, another) = (checksums(clone)?, checksums(&other)?);
    let different: Vec<&str> =
        one.lines().filter(|line| !another.lines().any(|other| other == *line)).collect();
    ensure!(!one.is_empty() && one == another, "not the same in both: {different:#?}");
    Ok(())
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
