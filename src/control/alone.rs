//! One proxy to a node.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, fcntl},
    libc,
};

use tracing::warn;

use super::BindError;

/// A file of the host's that kubeadm's DaemonSet mounts, whatever else of /run is the container's own. Programs of
/// iptables lock it as a whole by flock(2), which the locks of single bytes have nothing to do with.
const OF_HOST: &str = "/run/xtables.lock";

/// `F_WRLCK` and `SEEK_SET`, as wide as the structure has them.
const WRITE_LOCK: libc::c_short = 1;
const FROM_THE_START: libc::c_short = 0;

/// Nobody else works on this node as long as this lives. Its locks go when the process does, however it ends; the
/// socket's file would stay.
#[derive(Debug)]
pub struct Alone {
    _beside_socket: File,
    _in_network_namespace: Option<File>,
}

impl Alone {
    /// Takes the lock beside the control socket, in a directory that is made with mode 0700 if need be, and the one
    /// that processes with another /run see too; but not for a socket that is not the usual one, which is asked for
    /// by those who know of the other proxy.
    pub fn on_node(socket: &Path) -> Result<Self, BindError> {
        let failed = |operation| move |source| BindError::Io { path: socket.to_owned(), operation, source };
        let directory = socket.parent().unwrap_or(Path::new("/"));
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(failed("make its directory"))?;

        let path = socket.with_extension("lock");
        let lock = File::create(&path).map_err(failed("make its lock file"))?;
        lock.try_lock().map_err(|error| match error {
            fs::TryLockError::WouldBlock => BindError::AnotherRuns { lock: path },
            fs::TryLockError::Error(source) => failed("lock its lock file")(source),
        })?;
        let usual = socket == Path::new(super::SOCKET);
        let in_network_namespace = if usual { in_network_namespace(Path::new(OF_HOST))? } else { None };
        Ok(Self { _beside_socket: lock, _in_network_namespace: in_network_namespace })
    }
}

/// Locks the byte of this file, [`OF_HOST`], that stands for this network namespace: its inode. None, with a warning,
/// where there is no such file, or it cannot be written.
fn in_network_namespace(path: &Path) -> Result<Option<File>, BindError> {
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
        Err(Errno::EAGAIN | Errno::EACCES) => Err(BindError::AnotherRuns { lock: path.to_owned() }),
        Err(errno) => Err(BindError::Io {
            path: path.to_owned(),
            operation: "lock a byte of it",
            source: io::Error::from(errno),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_file_is_locked_for_one_in_a_network_namespace_and_done_without_where_there_is_none() {
        let run = tempfile::tempdir().unwrap();
        let path = run.path().join("xtables.lock");
        assert!(in_network_namespace(&path).unwrap().is_none());
        assert!(!path.exists(), "it is iptables' to make");
        File::create(&path).unwrap();
        let first = in_network_namespace(&path).unwrap();
        assert!(first.is_some());
        let second = in_network_namespace(&path).unwrap_err();
        assert!(matches!(&second, BindError::AnotherRuns { lock } if *lock == path), "{second}");
    }
}
