//! TCP connections to Services, each of which is accounted for: answered, refused as it should be, or lost.

mod counts;

use std::{
    net::{IpAddr, SocketAddr},
    ops::Range,
    sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
pub(crate) use counts::{Counts, Tally};
use nix::errno::Errno;
use testkit::lab::{Connection, Host, Manner};

/// How long a connection may take to open, and an answer over an open one. After seconds of lost packets, TCP
/// waits seconds before it retransmits.
const PATIENCE: Duration = Duration::from_secs(30);
/// Source ports of a target, for connections that stay and for short ones.
const PORTS: u16 = 500;
const FIRST_PORT: u16 = 10_000;

/// A Service and who connects to it.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    pub(crate) name: String,
    /// When it was made: what is lost is reported with the seconds since then.
    pub(crate) since: Instant,
    from: &'a Host,
    pub(crate) to: SocketAddr,
    /// IPVS knows a reply by the real server, the client and their ports (`ip_vs_conn_out_get`) and not by
    /// the VIP: a client that used one port for two Services with the same pod would hang. So each target has
    /// ports of its own.
    staying: SourcePorts,
    short: SourcePorts,
    /// How short connections are made.
    manner: Manner,
    pub(crate) vacancy: Vacancy,
    pub(crate) held: Tally,
    pub(crate) asked: Tally,
    /// How often every open connection has been used, and how many short ones have come to their end.
    rounds: AtomicU64,
    asks: AtomicU64,
}

/// Ports that are used in turn.
#[derive(Debug)]
struct SourcePorts {
    first: u16,
    next: AtomicU16,
}

/// A connection that is held.
struct Open {
    connection: Connection,
    source: SocketAddr,
    since: Instant,
    /// When the client ends it.
    end: Option<Instant>,
}

/// How connections are held open.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) connections: usize,
    /// How many seconds each lives; without, to the end.
    pub(crate) lives: Option<Range<u64>>,
    /// A line goes forth and back over each of them this often.
    pub(crate) pause: Duration,
}

impl<'a> Target<'a> {
    /// The target of this number, each of which is given once.
    pub(crate) fn new(number: u16, name: impl Into<String>, from: &'a Host, to: SocketAddr) -> Self {
        let first = FIRST_PORT + number * 2 * PORTS;
        let ports = |first| SourcePorts { first, next: AtomicU16::new(0) };
        Self {
            name: name.into(),
            since: Instant::now(),
            from,
            to,
            staying: ports(first),
            short: ports(first + PORTS),
            manner: Manner::default(),
            vacancy: Vacancy::default(),
            held: Tally::default(),
            asked: Tally::default(),
            rounds: AtomicU64::new(0),
            asks: AtomicU64::new(0),
        }
    }

    /// With short connections as patient as those that stay: their client may have to repeat its SYN.
    pub(crate) fn patient(mut self) -> Self {
        self.manner.patience = PATIENCE;
        self
    }

    /// A connection that stays.
    pub(crate) fn connect(&self) -> Result<Connection> {
        self.open(None).map(|open| open.connection)
    }

    fn open(&self, life: Option<Duration>) -> Result<Open> {
        let (source, since) = (self.staying.next(self.from.address(self.to.ip())), Instant::now());
        let connection = self
            .from
            .connect_in(Manner { source: Some(source), patience: PATIENCE }, self.to)
            .with_context(|| format!("from port {}", source.port()))?;
        Ok(Open { connection, source, since, end: life.map(|life| Instant::now() + life) })
    }

    /// Holds connections open and uses them, until `stop` is set. One that is lost is followed by
    /// another.
    pub(crate) fn hold(&self, how: &Held, seed: u64, stop: &AtomicBool) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut open: Vec<Open> = Vec::new();
        loop {
            let last = stop.load(Relaxed);
            open.retain_mut(|open| self.is_whole(open, Connection::ask_for_echo));
            open.retain_mut(|open| self.is_whole(open, Connection::expect_echo));
            // Broken off by the client, so that IPVS has forgotten it in ten seconds.
            let is_over = |end: Option<Instant>| last || end.is_some_and(|end| end < Instant::now());
            for ended in open.extract_if(.., |open| is_over(open.end)) {
                drop(ended.connection.reset());
                self.held.count(|held| &mut held.answered);
            }
            self.rounds.fetch_add(1, Relaxed);
            if last {
                return;
            }
            while open.len() < how.connections {
                let life = how.lives.clone().map(|lives| Duration::from_secs(random.u64(lives)));
                let Some(opened) = self.counted(&self.held, || self.open(life)) else { break };
                open.push(opened);
            }
            thread::sleep(how.pause);
        }
    }

    /// Connects, asks and breaks off, over and over, until `stop` is set.
    pub(crate) fn ask(&self, pause: Duration, stop: &AtomicBool) {
        while !stop.load(Relaxed) {
            let address = self.from.address(self.to.ip());
            let source = self.short.next(address);
            let ask = || {
                let connection =
                    self.from.connect_in(Manner { source: Some(source), ..self.manner }, self.to);
                connection.with_context(|| format!("from port {}", source.port()))?.reset()
            };
            if self.counted(&self.asked, ask).is_some() {
                self.asked.count(|asked| &mut asked.answered);
            }
            self.asks.fetch_add(1, Relaxed);
            thread::sleep(pause);
        }
    }

    /// How often every open connection has been used so far, and how many short ones have come to their end.
    pub(crate) fn rounds(&self) -> [u64; 2] {
        [&self.rounds, &self.asks].map(|rounds| rounds.load(Relaxed))
    }

    fn is_whole(&self, open: &mut Open, use_it: impl FnOnce(&mut Connection) -> Result<()>) -> bool {
        let used = use_it(&mut open.connection).with_context(|| {
            format!("from port {}, {:.2} s old", open.source.port(), open.since.elapsed().as_secs_f64())
        });
        used.map_err(|error| self.held.lose(|held| &mut held.broken, self.cause(&error))).is_ok()
    }

    fn counted<T>(&self, tally: &Tally, connect: impl FnOnce() -> Result<T>) -> Option<T> {
        let vacancy = self.vacancy.now();
        tally.count(|counts| &mut counts.opened);
        match connect() {
            Ok(connected) => Some(connected),
            Err(error) if is_refusal(&error) && !self.vacancy.was_served_since(vacancy) => {
                tally.count(|counts| &mut counts.refused);
                None
            }
            Err(error) => {
                tally.lose(|counts| &mut counts.unanswered, self.cause(&error));
                None
            }
        }
    }

    /// Why a connection was lost, and when.
    fn cause(&self, error: &anyhow::Error) -> String {
        format!("{} after {:.2} s: {error:#}", self.name, self.since.elapsed().as_secs_f64())
    }
}

impl SourcePorts {
    fn next(&self, address: IpAddr) -> SocketAddr {
        SocketAddr::new(address, self.first + self.next.fetch_add(1, Relaxed) % PORTS)
    }
}

fn is_refusal(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref::<Errno>() == Some(&Errno::ECONNREFUSED))
}

/// Whether a Service has endpoints. The number is odd while it may have none.
#[derive(Debug, Default)]
pub(crate) struct Vacancy(AtomicU64);

impl Vacancy {
    /// From now on there may be no endpoint.
    pub(crate) fn begin(&self) {
        self.0.fetch_or(1, Relaxed);
    }

    /// From now on there is one.
    pub(crate) fn end(&self) {
        if !self.0.load(Relaxed).is_multiple_of(2) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn now(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Whether there has been an endpoint ever since [`Vacancy::now`] returned this.
    fn was_served_since(&self, then: u64) -> bool {
        then.is_multiple_of(2) && self.now() == then
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_right_if_there_was_no_endpoint_at_its_beginning_or_meanwhile() {
        let vacancy = Vacancy::default();
        let before = vacancy.now();
        assert!(vacancy.was_served_since(before));
        vacancy.begin();
        assert!(!vacancy.was_served_since(before));
        let meanwhile = vacancy.now();
        vacancy.begin();
        vacancy.end();
        vacancy.end();
        assert!(!vacancy.was_served_since(before) && !vacancy.was_served_since(meanwhile));
        assert!(vacancy.was_served_since(vacancy.now()));
    }
}
