//! Whether endpoints answer, by what IPVS counts for them.
//!
//! A thread with a socket of its own reads the counters a little after each of the kernel's ticks: first the sum of all
//! connections; if that has grown, the virtual servers in one dump; and of those with new connections, or with
//! endpoints about which something is known, the real servers. It then rests at least 199 times as long as it had a
//! processor for that, so that it takes no more than a two-hundredth of one however many there are. Time in which it waits
//! for a processor does not count: endpoints fail on busy nodes too.
//!
//! [`service::liveness`] judges; `explain`, `status`, the metrics, the log and Events say what it found.

mod table;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use ipvs::{
    Ipvs, ObservedVirtualServer, Protocol, RealServerAddress, ServiceAddress, proc_net::total_connections,
};
use nix::time::{ClockId, clock_gettime};
use reconciler::{Handle, WantedAnswers};
use serde::{Deserialize, Serialize};
use service::{Answers, Explanation, ObjectName, in_turn, liveness::Liveness, one_line};
use tracing::{info, warn};

use crate::{
    events::{Cause, Outbox},
    node::sysctl::{RUN_ESTIMATION, Sysctl},
};
pub use table::{EndpointCounts, FailingEndpoint};
use table::{Failing, RealServers, Table};

/// The shortest pause: a little more than a tick.
const PAUSE: Duration = Duration::from_millis(2_100);
/// The shortest pause where failing endpoints are ejected: each tick that is missed costs clients.
const SHORT_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause, on a node where reading takes long.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The pause after a reading, as a multiple of the processor time that it took.
const REST: u32 = 199;

/// How long clients fail at an endpoint, from the first to the last one, before it is logged and an Event says so: an
/// endpoint that goes away is removed sooner, and one lost client or a scan of ports does not count.
const LASTING: Duration = Duration::from_secs(10);
/// The limit of failing endpoints that are named.
const MOST_NAMED: usize = 20;

/// The kernel's totals, in the namespace of the thread that reads.
const TOTALS: &str = "/proc/thread-self/net/ip_vs_stats";

/// What is known about the answers of endpoints. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct EndpointAnswers(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    table: Table,
    summary: AnswersSummary,
}

/// Whether the endpoints of this node's virtual servers answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswersSummary {
    /// Why this is not known, if it is not.
    pub unknown: Option<String>,
    /// How many endpoints were sent anything within the last minute, by whether they answer.
    #[serde(flatten)]
    pub counts: EndpointCounts,
    /// Those that fail, those that have failed longest first; at most 20, in turn by namespaces.
    pub failing: Vec<FailingEndpoint>,
}

impl EndpointAnswers {
    /// Starts the thread. It ends with the last clone.
    pub(crate) fn start(
        &self,
        kernel: impl Ipvs + Send + 'static,
        handle: Handle,
        outbox: Outbox,
    ) -> io::Result<()> {
        let known = Arc::downgrade(&self.0);
        let reader = Reader {
            kernel,
            handle,
            outbox,
            total: None,
            logged: BTreeMap::new(),
            failed: false,
            took: Duration::ZERO,
        };
        thread::Builder::new().name("liveness".into()).spawn(move || reader.run(&known)).map(drop)
    }

    /// The summary of the last reading.
    pub(crate) fn summary(&self) -> AnswersSummary {
        open(&self.0).summary.clone()
    }

    /// Adds to each used endpoint of an explanation whether it answers.
    pub(crate) fn add_to(&self, explanation: &mut Explanation) {
        let (known, now) = (open(&self.0), Instant::now());
        for part in &mut explanation.parts {
            for endpoint in &mut part.endpoints {
                let at = part.addresses.iter().filter(|it| it.held_by.is_none()).map(|it| it.address);
                endpoint.answering = known.table.answering(at, endpoint.address, now);
            }
        }
    }
}

/// Locks what is known. Nothing that holds the lock can panic.
fn open(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long to rest after a reading that took so much processor time.
fn pause_after(took: Duration, wanted: WantedAnswers) -> Duration {
    let shortest = if wanted == WantedAnswers::None { PAUSE } else { SHORT_PAUSE };
    (took * REST).clamp(shortest, LONGEST_PAUSE)
}

/// How long this thread has had a processor. Every Linux has this clock.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

/// Reads the counters from time to time.
struct Reader<I> {
    kernel: I,
    handle: Handle,
    outbox: Outbox,
    /// All connections, at the last reading.
    total: Option<u64>,
    /// The failing endpoints that were logged, each with the virtual server at which it fails.
    logged: BTreeMap<Endpoint, ServiceAddress>,
    /// Whether the last reading failed.
    failed: bool,
    /// The processor time that the last reading took.
    took: Duration,
}

/// An endpoint of a Service.
type Endpoint = (ObjectName, Protocol, RealServerAddress);

impl<I: Ipvs> Reader<I> {
    fn run(mut self, known: &Weak<Mutex<Known>>) {
        let mut pause = PAUSE;
        loop {
            thread::sleep(pause);
            let Some(known) = known.upgrade() else { return };
            let read = self.read(&known);
            if let Err(error) = &read {
                let unknown = one_line(error);
                if !self.failed {
                    warn!("cannot tell whether endpoints answer: {unknown}");
                }
                open(&known).summary = AnswersSummary { unknown: Some(unknown), ..AnswersSummary::default() };
                self.total = None;
            }
            self.failed = read.is_err();
            pause = pause_after(self.took, self.handle.wanted_answers());
        }
    }

    fn read(&mut self, known: &Mutex<Known>) -> Result<(), ipvs::Error> {
        let begin = processor_time();
        self.took = Duration::ZERO;
        if Sysctl::at(Path::new("/")).number(RUN_ESTIMATION) == Some(0) {
            let unknown = Some(format!("{RUN_ESTIMATION} is 0, so IPVS does not update its counters"));
            let summary = AnswersSummary { unknown, ..AnswersSummary::default() };
            *open(known) = Known { table: Table::default(), summary };
            self.total = None;
            return Ok(());
        }
        let total = fs::read(TOTALS).ok().and_then(|text| total_connections(&text));
        let is_quiet = total.is_some() && total == self.total;
        self.total = total;
        if is_quiet && !open(known).table.may_change(Instant::now()) {
            return Ok(());
        }
        let (servers, real_servers) = self.counters(known)?;
        let now = Instant::now();
        let (counts, failing) = {
            let Known { table, .. } = &mut *open(known);
            table.update(&servers, &real_servers, now);
            self.send_answers(table, now);
            (table.counts(), table.failing(now))
        };
        // What follows waits for the writer.
        self.took = processor_time().saturating_sub(begin);
        let failing = self.of_services(failing);
        self.report(known, &failing);
        let failing = in_turn(failing, MOST_NAMED, |it| it.service.namespace().to_owned());
        open(known).summary = AnswersSummary { unknown: None, counts, failing };
        Ok(())
    }

    /// Sends what endpoints answer to the writer, which determines who is ejected, as far as it has to know.
    fn send_answers(&self, table: &Table, now: Instant) {
        let wanted = self.handle.wanted_answers();
        if wanted == WantedAnswers::None {
            return;
        }
        let endpoints = table.answers(now);
        if wanted == WantedAnswers::All || !table.failing(now).is_empty() {
            self.handle.answers(Answers { at: now, endpoints });
        }
    }

    /// All virtual servers, and the real servers of those with something to judge.
    fn counters(
        &mut self,
        known: &Mutex<Known>,
    ) -> Result<(Vec<ObservedVirtualServer>, RealServers), ipvs::Error> {
        let servers = self.kernel.virtual_servers()?;
        let wanted: Vec<_> = {
            let (table, now) = (&open(known).table, Instant::now());
            servers.iter().filter_map(|server| table.must_be_read(server, now)).collect()
        };
        let read = wanted.into_iter().map(|at| Ok((at, self.kernel.real_servers(at.into())?)));
        let real_servers = read.collect::<Result<_, ipvs::Error>>()?;
        Ok((servers, real_servers))
    }

    /// The failing endpoints of Services, those that have failed longest first. One that fails at several addresses of
    /// its Service is listed once.
    fn of_services(&self, failing: Vec<Failing>) -> Vec<FailingEndpoint> {
        if failing.is_empty() {
            return Vec::new();
        }
        let addresses = failing.iter().map(|(virtual_server, ..)| *virtual_server).collect();
        // Without the writer the daemon is about to end.
        let owners = self.handle.owners(addresses).unwrap_or_default();
        let mut oldest = BTreeMap::<Endpoint, FailingEndpoint>::new();
        for (owner, (virtual_server, endpoint, answering, span)) in owners.into_iter().zip(failing) {
            let Some(service) = owner else { continue };
            let key = (service.clone(), virtual_server.protocol, endpoint);
            let failing = FailingEndpoint { service, virtual_server, endpoint, answering, span };
            let known = oldest.entry(key).or_insert_with(|| failing.clone());
            if (answering.age, virtual_server) > (known.answering.age, known.virtual_server) {
                *known = failing;
            }
        }
        let mut all: Vec<_> = oldest.into_values().collect();
        all.sort_by_key(|it| Reverse(it.answering.age));
        all
    }

    /// Logs what begins and ceases to fail, and posts an Event about what begins to.
    fn report(&mut self, known: &Mutex<Known>, failing: &[FailingEndpoint]) {
        let key = |it: &FailingEndpoint| (it.service.clone(), it.virtual_server.protocol, it.endpoint);
        let failing_now: BTreeSet<_> = failing.iter().map(key).collect();
        self.logged.retain(|endpoint, virtual_server| {
            let (service, protocol, address) = endpoint;
            let fails = failing_now.contains(endpoint);
            let answering =
                || open(known).table.answering([*virtual_server].into_iter(), *address, Instant::now());
            // One that is gone, or that no client has tried since, is forgotten.
            if !fails && answering().is_some_and(|it| it.liveness == Liveness::Answers) {
                info!(namespace = service.namespace(), object = %service, "{service}: {protocol} {address} no longer fails");
            }
            fails
        });
        for it in failing.iter().filter(|it| it.span >= LASTING) {
            if self.logged.insert(key(it), it.virtual_server).is_none() {
                warn!(namespace = it.service.namespace(), object = %it.service, "{it}");
                // Without addresses, so that all nodes say the same and one Event is enough.
                let do_what = if it.answering.liveness == Liveness::Refuses {
                    "refuse connections"
                } else {
                    "do not answer"
                };
                let text = format!("endpoints {do_what}: kube-ipvs explain {} names them", it.service);
                self.outbox.post_about_service(it.service.clone(), Cause::ENDPOINT_FAILING, text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_a_reading_waits_for_a_processor_is_not_rested_for() {
        let begin = processor_time();
        thread::sleep(Duration::from_millis(300));
        let waited = processor_time().saturating_sub(begin);
        assert_eq!(pause_after(waited, WantedAnswers::All), SHORT_PAUSE, "{waited:?}");
        while processor_time().saturating_sub(begin) < Duration::from_millis(20) {}
        let worked = processor_time().saturating_sub(begin);
        assert!(pause_after(worked, WantedAnswers::All) >= Duration::from_secs(3), "{worked:?}");
    }
}
