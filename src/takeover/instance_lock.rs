//! Keeps a second kube-ipvs off the node.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, fcntl},
    libc,
};

use tracing::warn;

/// A file of the host's that kubeadm's DaemonSet mounts, whatever else of /run is the container's own. Programs of
/// iptables lock it as a whole by flock(2), which the locks of single bytes have nothing to do with.
const OF_HOST: &str = "/run/xtables.lock";

/// `F_WRLCK` and `SEEK_SET`, as wide as the structure has them.
const WRITE_LOCK: libc::c_short = 1;
const FROM_THE_START: libc::c_short = 0;

/// Why this process may not be the node's proxy.
#[derive(Debug, thiserror::Error)]
pub enum InstanceLockError {
    /// Another one runs: two would undo each other's work.
    #[error("another kube-ipvs runs on this node: it holds {lock}", lock = lock.display())]
    AnotherRuns {
        /// The file that it has locked.
        lock: PathBuf,
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

/// The right to be this node's proxy, as long as this lives. The locks end with the process, however it ends; the
/// socket's file would stay.
#[derive(Debug)]
pub struct InstanceLock {
    _in_network_namespace: Option<File>,
    _beside_socket: Option<File>,
}

impl InstanceLock {
    /// Takes two locks: the host's file, which processes with another /run see too, and a file beside the control
    /// socket.
    ///
    /// A socket elsewhere than usual skips the first: the administrator who configures it knows of the other proxy. The second is
    /// optional if the first is held: where nothing can be written, traffic has to be forwarded all the same.
    pub fn acquire(socket: &Path) -> Result<Self, InstanceLockError> {
        let beside_socket = beside(socket);
        // Called again and again while another proxy runs: the other lock is not mentioned meanwhile.
        if let Err(another @ InstanceLockError::AnotherRuns { .. }) = beside_socket {
            return Err(another);
        }
        let usual = socket == Path::new(crate::serve::control::SOCKET);
        let in_network_namespace = if usual { in_network_namespace(Path::new(OF_HOST))? } else { None };
        let beside_socket = match beside_socket {
            Err(error) if in_network_namespace.is_some() => {
                warn!("{}; {OF_HOST} does", service::one_line(&error));
                None
            }
            lock => Some(lock?),
        };
        Ok(Self { _in_network_namespace: in_network_namespace, _beside_socket: beside_socket })
    }
}

/// Makes a directory for the socket, with mode 0700, unless there is one.
pub(crate) fn make_directory(of: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(of.parent().unwrap_or(Path::new("/")))
}

/// Locks a file beside the control socket.
fn beside(socket: &Path) -> Result<File, InstanceLockError> {
    let path = socket.with_extension("lock");
    let failed = |operation| {
        let path = path.clone();
        move |source| InstanceLockError::NoLock { path, operation, source }
    };
    make_directory(socket).map_err(failed("make the directory of"))?;
    let lock = File::create(&path).map_err(failed("make"))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(fs::TryLockError::WouldBlock) => Err(InstanceLockError::AnotherRuns { lock: path }),
        Err(fs::TryLockError::Error(source)) => Err(failed("lock")(source)),
    }
}

/// Locks the byte of this file, [`OF_HOST`], that stands for this network namespace: its inode. None, with a warning,
/// where there is no such file, or it cannot be written.
fn in_network_namespace(path: &Path) -> Result<Option<File>, InstanceLockError> {
    let opened = File::options().write(true).open(path);
    let namespace = opened.and_then(|file| Ok((file, fs::metadata("/proc/self/ns/net")?.ino())));
    let (file, namespace) = match namespace {
        Ok(opened) => opened,
        Err(error) => {
            let path = path.display();
            warn!(%error, "cannot use {path}: a kube-ipvs that does not share our /run would not be noticed");
            return Ok(None);
        }
    };
    let byte = libc::flock {
        l_type: WRITE_LOCK,
        l_whence: FROM_THE_START,
        l_start: namespace.cast_signed(),
        l_len: 1,
        l_pid: 0,
    };
    match fcntl(&file, FcntlArg::F_OFD_SETLK(&byte)) {
        Ok(_) => Ok(Some(file)),
        Err(Errno::EAGAIN | Errno::EACCES) => Err(InstanceLockError::AnotherRuns { lock: path.to_owned() }),
        Err(errno) => Err(InstanceLockError::NoLock {
            path: path.to_owned(),
            operation: "lock a byte of",
            source: io::Error::from(errno),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_lock_admits_one_per_network_namespace_and_its_file_may_be_missing() {
        let run = tempfile::tempdir().unwrap();
        let path = run.path().join("xtables.lock");
        assert!(in_network_namespace(&path).unwrap().is_none());
        assert!(!path.exists(), "it is iptables' to make");
        File::create(&path).unwrap();
        let first = in_network_namespace(&path).unwrap();
        assert!(first.is_some());
        let second = in_network_namespace(&path).unwrap_err();
        assert!(matches!(&second, InstanceLockError::AnotherRuns { lock } if *lock == path), "{second}");
    }
}
