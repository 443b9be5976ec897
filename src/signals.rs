//! The signals that end the daemon, and a cleanup that waits.

use anyhow::Context;
use tokio::{
    select,
    signal::unix::{Signal, SignalKind, signal},
};

/// SIGTERM and SIGINT. Created once, before anything else, so that no signal is lost.
pub(crate) struct TerminationSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl TerminationSignals {
    /// From now on the signals do not kill the process. Must be called within a tokio runtime.
    pub(crate) fn new() -> anyhow::Result<Self> {
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
}
