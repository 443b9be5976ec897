//! The process that holds a lock of a file, as far as this process may see it: in a container it sees the
//! container's own processes.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use nix::sys::stat::{major, minor};

/// The lock to find.
struct Sought {
    /// The file, as the kernel writes it (`lock_get_status` in fs/locks.c).
    inode: String,
    /// The byte of it, of locks by fcntl(2); otherwise one by flock(2) is meant.
    byte: Option<u64>,
}

/// The process that holds a lock of this byte of a file, or of the file by flock(2).
pub(super) fn find(path: &Path, byte: Option<u64>) -> Option<String> {
    let file = fs::metadata(path).ok()?;
    let inode = format!("{:02x}:{:02x}:{}", major(file.dev()), minor(file.dev()), file.ino());
    let sought = Sought { inode, byte };
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let mut holders = locks.lines().filter_map(|line| sought.holder(line));
    let process = holders.find(|process| *process > 0).or_else(|| sought.by_descriptor())?;
    Some(described(process))
}

impl Sought {
    /// If a line is about the lock: the process that holds it; 0 if the kernel does not say so, as of a lock
    /// that belongs to an open file (`F_OFD_SETLK`).
    fn holder(&self, line: &str) -> Option<u32> {
        let mut words = line.split_ascii_whitespace().skip(1);
        let kind = words.next()?;
        let (process, inode) = (words.nth(2)?, words.next()?);
        let (start, end) = (words.next()?, words.next()?);
        let has = |byte: u64| {
            start.parse().is_ok_and(|start: u64| start <= byte)
                && (end == "EOF" || end.parse().is_ok_and(|end: u64| byte <= end))
        };
        let is_it = self.byte.map_or(kind == "FLOCK", |byte| matches!(kind, "POSIX" | "OFDLCK") && has(byte));
        (inode == self.inode && is_it).then(|| process.parse().unwrap_or(0))
    }

    /// The process with a descriptor that has the lock, among those that may be read.
    fn by_descriptor(&self) -> Option<u32> {
        let processes = fs::read_dir("/proc").ok()?.flatten();
        let mut processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        processes.find(|process| {
            let descriptors = fs::read_dir(format!("/proc/{process}/fdinfo")).into_iter().flatten().flatten();
            let mut infos = descriptors.filter_map(|entry| fs::read_to_string(entry.path()).ok());
            infos.any(|info| {
                let mut locks = info.lines().filter_map(|line| line.strip_prefix("lock:"));
                locks.any(|lock| self.holder(lock).is_some())
            })
        })
    }
}

/// A process, for a person. Its name is its own choice.
fn described(process: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    let name: String = name.trim().chars().map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect();
    match fs::metadata(format!("/proc/{process}")).map(|process| process.uid()) {
        Ok(0) | Err(_) => format!("process {process}, {name}"),
        Ok(user) => format!("process {process}, {name}, of user {user}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_of_other_files_bytes_and_kinds_and_those_who_wait_are_none_of_it() {
        let of = |byte, line| Sought { inode: "00:19:1234".to_owned(), byte }.holder(line);
        let whole = "1: FLOCK  ADVISORY  WRITE 733 00:19:1234 0 EOF";
        assert_eq!(of(None, whole), Some(733));
        assert_eq!(of(Some(5), whole), None);
        assert_eq!(of(None, "1: -> FLOCK  ADVISORY  WRITE 733 00:19:1234 0 EOF"), None);
        assert_eq!(of(None, "1: FLOCK  ADVISORY  WRITE 733 00:19:123 0 EOF"), None);
        assert_eq!(of(None, "1: FLOCK  ADVISORY  WRITE 0 00:19:1234 0 EOF"), Some(0));
        let byte = "2: OFDLCK ADVISORY  READ -1 00:19:1234 5 7";
        assert_eq!([4, 5, 7, 8].map(|at| of(Some(at), byte)), [None, Some(0), Some(0), None]);
        assert_eq!(of(Some(9), "3: POSIX  ADVISORY  READ 12 00:19:1234 0 EOF"), Some(12));
        assert_eq!(of(None, "garbage"), None);
    }

    #[test]
    fn process_that_holds_a_file_is_named_by_its_name() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(find(file.path(), None), None);
        file.as_file().lock().unwrap();
        let said = find(file.path(), None).unwrap();
        assert!(said.starts_with(&format!("process {}, ", std::process::id())), "{said}");
        assert_eq!(find(Path::new("/nowhere"), None), None);
    }
}
