//! Starts the writer thread and the conntrack thread.

use anyhow::Context;
use netfilter::conntrack::KernelConntrack;
use reconciler::{Callbacks, Handle, NoticeCallback, Observer, Timing};
use service::State;
use tokio::task::{JoinHandle, spawn_blocking};
use watcher::{Kernel, Ownership};

use crate::{
    conntrack::{CleanupMetrics, cleanup},
    events::Outbox,
};

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
        let stale_flows = cleanup::start(KernelConntrack::open()?, conntrack_cleanup)
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

    /// Stops the writer thread after the running sync.
    pub(super) async fn stop(mut self, handle: &Handle) {
        // If the thread is gone there is nothing left to stop.
        if handle.stop().is_ok() {
            self.ended().await;
        }
    }
}

/// Makes Events of notices, if there is an outbox.
fn notices(outbox: Option<Outbox>) -> NoticeCallback {
    match outbox {
        Some(outbox) => Box::new(move |notice| outbox.post(notice)),
        None => Box::new(drop),
    }
}
