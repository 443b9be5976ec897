//! Files and directories, with errors that name them; archives and checksums that say nothing of this machine or of
//! now: the same files give the same bytes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::programs::feed;

/// The text in a file.
pub fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

/// The bytes in a file.
pub fn bytes(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| path.display().to_string())
}

/// Writes a file, and makes the directories on its way.
pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> Result<()> {
    make_way(path)?;
    fs::write(path, bytes).with_context(|| path.display().to_string())
}

/// Copies a file, and makes the directories on its way.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    make_way(to)?;
    fs::copy(from, to).with_context(|| format!("copying {} to {}", from.display(), to.display()))?;
    Ok(())
}

fn make_way(path: &Path) -> Result<()> {
    let directory = path.parent().unwrap_or(path);
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())
}

/// Makes a directory, without what an earlier run has left there.
pub fn make_anew(directory: &Path) -> Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(|| format!("removing {}", directory.display()))?;
    }
    fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))
}

/// What is in a directory, in the order of the names.
pub fn list(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// The last part of a path.
pub fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// tar's options for that. Everybody may read, whatever the umask was here.
const NEUTRAL: [&str; 7] = [
    "--format=gnu",
    "--sort=name",
    "--mtime=@0",
    "--owner=0",
    "--group=0",
    "--numeric-owner",
    "--mode=go+rX,go-w",
];

/// What is in a directory, without the directory itself, as a tar archive.
pub fn tar(directory: &Path) -> anyhow::Result<Vec<u8>> {
    let names = list(directory)?.into_iter().map(|path| name(&path));
    let command = &mut Command::new("tar");
    feed(command.arg("--create").arg("--directory").arg(directory).args(NEUTRAL).args(names), &[])
}

/// These bytes, as small as gzip gets them.
pub fn gzip(bytes: &[u8]) -> anyhow::Result<Vec<u8>> {
    // Without -n the time and the name would be in it.
    feed(Command::new("gzip").args(["-9", "-n"]), bytes)
}

/// The SHA-256 of these bytes, in hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> anyhow::Result<String> {
    let printed = String::from_utf8(feed(&mut Command::new("sha256sum"), bytes)?)?;
    printed.split_whitespace().next().map(str::to_owned).context("sha256sum prints nothing")
}
