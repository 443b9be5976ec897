//! Keeps a second kube-ipvs off the node.
//!
//! Who may open a file only to read it can hold a read lock of it (fcntl(2)), or lock it by flock(2)
//! altogether. So the lock that counts is in a file that root alone can open; and in the host's file, which
//! others may have opened, only a lock for writing says that another kube-ipvs runs.

mod holder;

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io,
    os::unix::{
        fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
        net::UnixStream,
    },
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, fcntl},
    libc,
};
use tracing::{info, warn};

use crate::finding::Finding;

/// The default path of the control socket. A lock file is beside it.
pub const SOCKET: &str = "/run/kube-ipvs/control.sock";

/// A file of the host's that kubeadm's DaemonSet mounts, whatever else of /run is the container's own.
/// Programs of iptables lock it as a whole by flock(2), which the locks of single bytes have nothing to do
/// with.
const OF_HOST: &str = "/run/xtables.lock";

/// The mode of a file that root alone can open. The kubelet makes the host's with 0644, iptables itself with
/// this one.
const ROOT_ALONE: u32 = 0o600;
/// The bits of a mode that let others in.
const OTHERS: u32 = 0o077;

/// `F_RDLCK`, `F_WRLCK`, `F_UNLCK` and `SEEK_SET`, as wide as the structure has them.
const READ_LOCK: libc::c_short = 0;
const WRITE_LOCK: libc::c_short = 1;
const NO_LOCK: libc::c_short = 2;
const FROM_THE_START: libc::c_short = 0;

/// Why this process may not be the node's proxy.
#[derive(Debug, thiserror::Error)]
pub enum InstanceLockError {
    /// Another one runs: two would undo each other's work.
    #[error("another kube-ipvs runs on this node: it holds {lock}{holder}", lock = lock.display())]
    AnotherRuns {
        /// The file that it has locked.
        lock: PathBuf,
        /// The byte of it, if not all of it is locked.
        byte: Option<u64>,
        /// The process that holds it, in brackets; empty before [`InstanceLockError::named`], and if it cannot be seen.
        holder: String,
    },
    /// There is no lock to hold, so nothing would keep a second one out.
    #[error("cannot {operation} {path}, to keep a second kube-ipvs out", path = path.display())]
    NoLock {
        /// The file, or its directory.
        path: PathBuf,
        /// What was being done with it.
        operation: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

impl InstanceLockError {
    /// The error with the process that holds the lock. Finding it may take as long as reading all processes.
    #[must_use]
    pub fn named(self) -> Self {
        match self {
            Self::AnotherRuns { lock, byte, .. } => {
                let holder = in_brackets(&lock, byte);
                Self::AnotherRuns { lock, byte, holder }
            }
            other @ Self::NoLock { .. } => other,
        }
    }

    fn another_runs(lock: &Path) -> Self {
        Self::AnotherRuns { lock: lock.to_owned(), byte: None, holder: String::new() }
    }
}

fn in_brackets(lock: &Path, byte: Option<u64>) -> String {
    holder::find(lock, byte).map_or_else(String::new, |holder| format!(" ({holder})"))
}

/// The right to be this node's proxy, as long as this lives. The locks end with the process, however it ends;
/// the socket's file would stay.
#[derive(Debug)]
pub struct InstanceLock {
    in_network_namespace: Option<ByteOfHost>,
    _beside_socket: Option<File>,
}

impl InstanceLock {
    /// Takes two locks: the host's file, which processes with another /run see too, and a file beside the
    /// control socket.
    ///
    /// A socket elsewhere than usual skips the first: the administrator who configures it knows of the other
    /// proxy. The second is optional if the first is there: where nothing can be written, traffic has to be
    /// forwarded all the same.
    pub fn acquire(socket: &Path) -> Result<Self, InstanceLockError> {
        let beside_socket = beside(socket);
        // Called again and again while another proxy runs: the other lock is not mentioned meanwhile.
        if let Err(another @ InstanceLockError::AnotherRuns { .. }) = beside_socket {
            return Err(another);
        }
        let usual = socket == Path::new(SOCKET);
        let in_network_namespace = if usual { in_network_namespace(Path::new(OF_HOST))? } else { None };
        let beside_socket = match beside_socket {
            Err(error) if in_network_namespace.is_some() => {
                warn!("{}; {OF_HOST} does", service::one_line(&error));
                None
            }
            lock => Some(lock?),
        };
        Ok(Self { in_network_namespace, _beside_socket: beside_socket })
    }

    /// Tries again to get the lock of the host's file, if that was not to be had: what keeps it away, if
    /// anything still does.
    pub(crate) fn finding(&self) -> Option<Finding> {
        let byte = self.in_network_namespace.as_ref()?;
        let (what, remedy) = match byte.lock() {
            Ok(ByteLock::KeptAway) => (byte.kept_away(), "end that process"),
            Ok(ByteLock::ByAnother) => {
                let another = byte.another_runs().named();
                (format!("{another}, so two proxies run here"), "stop one of them")
            }
            Ok(ByteLock::Held) | Err(_) => return None,
        };
        Some(Finding::warning(byte.path.display(), what).remedy(remedy))
    }
}

/// The locks of a kube-ipvs that are held on this node, each with its holder if that can be seen. Takes none.
pub fn held(socket: &Path) -> Vec<String> {
    let beside = socket.with_extension("lock");
    let beside = holder::find(&beside, None).map(|holder| format!("{} ({holder})", beside.display()));
    let of_host = File::open(OF_HOST).ok().and_then(|file| ByteOfHost::new(file, Path::new(OF_HOST)).ok());
    let of_host = of_host.filter(|byte| matches!(byte.is_locked(WRITE_LOCK), Ok(true)));
    let of_host = of_host.map(|byte| format!("{OF_HOST}{}", in_brackets(&byte.path, Some(byte.byte))));
    beside.into_iter().chain(of_host).collect()
}

/// Makes a directory for the socket, with mode 0700, unless there is one. The usual one is ours, so its mode
/// is set: the kubelet makes it with 0755.
pub(crate) fn make_directory(of: &Path) -> io::Result<()> {
    let directory = of.parent().unwrap_or(Path::new("/"));
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    if of == Path::new(SOCKET) {
        // Nothing in it depends on that, and it may be on a read-only file system.
        _ = fs::set_permissions(directory, Permissions::from_mode(0o700));
    }
    Ok(())
}

/// Locks a file beside the control socket.
fn beside(socket: &Path) -> Result<File, InstanceLockError> {
    let path = socket.with_extension("lock");
    make_directory(socket).map_err(failed(&path, "make the directory of"))?;
    let file = open(&path).map_err(failed(&path, "make"))?;
    let is_held = try_lock(&file, &path)?;
    let is_roots = file.metadata().is_ok_and(|file| file.mode() & OTHERS == 0);
    match (is_roots, is_held) {
        (true, true) if is_at(&file, &path) => Ok(file),
        // Or the file has been replaced meanwhile, by the one that runs then.
        (true, _) => Err(InstanceLockError::another_runs(&path)),
        (false, _) => replaced(&path, &file, is_held, socket),
    }
}

/// Replaces a lock file that others can open, or may have opened before: an earlier version made it with
/// 0644. An earlier version that holds it answers at the socket; no other program has a right to it.
///
/// Two that replace it at once: who renames holds the lock of what is at the temporary name, and finds the
/// old file still in place, so the other one has not renamed its own.
fn replaced(path: &Path, old: &File, is_held: bool, socket: &Path) -> Result<File, InstanceLockError> {
    if !is_held && UnixStream::connect(socket).is_ok() {
        return Err(InstanceLockError::another_runs(path));
    }
    let fresh_path = path.with_extension("lock.new");
    let fresh = open(&fresh_path).map_err(failed(&fresh_path, "make"))?;
    if !try_lock(&fresh, &fresh_path)? || !is_at(&fresh, &fresh_path) || !is_at(old, path) {
        return Err(InstanceLockError::another_runs(path));
    }
    let holder = if is_held { String::new() } else { in_brackets(path, None) };
    fs::rename(&fresh_path, path).map_err(failed(path, "replace"))?;
    let path = path.display();
    if is_held {
        info!("replaced {path}, which users other than root could open");
    } else {
        warn!(
            "replaced {path}, which users other than root could open, and a process other than kube-ipvs had locked{holder}"
        );
    }
    Ok(fresh)
}

/// Opens a lock file, or makes it, for root alone from the first moment.
fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(ROOT_ALONE);
    options.custom_flags(libc::O_NOFOLLOW).open(path)
}

/// Whether the lock of the whole file could be had.
fn try_lock(file: &File, path: &Path) -> Result<bool, InstanceLockError> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(fs::TryLockError::WouldBlock) => Ok(false),
        Err(fs::TryLockError::Error(source)) => Err(failed(path, "lock")(source)),
    }
}

/// Whether the path still leads to this file.
fn is_at(file: &File, path: &Path) -> bool {
    let same =
        |file: &fs::Metadata, there: &fs::Metadata| (file.dev(), file.ino()) == (there.dev(), there.ino());
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(file), Ok(there)) => same(&file, &there),
        _ => false,
    }
}

fn failed(path: &Path, operation: &'static str) -> impl FnOnce(io::Error) -> InstanceLockError {
    let path = path.to_owned();
    move |source| InstanceLockError::NoLock { path, operation, source }
}

/// The byte of the host's file that stands for this network namespace: its inode.
#[derive(Debug)]
struct ByteOfHost {
    file: File,
    path: PathBuf,
    byte: u64,
}

/// The result of locking the byte.
#[derive(Debug, PartialEq, Eq)]
enum ByteLock {
    Held,
    /// Another kube-ipvs has locked it: that takes the right to write the file.
    ByAnother,
    /// Others have locked it who may only read the file: no kube-ipvs is among them.
    KeptAway,
}

impl ByteOfHost {
    fn new(file: File, path: &Path) -> io::Result<Self> {
        Ok(Self { file, path: path.to_owned(), byte: fs::metadata("/proc/self/ns/net")?.ino() })
    }

    fn lock(&self) -> Result<ByteLock, Errno> {
        // Twice, since another kube-ipvs may end between the two calls.
        for _ in 0..2 {
            match fcntl(&self.file, FcntlArg::F_OFD_SETLK(&self.range(WRITE_LOCK))) {
                Ok(_) => return Ok(ByteLock::Held),
                Err(Errno::EAGAIN | Errno::EACCES) => {}
                Err(errno) => return Err(errno),
            }
            // Only a lock for writing is in the way of one for reading.
            if self.is_locked(READ_LOCK)? {
                return Ok(ByteLock::ByAnother);
            }
        }
        Ok(ByteLock::KeptAway)
    }

    /// Whether another's lock is in the way of such a lock.
    fn is_locked(&self, kind: libc::c_short) -> Result<bool, Errno> {
        let mut found = self.range(kind);
        fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut found))?;
        Ok(found.l_type != NO_LOCK)
    }

    fn range(&self, kind: libc::c_short) -> libc::flock {
        let start = self.byte.cast_signed();
        libc::flock { l_type: kind, l_whence: FROM_THE_START, l_start: start, l_len: 1, l_pid: 0 }
    }

    fn another_runs(&self) -> InstanceLockError {
        InstanceLockError::AnotherRuns {
            lock: self.path.clone(),
            byte: Some(self.byte),
            holder: String::new(),
        }
    }

    fn kept_away(&self) -> String {
        format!(
            "{path} is locked by a process that may only read it{holder}: a kube-ipvs that does not share our /run would \
             not be noticed",
            path = self.path.display(),
            holder = in_brackets(&self.path, Some(self.byte)),
        )
    }
}

/// Locks the byte of this file, [`OF_HOST`], that stands for this network namespace. None, with a warning,
/// where there is no such file, or it cannot be written. Without the lock, with a warning, where only readers
/// are in its way.
fn in_network_namespace(path: &Path) -> Result<Option<ByteOfHost>, InstanceLockError> {
    let opened = File::options().write(true).custom_flags(libc::O_NOFOLLOW).open(path);
    let byte = match opened.and_then(|file| ByteOfHost::new(file, path)) {
        Ok(byte) => byte,
        Err(error) => {
            let path = path.display();
            warn!(%error, "cannot use {path}: a kube-ipvs that does not share our /run would not be noticed");
            return Ok(None);
        }
    };
    keep_others_out(&byte.file, path);
    match byte.lock() {
        Ok(ByteLock::Held) => Ok(Some(byte)),
        Ok(ByteLock::ByAnother) => Err(byte.another_runs()),
        Ok(ByteLock::KeptAway) => {
            warn!("{}", byte.kept_away());
            Ok(Some(byte))
        }
        Err(errno) => Err(failed(path, "lock a byte of")(errno.into())),
    }
}

/// Gives the host's file the mode that iptables gives it.
fn keep_others_out(file: &File, path: &Path) {
    let path = path.display();
    match file.metadata() {
        Ok(found) if found.is_file() && found.mode() & OTHERS != 0 => {
            let mode = found.mode() & 0o7777;
            match file.set_permissions(Permissions::from_mode(ROOT_ALONE)) {
                Ok(()) => info!("users other than root could open {path}: its mode was {mode:04o}"),
                Err(error) => {
                    warn!(%error, "users other than root can open {path}: its mode is {mode:04o}");
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn another_runs<T: std::fmt::Debug>(result: Result<T, InstanceLockError>, at: &Path) {
        let error = result.unwrap_err();
        assert!(matches!(&error, InstanceLockError::AnotherRuns { lock, .. } if lock == at), "{error}");
    }

    #[test]
    fn host_lock_admits_one_per_network_namespace_and_its_file_may_be_missing() {
        let run = tempfile::tempdir().unwrap();
        let path = run.path().join("xtables.lock");
        assert!(in_network_namespace(&path).unwrap().is_none());
        assert!(!path.exists(), "it is iptables' to make");
        File::create(&path).unwrap();
        set_mode(&path, 0o644);
        let first = in_network_namespace(&path).unwrap();
        assert!(first.is_some());
        assert_eq!(mode(&path), 0o600);
        another_runs(in_network_namespace(&path), &path);
        let named = in_network_namespace(&path).unwrap_err().named().to_string();
        let us = format!("{} (process {}, ", path.display(), std::process::id());
        assert!(named.contains(&us), "{named}");
    }

    #[test]
    fn a_read_lock_on_the_host_s_file_stops_no_daemon_and_two_exclude_each_other() {
        let run = tempfile::tempdir().unwrap();
        let path = run.path().join("xtables.lock");
        File::create(&path).unwrap();
        let reader = ByteOfHost::new(File::open(&path).unwrap(), &path).unwrap();
        fcntl(&reader.file, FcntlArg::F_OFD_SETLK(&reader.range(READ_LOCK))).unwrap();
        let daemon = in_network_namespace(&path).unwrap().unwrap();
        assert_eq!(daemon.lock(), Ok(ByteLock::KeptAway));
        let lock = InstanceLock { in_network_namespace: Some(daemon), _beside_socket: None };
        let finding = lock.finding().unwrap();
        assert!(finding.what.contains(&format!("(process {}, ", std::process::id())), "{finding}");
        drop(reader);
        assert_eq!(lock.finding(), None, "it has the lock now");
        another_runs(in_network_namespace(&path), &path);
    }

    #[test]
    fn file_beside_the_socket_is_root_s_alone_and_replaced_if_it_is_not() {
        let run = tempfile::tempdir().unwrap();
        let (socket, path) = (run.path().join("control.sock"), run.path().join("control.lock"));
        let first = beside(&socket).unwrap();
        assert_eq!(mode(&path), 0o600);
        another_runs(beside(&socket), &path);
        drop(first);
        // What an earlier version has left.
        set_mode(&path, 0o644);
        let others = File::open(&path).unwrap();
        others.lock_shared().unwrap();
        let daemon = beside(&socket).unwrap();
        assert_eq!(mode(&path), 0o600);
        another_runs(beside(&socket), &path);
        drop(daemon);
        let _next = beside(&socket).unwrap();
    }

    #[test]
    fn earlier_version_that_answers_keeps_its_lock() {
        let run = tempfile::tempdir().unwrap();
        let (socket, path) = (run.path().join("control.sock"), run.path().join("control.lock"));
        let earlier = File::create(&path).unwrap();
        set_mode(&path, 0o644);
        earlier.lock().unwrap();
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        another_runs(beside(&socket), &path);
        drop((listener, earlier));
        let _daemon = beside(&socket).unwrap();
    }

    #[test]
    fn symbolic_link_in_place_of_a_lock_is_not_followed() {
        let run = tempfile::tempdir().unwrap();
        let precious = run.path().join("precious");
        for name in ["control.lock", "xtables.lock"] {
            std::os::unix::fs::symlink(&precious, run.path().join(name)).unwrap();
        }
        let refused = beside(&run.path().join("control.sock")).unwrap_err();
        assert!(matches!(refused, InstanceLockError::NoLock { .. }), "{refused}");
        File::create(&precious).unwrap();
        assert!(in_network_namespace(&run.path().join("xtables.lock")).unwrap().is_none());
    }
}
