//! Whether every test has passed at a commit: `cargo xtask test` notes it, `cargo xtask release` wants it.

use std::{fs, io::ErrorKind, path::PathBuf, process::Command};

use anyhow::{Context as _, Result, ensure};
use guest::{files, source::Source, workspace};

/// Where it is noted: a file for each commit, with the counts of the tests.
fn note(source: &Source) -> PathBuf {
    workspace::root().join("target/gate").join(&source.commit)
}

/// Takes back what was noted of these sources before, because every test runs once more.
pub(crate) fn withdraw(source: Option<&Source>) -> Result<()> {
    match source.map(|source| fs::remove_file(note(source))) {
        Some(Err(error)) if error.kind() != ErrorKind::NotFound => {
            Err(error).context("removing the gate's note")
        }
        _ => Ok(()),
    }
}

/// Notes that all tests have passed, of the sources that were there `before`. Of changed ones nothing is noted.
pub(crate) fn note_passed(before: Option<&Source>, counts: &str) -> Result<()> {
    let Some(source) = before.filter(|source| source.is_clean && Source::here().as_ref() == Some(*source))
    else {
        return Ok(());
    };
    files::write(&note(source), counts)
}

/// Runs the gate, unless it has passed at this commit.
pub(crate) fn ensure_passed(source: &Source) -> Result<()> {
    if note(source).is_file() {
        return Ok(());
    }
    eprintln!(
        "xtask: every test runs first, because target/gate has no note that they passed at this commit"
    );
    let status = Command::new(workspace::root().join(".ci/run")).status().context("starting .ci/run")?;
    ensure!(status.success(), "the gate (.ci/run) failed: nothing is released");
    ensure!(note(source).is_file(), "the gate passed, but the sources changed meanwhile");
    Ok(())
}
