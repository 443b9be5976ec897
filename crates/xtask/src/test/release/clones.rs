//! Clones of this commit, in which there is a release.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use guest::{programs::run, workspace};

use super::VERSION;

pub(super) fn make(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("git").args(["clone", "--quiet", "--no-hardlinks"]).arg(from).arg(to))
}

/// Commits a changelog with a section for the version, if it has none yet; the commit.
pub(super) fn name_the_version(clone: &Path) -> Result<String> {
    let path = clone.join("CHANGELOG.md");
    let changelog = fs::read_to_string(&path).context("reading CHANGELOG.md")?;
    if !changelog.contains(&format!("\n## [{VERSION}] - ")) {
        let named = changelog.replacen("## [Unreleased]", &format!("## [{VERSION}] - 2000-01-01"), 1);
        fs::write(&path, named).context("writing CHANGELOG.md")?;
        let author = ["-c", "user.name=test", "-c", "user.email=test@example.com"];
        let mut commit = Command::new("git");
        run(commit.arg("-C").arg(clone).args(author).args(["commit", "--quiet", "--all", "--message=Try"]))?;
    }
    let output = Command::new("git").arg("-C").arg(clone).args(["rev-parse", "HEAD"]).output();
    Ok(String::from_utf8(output.context("starting git")?.stdout)?.trim().to_owned())
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
    let notes = clone.join("target/gate");
    fs::create_dir_all(&notes).context("making a directory for the note")?;
    fs::write(notes.join(commit), "").context("noting that the gate has passed")
}
