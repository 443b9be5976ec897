//! Notices changes of a file.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::files;

/// How often the file is read. A file of a ConfigMap volume is a symbolic link to a symbolic link to a directory that
/// is swapped, and others are written in place or moved: comparing the text covers all of it.
pub(in crate::daemon) const LOOK: Duration = Duration::from_secs(2);
/// The equal reads in a row before a text counts: the first may see a file that is being written.
const LOOKS: u32 = 2;
/// The failed reads in a row before a missing file counts: replacing a file may remove the old one first.
pub(in crate::daemon) const FAILED_LOOKS: u32 = 8;

/// The file.
pub(in crate::daemon) struct WatchedFile {
    pub(in crate::daemon) path: PathBuf,
    /// Its text, or the error of reading it.
    seen: Result<Vec<u8>, io::ErrorKind>,
    /// The reads in a row with this result.
    looks: u32,
}

impl WatchedFile {
    /// A file that was not read yet: its first text is a change.
    pub(in crate::daemon) fn unread(path: PathBuf) -> Self {
        Self { path, seen: Ok(Vec::new()), looks: 0 }
    }

    /// A file whose current text is no change.
    pub(in crate::daemon) fn known(path: PathBuf) -> Self {
        Self { seen: read(&path), path, looks: FAILED_LOOKS }
    }

    /// Reads the file. Whether it has another text or none any more, for long enough to act on it.
    pub(in crate::daemon) fn has_changed(&mut self) -> bool {
        let now = read(&self.path);
        if now != self.seen {
            self.seen = now;
            self.looks = 0;
        }
        self.looks = self.looks.saturating_add(1);
        self.looks == if self.seen.is_ok() { LOOKS } else { FAILED_LOOKS }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, io::ErrorKind> {
    files::read(path).map_err(|error| error.kind())
}
