//! The signals that end the daemon.

use anyhow::Context;
use tokio::{
    select,
    signal::unix::{Signal, SignalKind, signal},
};

/// SIGTERM and SIGINT. Created once, before anything else, so that no signal is lost.
pub(in crate::daemon) struct TerminationSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl TerminationSignals {
    /// From now on the signals do not kill the process. Must be called within a tokio runtime.
    pub(in crate::daemon) fn new() -> anyhow::Result<Self> {
        let terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
        Ok(Self { terminate, interrupt })
    }

    /// Waits for a signal.
    pub(in crate::daemon) async fn received(&mut self) {
        select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
