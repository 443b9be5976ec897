//! Files and directories, with errors that name them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

/// Writes a file, and makes the directories on its way.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    }
    fs::write(path, bytes).with_context(|| path.display().to_string())
}

/// Makes a directory, without what an earlier run has left there.
pub(crate) fn make_anew(directory: &Path) -> Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(|| format!("removing {}", directory.display()))?;
    }
    fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))
}

/// What is in a directory, in the order of the names.
pub(crate) fn list(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// The last part of a path.
pub(crate) fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
