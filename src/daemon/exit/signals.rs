//! The signals by which the daemon is asked to end.

use anyhow::Context;
use tokio::{
    select,
    signal::unix::{Signal, SignalKind, signal},
};

/// SIGTERM and SIGINT. Made once, before anything else: what arrives while nobody waits is not lost.
pub(in crate::daemon) struct TerminationSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl TerminationSignals {
    /// From now on the signals do not end the process by themselves. Must be called within a tokio runtime.
    pub(in crate::daemon) fn new() -> anyhow::Result<Self> {
        let terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
        Ok(Self { terminate, interrupt })
    }

    /// Waits until one has arrived.
    pub(in crate::daemon) async fn received(&mut self) {
        select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
