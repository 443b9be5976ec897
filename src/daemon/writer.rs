//! The writer thread, as the daemon sees it.

use std::time::Duration;

use anyhow::{Context, ensure};
use reconciler::{Callbacks, Handle, Timing};
use service::State;
use tokio::{sync::watch, task::spawn_blocking, time::timeout};
use watcher::{Kernel, Ownership};

/// How long the running sync may take when the daemon ends. The longest one that is known takes 14 s
/// (docs/services.md#limits-of-one-service); one that the process breaks off is like one that it was killed in.
const LAST_SYNC: Duration = Duration::from_secs(20);

/// The running writer thread.
pub(super) struct WriterThread {
    handle: Handle,
    /// Its sender is dropped when the thread has ended.
    running: watch::Receiver<()>,
}

impl WriterThread {
    /// Starts the thread.
    pub(super) fn start(
        state: State,
        kernel: Kernel,
        ours: Ownership,
        timing: Timing,
        callbacks: Callbacks,
    ) -> anyhow::Result<Self> {
        let started = reconciler::start(state, kernel, ours, timing, callbacks);
        let (handle, thread) = started.context("cannot start the writer thread")?;
        let (runs, running) = watch::channel(());
        spawn_blocking(move || {
            // A panic ends it too.
            drop(thread.join());
            drop(runs);
        });
        Ok(Self { handle, running })
    }

    /// The handle that sends changes and questions to the thread.
    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Waits until the thread has ended.
    pub(super) async fn ended(&self) {
        let mut running = self.running.clone();
        while running.changed().await.is_ok() {}
    }

    /// Stops the writer thread after the running sync. It is an error if that takes too long: the thread hangs in the
    /// kernel, and ends with the process.
    pub(super) async fn stop(&self) -> anyhow::Result<()> {
        // If the thread is gone there is nothing left to stop.
        if self.handle.stop().is_ok() {
            let waited = timeout(LAST_SYNC, self.ended()).await;
            ensure!(
                waited.is_ok(),
                "the writer thread hangs: it did not end within {} s",
                LAST_SYNC.as_secs()
            );
        }
        Ok(())
    }
}
