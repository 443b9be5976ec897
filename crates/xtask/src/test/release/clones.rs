//! Clones of this commit, in which a release is made, tried as a source of crates, and made again.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use guest::{
    files,
    platform::cargo_home,
    programs::{printed, run},
    source,
    workspace::{self, CargoTool},
};

use super::VERSION;

pub(super) fn make(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("git").args(["clone", "--quiet", "--no-hardlinks"]).arg(from).arg(to))
}

/// Commits a changelog with a section for the version, if it has none yet; the commit.
pub(super) fn name_the_version(clone: &Path) -> Result<String> {
    let path = clone.join("CHANGELOG.md");
    let changelog = files::read(&path)?;
    if !changelog.contains(&format!("\n## [{VERSION}] - ")) {
        let named = changelog.replacen("## [Unreleased]", &format!("## [{VERSION}] - 2000-01-01"), 1);
        files::write(&path, named)?;
        let author = ["-c", "user.name=test", "-c", "user.email=test@example.com"];
        let mut commit = Command::new("git");
        run(commit.arg("-C").arg(clone).args(author).args(["commit", "--quiet", "--all", "--message=Try"]))?;
    }
    let commit = printed(Command::new("git").arg("-C").arg(clone).args(["rev-parse", "HEAD"]))?;
    Ok(commit.trim().to_owned())
}

/// cargo, in a clone.
pub(super) fn xtask(clone: &Path) -> Command {
    let mut command = workspace::cargo();
    command.current_dir(clone).arg("xtask");
    command
}

/// Fails unless the command refuses to make a release, for this reason.
pub(super) fn is_refused(clone: &Path, version: &str, reason: &str) -> Result<()> {
    let output = xtask(clone).args(["release", version]).output().context("starting cargo")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(!output.status.success() && said.contains(reason), "{said}");
    Ok(())
}

/// Notes that the gate has passed at a commit.
pub(super) fn note_gate(clone: &Path, commit: &str) -> Result<()> {
    files::write(&clone.join("target/gate").join(commit), "")
}

const PACKAGES: [&str; 4] = ["--package", "kube-ipvs-netlink", "--package", "linux-ipvs"];

/// What says whether a change breaks those who use a crate.
const SEMVER_CHECKS: CargoTool = CargoTool { name: "cargo-semver-checks", version: "0.51.0", arguments: &[] };

/// The crates that are for others.
pub(super) fn can_be_published(clone: &Path) -> Result<()> {
    let mut publish = workspace::cargo();
    run(publish.current_dir(clone).args(["publish", "--dry-run", "--quiet"]).args(PACKAGES))
}

/// Fails if they changed more since the version before than their own versions say.
pub(super) fn keep_what_they_promise(clone: &Path) -> Result<()> {
    let baseline = source::released_version()?.unwrap_or_else(|| {
        println!("nothing is promised before the first version: the crates are compared with themselves");
        "HEAD".to_owned()
    });
    let mut check = Command::new(SEMVER_CHECKS.installed()?);
    check.current_dir(clone).args(["semver-checks", "--baseline-rev", &baseline]).args(PACKAGES);
    run(&mut check)
}

/// With another umask, and another name of the machine.
const ELSEWHERE: &str = r#"umask 0077; hostname elsewhere; exec "$@""#;

/// Makes the release again: in another directory, later, with one process at a time, and with cargo's sources at
/// another place. Fails unless every file has the same checksum.
pub(super) fn is_equal(clone: &Path, commit: &str, place: &Path) -> Result<()> {
    let other = place.join("another/directory");
    make(clone, &other)?;
    note_gate(&other, commit)?;
    let release = xtask(&other);
    let mut again = Command::new("unshare");
    again.args(["--uts", "sh", "-c", ELSEWHERE, "sh"]).arg(release.get_program()).args(release.get_args());
    again.args(["release", VERSION]).current_dir(&other);
    again.env("CARGO_BUILD_JOBS", "1").env("CARGO_HOME", linked_cargo_home(place)?);
    run(&mut again)?;

    let checksums = |root: &Path| files::read(&root.join(format!("target/release-{VERSION}/SHA256SUMS")));
    let (one, another) = (checksums(clone)?, checksums(&other)?);
    let different: Vec<&str> =
        one.lines().filter(|line| !another.lines().any(|other| other == *line)).collect();
    ensure!(!one.is_empty() && one == another, "not the same in both: {different:#?}");
    Ok(())
}

/// Cargo's home, at another place.
fn linked_cargo_home(place: &Path) -> Result<PathBuf> {
    let other = place.join("cargo-home");
    fs::create_dir_all(&other).context("making another home for cargo")?;
    for entry in files::list(&cargo_home()?)? {
        symlink(&entry, other.join(files::name(&entry))).context("linking cargo's home")?;
    }
    Ok(other)
}
