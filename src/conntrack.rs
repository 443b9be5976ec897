//! The conntrack thread, which removes stale UDP flows: reading conntrack's table takes as long as the table
//! is large.

use std::{
    io,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use netfilter::conntrack::{Conntrack, StaleFlows};
use reconciler::StaleFlowCallback;
use service::one_line;
use tracing::{debug, warn};

use crate::serve::metrics::CleanupMetrics;

/// The pause after a reading, as a multiple of its duration: a million entries take a second, and Services
/// whose endpoints come and go must not keep a processor busy. Flows that arrive during the pause share one
/// reading.
const REST: u32 = 9;

/// The pause before the first retry; each further one is twice as long.
const PAUSE: Duration = Duration::from_secs(1);

/// The failures in a row, two minutes' worth, after which the flows are given up: by then conntrack has
/// forgotten flows that have ended (`nf_conntrack_udp_timeout_stream`).
const ATTEMPTS: u32 = 8;

/// Starts the thread, which counts in `metrics` what it does. To drop the queue is to wait until what was
/// left there has been tried, and the thread has ended.
pub(crate) fn start(
    conntrack: impl Conntrack + 'static,
    metrics: CleanupMetrics,
) -> io::Result<StaleFlowCallback> {
    let (sender, inbox) = channel();
    let cleanup =
        CleanupThread { conntrack, metrics, flows: StaleFlows::default(), failures: 0, reported: false };
    let thread = thread::Builder::new().name("conntrack".into()).spawn(move || cleanup.run(&inbox))?;
    let queue = Queue { sender: Some(sender), thread: Some(thread) };
    Ok(Box::new(move |flows| queue.push(flows)))
}

/// Sends flows to the thread.
struct Queue {
    sender: Option<Sender<StaleFlows>>,
    thread: Option<JoinHandle<()>>,
}

impl Queue {
    fn push(&self, flows: StaleFlows) {
        if let Some(sender) = &self.sender {
            // The writer can do nothing about a missing thread.
            drop(sender.send(flows));
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        drop(self.sender.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

struct CleanupThread<C> {
    conntrack: C,
    metrics: CleanupMetrics,
    /// The flows to delete.
    flows: StaleFlows,
    /// The failures in a row.
    failures: u32,
    /// Whether the failure was reported. Reset by a success.
    reported: bool,
}

impl<C: Conntrack> CleanupThread<C> {
    fn run(mut self, inbox: &Receiver<StaleFlows>) {
        let mut rested = Instant::now();
        loop {
            let received = match self.flows.is_empty() {
                true => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => inbox.recv_timeout(rested.saturating_duration_since(Instant::now())),
            };
            match received {
                Ok(flows) => self.flows.merge(flows),
                Err(RecvTimeoutError::Timeout) => {
                    let rest = self.attempt();
                    rested = Instant::now() + rest;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        // The next daemon would not know these flows.
        if !self.flows.is_empty() {
            self.attempt();
        }
    }

    /// Deletes the flows. Returns the pause until the next attempt.
    fn attempt(&mut self) -> Duration {
        let begin = Instant::now();
        match self.conntrack.delete(&self.flows) {
            Ok(deleted) => {
                let took = begin.elapsed();
                debug!(
                    asked = self.flows.addresses().len(),
                    deleted = deleted.total(),
                    took = took.as_secs_f64(),
                    "stale UDP flows"
                );
                self.metrics.record(&self.flows, deleted, took);
                self.flows = StaleFlows::default();
                (self.failures, self.reported) = (0, false);
                took * REST
            }
            Err(error) => self.failed(&one_line(&error)),
        }
    }

    fn failed(&mut self, cause: &str) -> Duration {
        self.failures += 1;
        if !self.reported {
            warn!("UDP flows to endpoints that are gone may go on, trying again: {cause}");
            self.reported = true;
        }
        if self.failures == ATTEMPTS {
            debug!(flows = self.flows.addresses().len(), cause, "stale UDP flows given up");
            self.flows = StaleFlows::default();
            self.failures = 0;
            return Duration::ZERO;
        }
        PAUSE * 2u32.saturating_pow(self.failures - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        path::Path,
        time::{Duration, SystemTime},
    };

    use ipvs::{Family, Protocol, ServiceAddress};
    use netfilter::conntrack::{Deleted, Error};
    use netlink::{Errno, OperationError};

    use super::*;
    use crate::serve::{
        health::{Health, UnknownNode},
        metrics::Metrics,
    };

    /// Passes on what it was asked for, and gives the prepared answers.
    struct FakeConntrack {
        asked: Sender<StaleFlows>,
        answers: Receiver<Result<usize, Errno>>,
    }

    impl Conntrack for FakeConntrack {
        fn delete(&mut self, flows: &StaleFlows) -> Result<Deleted, Error> {
            self.asked.send(flows.clone()).unwrap();
            let refused = |errno| netlink::KernelError::new(errno).into();
            self.answers.recv().unwrap().map(|ipv4| Deleted { ipv4, ipv6: 0 }).map_err(|errno| {
                OperationError::Failed { operation: "test".into(), source: refused(errno) }.into()
            })
        }
    }

    /// The queue of a running thread, what it asks for, and where its answers come from.
    #[allow(clippy::type_complexity, reason = "three ends, each named where it is taken apart")]
    fn running() -> (StaleFlowCallback, Receiver<StaleFlows>, Sender<Result<usize, Errno>>) {
        let (asked, questions) = channel();
        let (answer, answers) = channel();
        (start(FakeConntrack { asked, answers }, metrics()).unwrap(), questions, answer)
    }

    fn metrics() -> CleanupMetrics {
        let health = Health::new(BTreeSet::new(), Duration::ZERO, UnknownNode::Eligible);
        Metrics::new(&[Family::V4].into(), SystemTime::now(), &health, [], None, Path::new("/"))
            .conntrack_cleanup()
    }

    fn flows(ports: &[u16]) -> StaleFlows {
        let to =
            |port: &u16| ServiceAddress { protocol: Protocol::Udp, ip: [10, 96, 0, 10].into(), port: *port };
        ports.iter().map(|port| (to(port), BTreeSet::new())).collect()
    }

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn flows_queued_during_a_reading_are_one_more_reading_and_queueing_does_not_block() {
        let (queue, questions, answer) = running();
        queue(flows(&[1]));
        assert_eq!(questions.recv_timeout(PATIENCE).unwrap(), flows(&[1]));
        // It has no answer yet.
        queue(flows(&[2]));
        queue(flows(&[3, 4]));
        queue(flows(&[2]));
        answer.send(Ok(1)).unwrap();
        assert_eq!(questions.recv_timeout(PATIENCE).unwrap(), flows(&[2, 3, 4]));
        answer.send(Ok(0)).unwrap();
        drop(queue);
        assert!(questions.try_recv().is_err(), "nothing was left, and the thread has ended");
    }

    #[test]
    fn what_could_not_be_deleted_is_tried_again_together_with_what_came_meanwhile() {
        let (queue, questions, answer) = running();
        queue(flows(&[1]));
        questions.recv_timeout(PATIENCE).unwrap();
        queue(flows(&[2]));
        answer.send(Err(Errno::ENOMEM)).unwrap();
        assert_eq!(questions.recv_timeout(PATIENCE).unwrap(), flows(&[1, 2]));
        answer.send(Ok(2)).unwrap();
    }

    #[test]
    fn what_is_left_when_the_daemon_ends_is_tried_once_more() {
        let (queue, questions, answer) = running();
        queue(flows(&[1]));
        questions.recv_timeout(PATIENCE).unwrap();
        for _ in 0..2 {
            answer.send(Err(Errno::ENOMEM)).unwrap();
        }
        drop(queue);
        assert_eq!(questions.try_recv().unwrap(), flows(&[1]));
        assert!(questions.try_recv().is_err());
    }

    #[test]
    fn the_pauses_grow_and_after_two_minutes_the_flows_are_given_up() {
        let (asked, _questions) = channel();
        let (_answer, answers) = channel();
        let mut cleanup = CleanupThread {
            conntrack: FakeConntrack { asked, answers },
            metrics: metrics(),
            flows: flows(&[1]),
            failures: 0,
            reported: false,
        };
        let pauses: Vec<_> = (1..ATTEMPTS).map(|_| cleanup.failed("no").as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64]);
        assert_eq!(cleanup.flows, flows(&[1]));
        assert_eq!(cleanup.failed("no"), Duration::ZERO);
        assert!(cleanup.flows.is_empty());
        assert_eq!(cleanup.failed("no"), PAUSE, "new ones are tried as often");
    }
}
