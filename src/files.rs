//! Files that the program reads, watches and writes, wary of what other users may have made of them.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::libc::{ELOOP, O_NOFOLLOW};

/// The longest file that is read whole, in bytes: a configuration, a kubeconfig, certificates. A ConfigMap or a Secret
/// holds 1 MiB (`MaxSecretSize` in Kubernetes' core API).
const LONGEST: u64 = 4 << 20;

/// Reads a file whole. One that is longer than 4 MiB is an error.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LONGEST + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > LONGEST) {
        let text = format!("it is longer than {} MiB", LONGEST >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    Ok(bytes)
}

/// Reads a file of text whole. One that is longer than 4 MiB is an error.
pub(crate) fn read_to_string(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Makes a file that only its owner may read. One that is there already, be it a symbolic link to nowhere, is an error.
pub(crate) fn create_private(path: &Path) -> io::Result<File> {
    File::options().write(true).create_new(true).mode(0o600).open(path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            io::Error::new(error.kind(), "it exists already, and is not overwritten")
        }
        io::ErrorKind::NotFound => io::Error::new(error.kind(), "its directory does not exist"),
        _ => error,
    })
}

/// Opens a file to write it anew, whether it exists or not. What a symbolic link leads to is not written, unless the
/// link is one of the system's, such as /dev/stdout: in other directories another user may have made it.
pub(crate) fn overwrite(path: &Path) -> io::Result<File> {
    let mut options: OpenOptions = File::options();
    options.write(true).create(true).truncate(true);
    if !path.starts_with("/dev") {
        options.custom_flags(O_NOFOLLOW);
    }
    options.open(path).map_err(|error| match error.raw_os_error() {
        Some(ELOOP) => io::Error::new(io::ErrorKind::AlreadyExists, "it is a symbolic link"),
        _ => error,
    })
}

/// How often the file is read. A file of a ConfigMap volume is a symbolic link to a symbolic link to a directory that
/// is swapped, and others are written in place or moved: comparing the text covers all of it.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// The equal reads in a row before a text counts: the first may see a file that is being written.
const EQUAL_READS: u32 = 2;
/// The failed reads in a row before a missing file counts: replacing a file may remove the old one first.
pub(crate) const FAILED_READS: u32 = 8;

/// A file whose changes are noticed: call [`WatchedFile::has_changed`] every two seconds.
pub(crate) struct WatchedFile {
    pub(crate) path: PathBuf,
    /// Its text, or the error of reading it.
    seen: Result<Vec<u8>, io::ErrorKind>,
    /// The reads in a row with this result.
    reads: u32,
}

impl WatchedFile {
    /// A file that was not read yet: its first text is a change.
    pub(crate) fn unread(path: PathBuf) -> Self {
        Self { path, seen: Ok(Vec::new()), reads: 0 }
    }

    /// A file whose current text does not count as a change.
    pub(crate) fn known(path: PathBuf) -> Self {
        Self { seen: text(&path), path, reads: FAILED_READS }
    }

    /// Reads the file. Whether it has another text or none any more, for long enough to act on it.
    pub(crate) fn has_changed(&mut self) -> bool {
        let now = text(&self.path);
        if now != self.seen {
            self.seen = now;
            self.reads = 0;
        }
        self.reads = self.reads.saturating_add(1);
        self.reads == if self.seen.is_ok() { EQUAL_READS } else { FAILED_READS }
    }
}

fn text(path: &Path) -> Result<Vec<u8>, io::ErrorKind> {
    read(path).map_err(|error| error.kind())
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::Write as _,
        os::unix::fs::{MetadataExt as _, symlink},
    };

    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_bound() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let longest = usize::try_from(LONGEST).unwrap();
        fs::write(&path, vec![b'x'; longest]).unwrap();
        assert_eq!(read_to_string(&path).unwrap().len(), longest);
        fs::write(&path, vec![b'x'; longest + 1]).unwrap();
        assert_eq!(read(&path).unwrap_err().to_string(), "it is longer than 4 MiB");
        assert_eq!(read(Path::new("/dev/zero")).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        fs::write(&path, b"\xff").unwrap();
        assert_eq!(read_to_string(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_private_file_is_its_owner_s_and_takes_no_other_s_place() {
        let directory = tempfile::tempdir().unwrap();
        let (path, victim) = (directory.path().join("new"), directory.path().join("victim"));
        let file = create_private(&path).unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
        fs::write(&victim, "kept").unwrap();
        for (name, target) in [("to-a-file", "victim"), ("to-nowhere", "nowhere")] {
            let link = directory.path().join(name);
            symlink(target, &link).unwrap();
            assert_eq!(create_private(&link).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        }
        assert_eq!(create_private(&victim).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&victim).unwrap(), "kept");
        assert!(!directory.path().join("nowhere").exists());
    }

    #[test]
    fn a_file_is_overwritten_but_not_what_a_link_leads_to() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("file"), directory.path().join("link"));
        fs::write(&path, "longer than the new text").unwrap();
        symlink("file", &link).unwrap();
        assert_eq!(overwrite(&link).unwrap_err().to_string(), "it is a symbolic link");
        overwrite(&path).unwrap().write_all(b"new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        overwrite(Path::new("/dev/null")).unwrap().write_all(b"gone").unwrap();
    }
}
