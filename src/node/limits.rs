//! The process: its limits of open files and threads, and how soon the kernel ends it when memory is short.

use std::{
    fs, io,
    sync::Mutex,
    thread::{self, Builder},
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing::{info, warn};

/// Raises the limit to its maximum: each health check port and each client takes a socket. Programs in Go,
/// kube-proxy among them, do so by themselves.
pub fn raise_open_files() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        warn!(%error, "cannot raise the limit of open files");
    }
}

/// Tries whether so many threads can run at a time. tokio ends the program with a panic if it cannot start
/// its own (`Spawner::spawn_blocking`): with too little address space (`ulimit -v`), or too many threads in
/// the pod already.
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

const OOM_SCORE: &str = "/proc/self/oom_score_adj";

/// Sets how soon the kernel kills this process when memory is short. A failure is only logged: lowering the
/// score needs CAP_SYS_RESOURCE, and in a pod the kubelet has set one.
pub(crate) fn adjust_oom_score(score: i32) {
    let wanted = score.to_string();
    let adjust = || -> io::Result<()> {
        if fs::read_to_string(OOM_SCORE)?.trim() == wanted { Ok(()) } else { fs::write(OOM_SCORE, &wanted) }
    };
    if let Err(error) = adjust() {
        info!("cannot set the OOM score adjustment to {wanted}: {error}");
    }
}
