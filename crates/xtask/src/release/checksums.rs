//! The SHA-256 of each file.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use guest::archive::sha256;

use crate::files;

/// Writes `SHA256SUMS` for the files of a directory, as `sha256sum --check` reads it.
pub(super) fn write(directory: &Path) -> Result<PathBuf> {
    let mut lines = Vec::new();
    for file in files::list(directory)? {
        let bytes = fs::read(&file).with_context(|| file.display().to_string())?;
        lines.push(format!("{}  {}\n", sha256(&bytes)?, files::name(&file)));
    }
    let checksums = directory.join("SHA256SUMS");
    files::write(&checksums, lines.concat().as_bytes())?;
    Ok(checksums)
}
