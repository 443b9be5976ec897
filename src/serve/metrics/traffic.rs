//! What each Service carries, as IPVS counts it, under kube-router's names; if it is asked for.
//!
//! IPVS has the counters of a virtual server in the dump of all of them, and those of real servers in a dump for each
//! virtual server. Both are read when somebody asks for the page, by a thread and a socket of their own: the writer
//! is asked for nothing but whose virtual server is whose. The thread makes the text, too, since the page is put together where
//! nothing may take long.

mod reading;
mod series;

use std::{
    mem,
    sync::{
        Arc, OnceLock,
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use hyper::body::Bytes;
use ipvs::Ipvs;
use reconciler::Handle;
use service::one_line;
use tokio::{sync::watch, time::timeout};
use tracing::warn;

use crate::config::ServiceMetrics;
use reading::Reading;

/// How long a reading is shown again to whoever asks. IPVS itself adds its counters up every two seconds.
const FRESH: Duration = Duration::from_secs(5);
/// How long a page waits for a new reading. Later it shows the one before.
const PATIENCE: Duration = Duration::from_secs(5);
/// The age from which a reading is not shown any more: while the writer or the kernel hangs, rates of 0 would
/// be believed.
const STALE: Duration = Duration::from_secs(30);

/// The text that is shown. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Traffic(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// The way to the thread, once it runs. There is room for one who asks, since one reading serves all.
    asks: OnceLock<SyncSender<()>>,
    shown: watch::Sender<Shown>,
}

#[derive(Debug, Default)]
struct Shown {
    text: Bytes,
    /// When it was read.
    at: Option<Instant>,
}

impl Traffic {
    /// Opens the kernel and starts the thread, if that is asked for. Without it nothing is shown.
    pub fn start<I: Ipvs + Send + 'static>(
        &self,
        of: ServiceMetrics,
        open: impl FnOnce() -> Result<I, ipvs::Error>,
        handle: Handle,
    ) -> anyhow::Result<()> {
        if of == ServiceMetrics::Off {
            return Ok(());
        }
        let kernel = open()?;
        let (asks, asked) = sync_channel(1);
        // Whoever starts it a second time has a thread that nobody asks, which ends at once.
        _ = self.0.asks.set(asks);
        let reader =
            Reader { kernel, handle, endpoints: of == ServiceMetrics::Endpoint, told: Told::default() };
        // Weak, so that the thread ends with the page.
        let shared = Arc::downgrade(&self.0);
        let run = move || {
            reader.run(&asked, |shown| {
                if let Some(shared) = shared.upgrade() {
                    shared.shown.send_replace(shown);
                }
            });
        };
        let started = thread::Builder::new().name("traffic".into()).spawn(run);
        started.map(drop).context("cannot start the thread that reads traffic")
    }

    /// The series in Prometheus' text format, as fresh as they can be had without waiting for long.
    pub(super) async fn text(&self) -> Bytes {
        let mut shown = self.0.shown.subscribe();
        if !shown.borrow().is_younger_than(FRESH) && self.ask() {
            _ = timeout(PATIENCE, shown.changed()).await;
        }
        let shown = shown.borrow();
        if shown.is_younger_than(STALE) { shown.text.clone() } else { Bytes::new() }
    }

    /// Asks for a reading, if nobody has yet. Whether there will be one.
    fn ask(&self) -> bool {
        let asked = self.0.asks.get().map(|asks| asks.try_send(()));
        matches!(asked, Some(Ok(()) | Err(TrySendError::Full(()))))
    }
}

impl Shown {
    fn is_younger_than(&self, age: Duration) -> bool {
        self.at.is_some_and(|at| at.elapsed() < age)
    }
}

/// Reads the counters when it is asked to.
struct Reader<I> {
    kernel: I,
    handle: Handle,
    endpoints: bool,
    told: Told,
}

/// What the log has, which says the same thing once.
#[derive(Default)]
struct Told {
    dropped: bool,
    failed: bool,
}

impl<I: Ipvs> Reader<I> {
    fn run(mut self, asked: &Receiver<()>, show: impl Fn(Shown)) {
        while asked.recv().is_ok() {
            let text = self.text().into();
            // Whoever has asked meanwhile is served by this.
            _ = asked.try_recv();
            show(Shown { text, at: Some(Instant::now()) });
        }
    }

    /// What could not be read is not shown, rather than what it was at some time.
    fn text(&mut self) -> String {
        let begin = Instant::now();
        // Without the writer the daemon is about to end.
        let Ok(holders) = self.handle.virtual_server_owners() else { return String::new() };
        match Reading::take(&mut self.kernel, holders, self.endpoints) {
            Ok(reading) => {
                self.told.failed = false;
                self.tell_of_dropped(reading.dropped);
                series::text(&reading, begin.elapsed())
            }
            Err(error) => {
                if !mem::replace(&mut self.told.failed, true) {
                    warn!("no traffic of Services is shown: {}", one_line(&error));
                }
                String::new()
            }
        }
    }

    fn tell_of_dropped(&mut self, dropped: usize) {
        if dropped > 0 && !mem::replace(&mut self.told.dropped, true) {
            warn!(
                "more traffic of Services than is shown: {dropped} series are left out, {} are there",
                reading::MOST_SERIES
            );
        }
        self.told.dropped = dropped > 0;
    }
}

#[cfg(test)]
mod tests;
