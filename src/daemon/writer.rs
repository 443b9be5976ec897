//! Starts the writer thread and the conntrack thread.

use std::collections::BTreeSet;

use anyhow::Context;
use ipvs::Family;
use netfilter::conntrack::KernelConntrack;
use reconciler::{Callbacks, Handle, NoticeCallback, Observer, Timing};
use service::State;
use tokio::task::{JoinHandle, spawn_blocking};
use watcher::Kernel;

use crate::{
    config::Settings,
    conntrack::{CleanupMetrics, cleanup},
    events::Outbox,
};

/// The running writer thread.
pub(super) struct WriterThread(JoinHandle<()>);

impl WriterThread {
    /// Starts the writer thread, and the conntrack thread that removes stale flows for it.
    pub(super) fn start(
        settings: &Settings,
        kernel: Kernel,
        families: BTreeSet<Family>,
        outbox: Option<&Outbox>,
        observers: Vec<Box<dyn Observer>>,
        conntrack_cleanup: CleanupMetrics,
    ) -> anyhow::Result<(Handle, Self)> {
        let ours = settings.ownership(families);
        let timing = Timing {
            sync_period: settings.sync_period,
            min_sync_period: settings.min_sync_period,
            drain_timeout: settings.drain_timeout,
        };
        let stale_flows = cleanup::start(KernelConntrack::open()?, conntrack_cleanup)
            .context("cannot start the conntrack thread")?;
        let callbacks = Callbacks { notices: notices(outbox.cloned()), stale_flows, observers };
        let started = reconciler::start(State::new(settings.options()), kernel, ours, timing, callbacks);
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
