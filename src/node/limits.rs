//! The process's limits: of open files, and of threads.

use std::{
    io,
    sync::Mutex,
    thread::{self, Builder},
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing::warn;

/// Raises the limit to its maximum: each health check port and each client takes a socket. Programs in Go, kube-proxy
/// among them, do so by themselves.
pub fn raise_open_files() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        warn!(%error, "the limit of open files stays as it is");
    }
}

/// Tries whether so many threads can run at a time. tokio ends the program with a panic if it cannot start its own
/// (`Spawner::spawn_blocking`): with too little address space (`ulimit -v`), or too many threads in the pod already.
pub fn try_threads(count: usize) -> io::Result<()> {
    let gate = Mutex::new(());
    thread::scope(|scope| {
        let closed = gate.lock();
        let started =
            (0..count).try_for_each(|_| Builder::new().spawn_scoped(scope, || drop(gate.lock())).map(drop));
        drop(closed);
        started
    })
}
