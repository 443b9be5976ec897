//! The traffic of each Service, as IPVS counts it, under kube-router's names; optional.
//!
//! IPVS has the counters of virtual servers in one dump, and those of real servers in a dump for each virtual server.
//! A thread with a socket of its own reads both when the page is requested. The writer is only asked for the owners
//! of virtual servers. The thread also makes the text, since the page is put together where nothing may take long.

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

use crate::{config::ServiceMetrics, finding::first_few};
use reading::TrafficReading;

/// How long a reading is fresh. IPVS itself sums its counters up every two seconds.
const FRESH: Duration = Duration::from_secs(5);
/// How long a page waits for a new reading before it shows the last one.
const PATIENCE: Duration = Duration::from_secs(5);
/// The age from which a reading is not shown: while the writer or the kernel hangs, rates of 0 would be believed.
const STALE: Duration = Duration::from_secs(30);

/// How many of the namespaces of which series are left out are logged.
const MOST_NAMED: usize = 5;

/// The text of the metrics. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct TrafficMetrics(Arc<TrafficPage>);

#[derive(Debug, Default)]
struct TrafficPage {
    /// Sends requests to the thread, once it runs. It holds one request, since one reading serves all.
    requests: OnceLock<SyncSender<()>>,
    rendered: watch::Sender<RenderedTraffic>,
}

#[derive(Debug, Default)]
struct RenderedTraffic {
    text: Bytes,
    /// When it was read.
    at: Option<Instant>,
}

impl TrafficMetrics {
    /// Opens the kernel and starts the thread, unless the metrics are off.
    pub fn start<I: Ipvs + Send + 'static>(
        &self,
        detail: ServiceMetrics,
        open: impl FnOnce() -> Result<I, ipvs::Error>,
        handle: Handle,
    ) -> anyhow::Result<()> {
        if detail == ServiceMetrics::Off {
            return Ok(());
        }
        let kernel = open()?;
        let (requests, asked) = sync_channel(1);
        // A second start has a thread without requests, which ends at once.
        _ = self.0.requests.set(requests);
        let reader = TrafficReader {
            kernel,
            handle,
            endpoints: detail == ServiceMetrics::Endpoint,
            logged: Logged::default(),
        };
        // Weak, so that the thread ends with the page.
        let page = Arc::downgrade(&self.0);
        let run = move || {
            reader.run(&asked, |rendered| {
                if let Some(page) = page.upgrade() {
                    page.rendered.send_replace(rendered);
                }
            });
        };
        let started = thread::Builder::new().name("traffic".into()).spawn(run);
        started.map(drop).context("cannot start the thread that reads traffic")
    }

    /// The series in Prometheus' text format, as fresh as possible without a long wait.
    pub(super) async fn text(&self) -> Bytes {
        let mut rendered = self.0.rendered.subscribe();
        if !rendered.borrow().is_younger_than(FRESH) && self.request_reading() {
            _ = timeout(PATIENCE, rendered.changed()).await;
        }
        let rendered = rendered.borrow();
        if rendered.is_younger_than(STALE) { rendered.text.clone() } else { Bytes::new() }
    }

    /// Requests a reading, unless one is requested. Returns whether there will be one.
    fn request_reading(&self) -> bool {
        let asked = self.0.requests.get().map(|requests| requests.try_send(()));
        matches!(asked, Some(Ok(()) | Err(TrySendError::Full(()))))
    }
}

impl RenderedTraffic {
    fn is_younger_than(&self, age: Duration) -> bool {
        self.at.is_some_and(|at| at.elapsed() < age)
    }
}

/// Reads the counters on request.
struct TrafficReader<I> {
    kernel: I,
    handle: Handle,
    endpoints: bool,
    logged: Logged,
}

/// What was logged: the same problem is logged once.
#[derive(Default)]
struct Logged {
    dropped: bool,
    failed: bool,
}

impl<I: Ipvs> TrafficReader<I> {
    fn run(mut self, asked: &Receiver<()>, show: impl Fn(RenderedTraffic)) {
        while asked.recv().is_ok() {
            let text = self.text().into();
            // This reading also serves requests made meanwhile.
            _ = asked.try_recv();
            show(RenderedTraffic { text, at: Some(Instant::now()) });
        }
    }

    /// The text; empty if reading fails, rather than outdated.
    fn text(&mut self) -> String {
        let begin = Instant::now();
        // Without the writer the daemon is about to end.
        let Ok(owners) = self.handle.virtual_server_owners() else { return String::new() };
        match TrafficReading::take(&mut self.kernel, owners, self.endpoints) {
            Ok(reading) => {
                self.logged.failed = false;
                self.log_dropped(&reading);
                series::text(&reading, begin.elapsed())
            }
            Err(error) => {
                if !mem::replace(&mut self.logged.failed, true) {
                    warn!("Service traffic is not shown: {}", one_line(&error));
                }
                String::new()
            }
        }
    }

    fn log_dropped(&mut self, TrafficReading { dropped, cut, .. }: &TrafficReading) {
        let dropped = *dropped;
        if dropped > 0 && !mem::replace(&mut self.logged.dropped, true) {
            warn!(
                "not all Service traffic is shown: {dropped} series are left out, {} are shown; of namespaces: {}",
                reading::MOST_SERIES,
                first_few(cut.iter().cloned(), MOST_NAMED)
            );
        }
        self.logged.dropped = dropped > 0;
    }
}

#[cfg(test)]
mod tests;
