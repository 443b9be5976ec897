//! What each Service carries, as IPVS counts it, under kube-router's names; if it is asked for.
//!
//! IPVS has the counters of a virtual server in the dump of all of them, and those of real servers in a dump for each
//! virtual server. Both are read when somebody asks for the page, by a thread and a socket of their own: the writer
//! is asked for nothing but whose virtual server is whose. The thread makes the text, too, since the page is put together where
//! nothing may take long.

mod reading;
mod series;

use std::{
    io, mem,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use hyper::body::Bytes;
use ipvs::Ipvs;
use reconciler::Handle;
use tokio::{sync::oneshot, time::timeout};
use tracing::warn;
use watcher::one_line;

use crate::config::ServiceMetrics;
use reading::Reading;

/// Whoever asks again within this time is shown the same. IPVS itself adds its counters up every two seconds.
const FRESH: Duration = Duration::from_secs(5);
/// How long a page waits for a new reading. Later it shows the one before.
const PATIENCE: Duration = Duration::from_secs(5);

/// The text that is shown. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Traffic(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// The way to the thread, once it runs.
    thread: OnceLock<Sender<oneshot::Sender<()>>>,
    shown: Mutex<Shown>,
}

#[derive(Debug, Default)]
struct Shown {
    text: Bytes,
    /// When it was read.
    at: Option<Instant>,
}

impl Traffic {
    /// Starts the thread. Without it nothing is shown.
    pub fn start(
        &self,
        of: ServiceMetrics,
        kernel: impl Ipvs + Send + 'static,
        handle: Handle,
    ) -> io::Result<()> {
        if of == ServiceMetrics::Off {
            return Ok(());
        }
        let (asks, asked) = channel();
        // Whoever starts it a second time has a thread that nobody asks, which ends at once.
        _ = self.0.thread.set(asks);
        let reader =
            Reader { kernel, handle, endpoints: of == ServiceMetrics::Endpoint, told: Told::default() };
        // Weak, so that the thread ends with the page.
        let shared = Arc::downgrade(&self.0);
        let run = move || {
            reader.run(&asked, |shown| {
                if let Some(shared) = shared.upgrade() {
                    *shared.shown() = shown;
                }
            });
        };
        thread::Builder::new().name("traffic".into()).spawn(run).map(drop)
    }

    /// The series in Prometheus' text format, as fresh as they can be had without waiting for long.
    pub(super) async fn text(&self) -> Bytes {
        self.refresh().await;
        self.0.shown().text.clone()
    }

    async fn refresh(&self) {
        let Some(thread) = self.0.thread.get() else { return };
        if self.0.shown().at.is_some_and(|at| at.elapsed() < FRESH) {
            return;
        }
        let (done, read) = oneshot::channel();
        if thread.send(done).is_ok() {
            _ = timeout(PATIENCE, read).await;
        }
    }
}

impl Shared {
    /// Nothing that holds the lock can panic.
    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn run(mut self, asked: &Receiver<oneshot::Sender<()>>, show: impl Fn(Shown)) {
        while let Ok(first) = asked.recv() {
            // One reading serves all who have asked.
            let waiting: Vec<_> = asked.try_iter().chain([first]).collect();
            show(Shown { text: self.text().into(), at: Some(Instant::now()) });
            for done in waiting {
                _ = done.send(());
            }
        }
    }

    /// What could not be read is not shown, rather than what it was at some time.
    fn text(&mut self) -> String {
        let begin = Instant::now();
        // Without the writer the daemon is about to end.
        let Ok(holders) = self.handle.holders() else { return String::new() };
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
