//! A reconciler on the fake kernel, and the objects it is fed with.
pub(crate) mod objects;

use std::{
    collections::BTreeSet,
    sync::mpsc::{Receiver, channel},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use ipvs::{Family, Protocol};
use netfilter::conntrack::StaleFlows;
use reconciler::{Callbacks, Handle, Notice, Observer, SyncStatus, Timing, start};
use service::{Change, EndpointSlice, Event, Options, Service, State};
use testkit::{FakeKernel, fake_kernel::State as KernelState};
use watcher::{Foreign, Kernel, Ownership};

pub(crate) use objects::{active_connections, at, endpoint, real, service, slice};

pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// Timing by which syncs come only on changes and when asked for, and at once.
pub(crate) const AT_ONCE: Timing = Timing {
    sync_period: LONG,
    min_sync_period: Duration::ZERO,
    drain_timeout: None,
    tcp_timeout: Timing::TCP_TIMEOUT,
};

/// How a reconciler is configured.
pub(crate) struct Setup {
    pub(crate) timing: Timing,
    pub(crate) options: Options,
    pub(crate) families: BTreeSet<Family>,
    pub(crate) exclude: &'static [&'static str],
    pub(crate) observers: Vec<Box<dyn Observer>>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            timing: AT_ONCE,
            options: Options::new("node"),
            families: BTreeSet::from(Family::BOTH),
            exclude: &[],
            observers: Vec::new(),
        }
    }
}

/// A running reconciler. It is stopped when dropped.
pub(crate) struct Running {
    pub(crate) kernel: FakeKernel,
    pub(crate) handle: Handle,
    notices: Receiver<Notice>,
    pub(crate) stale_flows: Receiver<StaleFlows>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Starts a reconciler that serves the Service `web` with two TCP endpoints.
    pub(crate) fn serving_web() -> Self {
        let running = Self::on(&FakeKernel::new());
        running.lists(
            vec![service("web", "10.96.0.10", Protocol::Tcp)],
            vec![slice("web", Protocol::Tcp, &["10.244.0.1", "10.244.0.2"])],
        );
        running
    }

    /// Starts a reconciler with the default setup.
    pub(crate) fn on(kernel: &FakeKernel) -> Self {
        Self::with(kernel, Setup::default())
    }

    pub(crate) fn timed(kernel: &FakeKernel, timing: Timing) -> Self {
        Self::with(kernel, Setup { timing, ..Setup::default() })
    }

    pub(crate) fn with(kernel: &FakeKernel, setup: Setup) -> Self {
        let (ipvs, netfilter, dummy_interface) = kernel.subsystems();
        let ours = Ownership {
            families: setup.families,
            exclude: setup.exclude.iter().map(|range| range.parse().unwrap()).collect(),
            foreign: Foreign::Delete,
        };
        let (notice, notices) = channel();
        let (flows, stale_flows) = channel();
        let callbacks = Callbacks {
            notices: Box::new(move |sent| notice.send(sent).unwrap()),
            stale_flows: Box::new(move |stale| flows.send(stale).unwrap()),
            observers: setup.observers,
        };
        let (handle, thread) = start(
            State::new(setup.options),
            Kernel { ipvs, netfilter, dummy_interface },
            ours,
            setup.timing,
            callbacks,
        )
        .unwrap();
        Self { kernel: kernel.clone(), handle, notices, stale_flows, thread: Some(thread) }
    }

    /// The notices that were given since the last call. A forced sync comes after all earlier changes.
    pub(crate) fn notices(&self) -> Vec<Notice> {
        self.handle.resync().unwrap();
        self.notices.try_iter().collect()
    }

    /// The stale flows that were handed over since the last call, one set for each time.
    pub(crate) fn stale_flows(&self) -> Vec<StaleFlows> {
        self.settled();
        self.stale_flows.try_iter().collect()
    }

    pub(crate) fn tell(&self, change: Change) {
        self.handle.change(change);
    }

    /// Tells both lists, and waits for the first sync.
    pub(crate) fn lists(&self, services: Vec<Service>, slices: Vec<EndpointSlice>) {
        self.tell(Change::Services(Event::Replace(services)));
        self.tell(Change::Slices(Event::Replace(slices)));
        self.settled();
    }

    /// Waits until every change is in the kernel.
    pub(crate) fn settled(&self) {
        self.status_where(|status| status.synced);
    }

    /// Waits until the status is as wanted, and returns it.
    pub(crate) fn status_where(&self, mut wanted: impl FnMut(&SyncStatus) -> bool) -> SyncStatus {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let status = self.handle.status().unwrap();
            if wanted(&status) {
                return status;
            }
            assert!(Instant::now() < deadline, "{status:?}\n{}", self.kernel.writes());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until the kernel is as wanted.
    pub(crate) fn kernel_where(&self, wanted: impl Fn(&KernelState) -> bool) {
        self.status_where(|_| wanted(&self.kernel.state()));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kernel.state().most_summaries = None;
        let _ = self.handle.stop();
        if let Some(thread) = self.thread.take() {
            assert!(thread.join().is_ok(), "the writer thread panicked");
        }
    }
}
