//! This process: its build, its limits, and the signals that end it.

use std::{
    env::consts::{ARCH, OS},
    fmt, fs, io,
    process::exit,
    sync::{Arc, Mutex, atomic::AtomicBool},
    thread::{self, Builder},
    time::Duration,
};

use anyhow::Context;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
};
use tokio::{
    select,
    signal::unix::{Signal, SignalKind, signal},
    time::sleep,
};
use tracing::{error, info, warn};

/// The version, as Cargo.toml has it.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The revision of the sources, if what built the program has set the variable: `cargo xtask image` does.
const REVISION: Option<&str> = option_env!("KUBE_IPVS_REVISION");

/// A build of kube-ipvs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    /// Its version.
    pub version: String,
    /// The revision of its sources in git, if it is known.
    pub revision: Option<String>,
    /// The platform that it is for, as Go calls it: `linux/amd64`.
    pub platform: String,
}

impl Build {
    /// The build of this program.
    pub(crate) fn this() -> Self {
        let revision = REVISION.filter(|revision| !revision.is_empty());
        Self { version: VERSION.to_owned(), revision: revision.map(ToOwned::to_owned), platform: platform() }
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, revision, platform } = self;
        write!(f, "{version}, {platform}")?;
        revision.as_ref().map_or(Ok(()), |revision| write!(f, ", revision {revision}"))
    }
}

fn platform() -> String {
    let architecture = match ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("{OS}/{architecture}")
}

/// Raises the limit to its maximum: each health check port and each client takes a socket. Programs in Go,
/// kube-proxy among them, do so by themselves.
pub(crate) fn raise_open_files() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        warn!(%error, "cannot raise the limit of open files");
    }
}

/// Tries whether so many threads can run at a time. tokio ends the program with a panic if it cannot start
/// its own (`Spawner::spawn_blocking`): with too little address space (`ulimit -v`), or too many threads in
/// the pod already. One more is tried, because its own need more memory than these.
pub(crate) fn try_threads(count: usize) -> io::Result<()> {
    let gate = Mutex::new(());
    thread::scope(|scope| {
        let closed = gate.lock();
        let started =
            (0..=count).try_for_each(|_| Builder::new().spawn_scoped(scope, || drop(gate.lock())).map(drop));
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

/// SIGTERM and SIGINT. Created once, before anything else, so that no signal is lost.
pub(crate) struct TerminationSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl TerminationSignals {
    /// Catches the signals: from now on the first one does not kill the process. Another one ends it at once, whatever
    /// it waits for, with the exit code that a shell gives to a program killed by it. Must be called within a tokio
    /// runtime.
    pub(crate) fn new() -> anyhow::Result<Self> {
        second_one_exits().context("cannot wait for a second signal")?;
        let terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
        Ok(Self { terminate, interrupt })
    }

    /// Waits for a signal.
    pub(crate) async fn received(&mut self) {
        select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Ends the process so long after the first signal, if it is still there: it waits for something that hangs.
    pub(crate) async fn enforce(mut self, deadline: Duration) {
        self.received().await;
        sleep(deadline).await;
        error!("still running {} s after the signal: something hangs; exiting", deadline.as_secs());
        exit(1);
    }
}

fn second_one_exits() -> io::Result<()> {
    let one_has_come = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        // The actions are taken in this order: the first signal finds that none has come.
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&one_has_come))?;
        flag::register(signal, Arc::clone(&one_has_come))?;
    }
    Ok(())
}
