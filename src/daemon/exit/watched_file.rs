//! A file whose text may change while the daemon runs.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// How often the file is looked at. A file of a ConfigMap volume is a symbolic link to a symbolic link to a
/// directory that is swapped, and others are written in place or moved: the file's text tells all of it.
pub(in crate::daemon) const LOOK: Duration = Duration::from_secs(2);
/// How many looks must see the same text before it counts: the first may be while it is being written.
const LOOKS: u32 = 2;
/// How many looks in a row must fail to read it: who replaces a file may remove the old one first.
pub(in crate::daemon) const FAILED_LOOKS: u32 = 8;

/// The file.
pub(in crate::daemon) struct WatchedFile {
    pub(in crate::daemon) path: PathBuf,
    /// Its text, or why there is none.
    seen: Result<Vec<u8>, io::ErrorKind>,
    /// How many looks in a row have seen that.
    looks: u32,
}

impl WatchedFile {
    /// A file that was not looked at yet: its text is news.
    pub(in crate::daemon) fn unread(path: PathBuf) -> Self {
        Self { path, seen: Ok(Vec::new()), looks: 0 }
    }

    /// A file whose text of now is no news.
    pub(in crate::daemon) fn known(path: PathBuf) -> Self {
        Self { seen: read(&path), path, looks: FAILED_LOOKS }
    }

    /// Whether the file has another text, or none any more, and that has lasted long enough to be acted on.
    pub(in crate::daemon) fn has_news(&mut self) -> bool {
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
    fs::read(path).map_err(|error| error.kind())
}
