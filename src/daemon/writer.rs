//! Starts the writer thread and the conntrack thread.

use std::time::Duration;

use anyhow::{Context, ensure};
use netfilter::conntrack::KernelConntrack;
use reconciler::{Callbacks, Handle, NoticeCallback, Observer, Timing};
use service::State;
use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::timeout,
};
use watcher::{Kernel, Ownership};

use crate::{conntrack, events::Outbox, serve::metrics::CleanupMetrics};

/// How long the running sync may take when the daemon ends. The longest one that is known takes 14 s
/// (docs/limits.md); one that the process breaks off is like one that it was killed in.
const LAST_SYNC: Duration = Duration::from_secs(20);

/// The running writer thread.
pub(super) struct WriterThread(JoinHandle<()>);

impl WriterThread {
    /// Starts the writer thread, and the conntrack thread that removes stale flows for it.
    pub(super) fn start(
        state: State,
        kernel: Kernel,
        ours: Ownership,
        timing: Timing,
        outbox: Option<&Outbox>,
        observers: Vec<Box<dyn Observer>>,
        conntrack_cleanup: CleanupMetrics,
    ) -> anyhow::Result<(Handle, Self)> {
        let stale_flows = conntrack::start(KernelConntrack::open()?, conntrack_cleanup)
            .context("cannot start the conntrack thread")?;
        let callbacks = Callbacks { notices: notices(outbox.cloned()), stale_flows, observers };
        let started = reconciler::start(state, kernel, ours, timing, callbacks);
        let (handle, thread) = started.context("cannot start the writer thread")?;
        Ok((handle, Self(spawn_blocking(move || drop(thread.join())))))
    }

    /// Waits until it has ended.
    pub(super) async fn ended(&mut self) {
        // A panic ends it too.
        drop((&mut self.0).await);
    }

    /// Stops the writer thread after the running sync. It is an error if that takes too long: the thread hangs in the
    /// kernel, and ends with the process.
    pub(super) async fn stop(mut self, handle: &Handle) -> anyhow::Result<()> {
        // If the thread is gone there is nothing left to stop.
        if handle.stop().is_ok() {
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

/// Makes Events of notices, if there is an outbox.
fn notices(outbox: Option<Outbox>) -> NoticeCallback {
    match outbox {
        Some(outbox) => Box::new(move |notice| outbox.post(notice)),
        None => Box::new(drop),
    }
}
