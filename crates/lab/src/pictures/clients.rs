//! Clients that connect all the time, and what became of each attempt.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use ipvs::ServiceAddress;
use testkit::lab::{Host, Manner};

/// The time between two connections.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a client waits.
const PATIENCE: Duration = Duration::from_secs(10);

/// The time that [`Clients::last_second`] counts.
const SECOND: Duration = Duration::from_secs(1);

/// Every attempt.
#[derive(Default)]
pub(super) struct Clients {
    attempts: Mutex<Vec<Attempt>>,
    stop: AtomicBool,
}

/// A connection with one question.
struct Attempt {
    begun: Instant,
    ended: Option<Instant>,
    /// The pod that answered.
    from: Option<String>,
}

impl Clients {
    /// Connects until [`Clients::stop`], and waits for the last answers.
    pub(super) fn connect(&self, host: &Host, service: SocketAddr) {
        let to = ServiceAddress { ip: service.ip(), port: service.port(), protocol: ipvs::Protocol::Tcp };
        thread::scope(|scope| {
            while !self.stop.load(Ordering::Relaxed) {
                let number = self.begin();
                scope.spawn(move || {
                    let answer = host.ask_in(Manner { patience: PATIENCE, ..Manner::default() }, to);
                    self.end(number, answer.ok().map(|answer| answer.from));
                });
                thread::sleep(PAUSE);
            }
        });
    }

    /// No connection is begun any more.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    fn begin(&self) -> usize {
        let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        attempts.push(Attempt { begun: Instant::now(), ended: None, from: None });
        attempts.len() - 1
    }

    fn end(&self, number: usize, from: Option<String>) {
        let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(attempt) = attempts.get_mut(number) {
            attempt.ended = Some(Instant::now());
            attempt.from = from;
        }
    }

    /// What a client notices: who answered in the second before a moment, how many failed in it, and how many wait.
    pub(super) fn last_second(&self, pods: &[Host], moment: Instant) -> String {
        let attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut answers: BTreeMap<&str, usize> = pods.iter().map(|pod| (pod.name.as_str(), 0)).collect();
        let (mut failed, mut waiting) = (0, 0);
        for attempt in attempts.iter().filter(|attempt| attempt.begun <= moment) {
            match (attempt.ended.filter(|ended| *ended <= moment), &attempt.from) {
                (None, _) => waiting += 1,
                (Some(ended), _) if moment - ended > SECOND => {}
                (_, None) => failed += 1,
                (_, Some(pod)) => *answers.entry(pod).or_default() += 1,
            }
        }
        let answers: Vec<_> = answers.iter().map(|(pod, count)| format!("{pod} {count:<2}")).collect();
        format!("clients, last second:  {}  failed {failed:<2}  waiting {waiting}", answers.join("  "))
    }
}
