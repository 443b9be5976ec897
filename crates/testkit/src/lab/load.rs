//! Traffic that goes on while something else happens, and a count of its results.
//!
//! Nothing is retried. Only the kernel's own TCP retransmits what was lost, as it does for every program; the
//! time of the slowest connection shows that.

use std::{
    collections::BTreeSet,
    fmt, io,
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use nix::sys::socket::SockProtocol;

use super::{Answer, Connection, Host, Manner, client, server::WHO};
use crate::{daemon::eventually_within, patience::patience};

/// How many connections to each target stay open.
const LONG_LIVED: usize = 2;

/// How often a line goes forth and back over each of them, and a datagram to each target.
const EXCHANGE_EVERY: Duration = Duration::from_millis(100);
const DATAGRAM_EVERY: Duration = Duration::from_millis(50);

/// How many short connections to one target may be open at once. More would only accumulate if they hang.
const UNDER_WAY: usize = 16;

/// How many short connections a second are aimed at, to all targets together.
const SHORT_PER_SECOND: u32 = 200;

/// The part of the machine's capacity that is used: the rest is for the program under test.
const SHARE: u32 = 8;

/// How long each step of a short connection, and each exchange over a long-lived one, may take.
/// Linux sends a lost SYN again after one second and after three.
const PATIENCE: Duration = Duration::from_secs(6);

/// How long it may take until the node is calm.
const CALM: Duration = Duration::from_secs(60);

/// How many times [`DATAGRAM_EVERY`] the last datagrams are waited for: three seconds.
const LAST_WAITS: u32 = 60;

/// How many failures are reported, each with its cause.
const REPORTED_FAILURES: usize = 5;

/// Who connects to what.
#[derive(Clone, Debug)]
pub struct Target<'a> {
    /// What it is called in the count.
    pub name: String,
    /// Whose programs connect.
    pub from: &'a Host,
    /// Where to, by TCP and by UDP.
    pub to: SocketAddr,
    /// The client address that the pods must see. Another address is a failure.
    pub seen_as: BTreeSet<IpAddr>,
}

/// Traffic to several targets.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    /// How many short connections a second are made, to all targets together.
    pub rate: u32,
    begun: Instant,
    running: Vec<Running>,
}

/// The threads of one target.
#[derive(Debug)]
struct Running {
    target: String,
    long_lived: Vec<JoinHandle<Result<Count>>>,
    short: JoinHandle<Result<Count>>,
    datagrams: JoinHandle<Result<Result<Count>>>,
}

/// What became of the traffic to a target.
#[derive(Clone, Debug)]
pub struct Tally {
    /// The target's name.
    pub target: String,
    /// Connections that were open all the time.
    pub long_lived: Count,
    /// Connections with one request and one answer each, closed by both ends.
    pub short: Count,
    /// Datagrams from one socket, each of which must be answered.
    pub datagrams: Count,
}

/// How many there were, and how many of them failed.
#[derive(Clone, Debug, Default)]
pub struct Count {
    /// How many there were.
    pub tried: usize,
    /// How many failed: refused, reset, timed out, seen as another client, lost.
    pub failed: usize,
    /// The causes of the first failures, each with the time since the load began.
    pub causes: Vec<String>,
    /// How long the slowest took; of datagrams, the longest time without an answer.
    pub slowest: Duration,
}

impl Load {
    /// Measures how many connections the machine manages, opens the long-lived ones, and runs until
    /// [`Load::finish`].
    pub fn start(targets: &[Target<'_>]) -> Result<Self> {
        let first = targets.first().context("a load without a target")?.clone();
        let aim = Aim { to: first.to, seen_as: first.seen_as, begun: Instant::now() };
        let managed = first.from.inside(move || calm_second(&aim))??;
        let rate = SHORT_PER_SECOND.min(managed / SHARE).max(1);
        let pause = Duration::from_secs(1) * u32::try_from(targets.len())? / rate;

        let stop = Arc::new(AtomicBool::new(false));
        let begun = Instant::now();
        let start = |target: &Target<'_>| -> Result<Running> {
            let aim = Aim { to: target.to, seen_as: target.seen_as.clone(), begun };
            let connect = || target.from.connect_in(manner(), aim.to).context("a long-lived connection");
            let connections = (0..LONG_LIVED).map(|_| connect()).collect::<Result<Vec<_>>>()?;
            let long_lived = connections.into_iter().map(|connection| {
                let stop = Arc::clone(&stop);
                thread::spawn(move || Ok(converse(connection, begun, &stop)))
            });
            let (short_stop, short_aim) = (Arc::clone(&stop), aim.clone());
            let datagrams_stop = Arc::clone(&stop);
            Ok(Running {
                target: target.name.clone(),
                long_lived: long_lived.collect(),
                short: target.from.spawn(move || connect_over_and_over(&short_aim, pause, &short_stop))?,
                datagrams: target.from.spawn(move || send_datagrams(&aim, &datagrams_stop))?,
            })
        };
        let running = targets.iter().map(start).collect::<Result<_>>()?;
        Ok(Self { stop, rate, begun, running })
    }

    /// How long the load has been running.
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Ends the traffic and counts.
    pub fn finish(self) -> Result<Vec<Tally>> {
        self.stop.store(true, Ordering::Relaxed);
        self.running.into_iter().map(Running::finish).collect()
    }
}

impl Running {
    fn finish(self) -> Result<Tally> {
        let panicked = || anyhow!("a thread of the load has panicked");
        let count = |thread: JoinHandle<Result<Count>>| thread.join().map_err(|_| panicked())?;
        let mut long_lived = Count::default();
        for thread in self.long_lived {
            long_lived.add(count(thread)?);
        }
        let short = count(self.short)?;
        let datagrams = self.datagrams.join().map_err(|_| panicked())???;
        Ok(Tally { target: self.target, long_lived, short, datagrams })
    }
}

/// What a thread aims at.
#[derive(Clone, Debug)]
struct Aim {
    to: SocketAddr,
    seen_as: BTreeSet<IpAddr>,
    begun: Instant,
}

impl Aim {
    fn check(&self, answer: &Answer) -> Result<()> {
        ensure!(
            self.seen_as.contains(&answer.seen_as),
            "{} saw the client as {}",
            answer.from,
            answer.seen_as
        );
        Ok(())
    }
}

/// How many connections, one after the other, fit into a second in which none fails. A proxy that has just
/// started may still be busy, and so may others on the machine; the load must not begin before it is calm.
fn calm_second(aim: &Aim) -> Result<u32> {
    eventually_within(CALM, "a second in which every connection is answered", || {
        let begun = Instant::now();
        let mut managed = 0;
        while begun.elapsed() < Duration::from_secs(1) {
            ask(aim)?;
            managed += 1;
        }
        Ok(managed)
    })
}

fn manner() -> Manner {
    Manner { source: None, patience: patience(PATIENCE) }
}

/// A connection from its beginning to its end.
fn ask(aim: &Aim) -> Result<()> {
    let connection = Connection::open(SockProtocol::Tcp, manner(), aim.to)?;
    aim.check(&connection.answer)?;
    connection.close()
}

/// Short connections at a steady pace: one that hangs does not delay the others.
fn connect_over_and_over(aim: &Aim, pause: Duration, stop: &AtomicBool) -> Count {
    let (results, ended) = mpsc::channel();
    let under_way = Arc::new(());
    let mut next = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        if Arc::strong_count(&under_way) > UNDER_WAY {
            thread::sleep(pause);
            continue;
        }
        let (aim, results, under_way) = (aim.clone(), results.clone(), Arc::clone(&under_way));
        thread::spawn(move || {
            let started = Instant::now();
            let result = ask(&aim);
            // The other end is there as long as this one.
            let _ = results.send((aim.begun.elapsed(), started.elapsed(), result));
            drop(under_way);
        });
        next += pause;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    drop(results);
    let mut count = Count::default();
    for (at, took, result) in ended {
        count.tried += 1;
        count.slowest = count.slowest.max(took);
        if let Err(error) = result {
            count.fail(at, &error);
        }
    }
    count
}

/// A line forth and back, until the load ends or the connection breaks.
fn converse(mut connection: Connection, begun: Instant, stop: &AtomicBool) -> Count {
    let mut count = Count { tried: 1, ..Count::default() };
    loop {
        let last = stop.load(Ordering::Relaxed);
        let started = Instant::now();
        if let Err(error) = connection.still_works() {
            count.fail(begun.elapsed(), &error);
            return count;
        }
        count.slowest = count.slowest.max(started.elapsed());
        if last {
            return count;
        }
        thread::sleep(EXCHANGE_EVERY);
    }
}

/// Datagrams at a steady pace from one socket. Those without an answer at the end are lost.
fn send_datagrams(aim: &Aim, stop: &AtomicBool) -> Result<Count> {
    let socket = UdpSocket::bind(client::any(aim.to))?;
    socket.connect(aim.to)?;
    let mut count = Count::default();
    let (mut answers, mut last) = (0, Instant::now());
    let mut listen = |until: Instant, count: &mut Count, enough: Option<usize>| -> Result<()> {
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            if enough == Some(answers) {
                return Ok(());
            }
            socket.set_read_timeout(Some(left))?;
            match receive(&socket, aim) {
                Ok(true) => {
                    answers += 1;
                    count.slowest = count.slowest.max(last.elapsed());
                    last = Instant::now();
                }
                Ok(false) => break,
                // A refusal by ICMP is received here too.
                Err(error) => count.tell(aim.begun.elapsed(), &error),
            }
        }
        count.failed = count.tried - answers;
        Ok(())
    };
    let mut next = Instant::now();
    // The times, with the number of answers that were missing.
    let mut missing = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        count.tried += 1;
        // A datagram that the kernel does not accept is lost as well.
        if let Err(error) = socket.send(WHO.as_bytes()) {
            count.tell(aim.begun.elapsed(), &error);
        }
        next += DATAGRAM_EVERY;
        listen(next, &mut count, None)?;
        missing.push((aim.begun.elapsed(), count.failed));
    }
    // This counts waits instead of time, so a machine that stands still for seconds loses nothing.
    let all = count.tried;
    for _ in 0..LAST_WAITS {
        listen(Instant::now() + DATAGRAM_EVERY, &mut count, Some(all))?;
    }
    // What is still missing has been missing since the last moment when fewer were.
    for lost in 1..=count.failed {
        let since = missing.iter().rfind(|(_, failed)| *failed < lost).map_or(Duration::ZERO, |(at, _)| *at);
        count.tell(since, &"the next datagram is lost");
    }
    Ok(count)
}

/// Receives one answer; `false` if there is none in time.
fn receive(socket: &UdpSocket, aim: &Aim) -> Result<bool> {
    let mut buffer = [0; 128];
    match socket.recv(&mut buffer) {
        Ok(length) => {
            let line = std::str::from_utf8(buffer.get(..length).unwrap_or_default())?;
            aim.check(&client::parse(line)?)?;
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error.into()),
    }
}

impl Count {
    fn fail(&mut self, at: Duration, cause: &anyhow::Error) {
        self.failed += 1;
        self.tell(at, &format!("{cause:#}"));
    }

    fn tell(&mut self, at: Duration, cause: &impl fmt::Display) {
        if self.causes.len() < REPORTED_FAILURES {
            self.causes.push(format!("after {:.2} s: {cause}", at.as_secs_f64()));
        }
    }

    fn add(&mut self, other: Self) {
        self.tried += other.tried;
        self.failed += other.failed;
        self.slowest = self.slowest.max(other.slowest);
        self.causes.extend(other.causes);
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} failed, slowest {:.3} s", self.failed, self.tried, self.slowest.as_secs_f64())
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, long_lived, short, datagrams } = self;
        write!(f, "{target}: long-lived {long_lived}; short {short}; UDP {datagrams}")?;
        let causes = [long_lived, short, datagrams].map(|count| &count.causes);
        causes.into_iter().flatten().try_for_each(|cause| write!(f, "\n    {cause}"))
    }
}
