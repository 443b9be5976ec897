//! Requests to a Service, each of which is accounted for.
//!
//! It is a command of this program, `cluster load`, which runs wherever the client is to be: outside the cluster, on a
//! node, in a pod. It asks until its stdin ends, and then prints what became of the requests.

use std::{
    collections::BTreeMap,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    process::{Child, ChildStdout, Command, Stdio},
    sync::{
        Barrier, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use serde::{Deserialize, Serialize};

use crate::kubectl::patiently;

/// How long opening a connection, and an answer over it, may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long it may take until the first request is answered: proxies may not know of the pods yet.
const FIRST_ANSWER: Duration = Duration::from_secs(30);

/// An answer that took longer than this is slow: the first packet of its connection was sent twice, after a second.
const SLOW: Duration = Duration::from_millis(900);

/// How many requests may be under way at a time, at most.
const THREADS: u32 = 32;

/// What is printed when requests are answered and all connections to be held are there.
const UNDER_WAY: &str = "under way";

/// The command line of `cluster load`.
#[derive(clap::Args, Clone)]
pub(crate) struct Args {
    /// Where the requests go
    target: SocketAddr,
    /// How many connections are opened a second, each for one request
    #[arg(long, default_value_t = 200)]
    rate: u32,
    /// How many connections are held open beside, and asked over once a second
    #[arg(long, default_value_t = 0)]
    held: u32,
}

impl Args {
    /// As many that no request has to wait for one that is not answered.
    fn threads(&self) -> u32 {
        let lasting = u32::try_from(PATIENCE.as_secs()).unwrap_or(u32::MAX);
        THREADS.min(self.rate.saturating_mul(lasting))
    }
}

/// What became of the requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Answered.
    pub(crate) answered: u64,
    /// How many of them took longer than [`SLOW`].
    pub(crate) slow: u64,
    /// The longest that one took, in milliseconds.
    pub(crate) slowest: u128,
    /// How many requests there should have been at this rate.
    pub(crate) due: u64,
    /// Not answered, by why.
    pub(crate) failed: BTreeMap<String, u64>,
    /// When the first and the last request began that failed, in milliseconds since the start.
    pub(crate) failed_between: Option<(u128, u128)>,
    /// Connections that were held to the end.
    pub(crate) held: u64,
    /// Connections that were held and broke, by why.
    pub(crate) broken: BTreeMap<String, u64>,
}

impl Outcome {
    /// How many requests were not answered.
    pub(crate) fn failures(&self) -> u64 {
        self.failed.values().sum()
    }

    /// How long requests failed, from the beginning of the first to that of the last, in milliseconds.
    pub(crate) fn failing(&self) -> u128 {
        self.failed_between.map_or(0, |(first, last)| last - first)
    }

    /// How many connections broke.
    pub(crate) fn losses(&self) -> u64 {
        self.broken.values().sum()
    }
}

/// Asks until stdin ends.
pub(crate) fn run(args: &Args) -> Result<()> {
    let first = || connect(args.target).and_then(|mut one| ask(&mut one, "close"));
    patiently(FIRST_ANSWER, first).context("before anything happened")?;
    let started = Instant::now();
    let asking = Asking { started, stop: AtomicBool::default(), outcome: Mutex::default() };
    let all_held = Barrier::new(usize::try_from(args.held)? + 1);
    thread::scope(|scope| {
        for number in 0..args.threads() {
            let asking = &asking;
            scope.spawn(move || asking.on_time(args, number));
        }
        for _ in 0..args.held {
            scope.spawn(|| asking.over_one_connection(args.target, &all_held));
        }
        all_held.wait();
        println!("{UNDER_WAY}");
        let ended = io::copy(&mut io::stdin(), &mut io::sink()).context("waiting for the end of stdin");
        asking.stop.store(true, Relaxed);
        ended.map(drop)
    })?;
    asking.outcome().due = started.elapsed().as_secs() * u64::from(args.rate);
    println!("{}", serde_json::to_string(&*asking.outcome())?);
    Ok(())
}

/// What all threads share.
struct Asking {
    started: Instant,
    stop: AtomicBool,
    outcome: Mutex<Outcome>,
}

impl Asking {
    /// Every so often, a connection for one request. One that takes long does not hold up the others.
    fn on_time(&self, args: &Args, number: u32) {
        let threads = args.threads();
        let pause = Duration::from_secs(1) * threads / args.rate;
        let mut next = Instant::now() + pause * number / threads;
        while !self.stop.load(Relaxed) {
            thread::sleep(next.saturating_duration_since(Instant::now()));
            next += pause;
            let began = Instant::now();
            let asked = connect(args.target).and_then(|mut connection| ask(&mut connection, "close"));
            let took = began.elapsed();
            let mut outcome = self.outcome();
            match asked {
                Ok(()) => {
                    outcome.answered += 1;
                    outcome.slow += u64::from(took > SLOW);
                    outcome.slowest = outcome.slowest.max(took.as_millis());
                }
                Err(error) => {
                    *outcome.failed.entry(format!("{error:#}")).or_default() += 1;
                    let began = began.duration_since(self.started).as_millis();
                    let (first, last) = outcome.failed_between.unwrap_or((began, began));
                    outcome.failed_between = Some((first.min(began), last.max(began)));
                }
            }
        }
    }

    /// One connection, which is asked over once a second, and once more at the end.
    fn over_one_connection(&self, target: SocketAddr, all_held: &Barrier) {
        let mut opened = connect(target);
        let first = opened.as_mut().map(|connection| ask(connection, "keep-alive"));
        let is_there = matches!(first, Ok(Ok(())));
        all_held.wait();
        let held = opened.and_then(|mut connection| {
            ensure!(is_there, "the first request was not answered");
            while !self.stop.load(Relaxed) {
                thread::sleep(Duration::from_secs(1));
                ask(&mut connection, "keep-alive")?;
            }
            Ok(())
        });
        match held {
            Ok(()) => self.outcome().held += 1,
            Err(error) => *self.outcome().broken.entry(format!("{error:#}")).or_default() += 1,
        }
    }

    fn outcome(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn connect(target: SocketAddr) -> Result<TcpStream> {
    let connection = TcpStream::connect_timeout(&target, PATIENCE).context("connecting")?;
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    Ok(connection)
}

/// One request of agnhost, whose answers are short.
fn ask(connection: &mut TcpStream, then: &str) -> Result<()> {
    let request = format!("GET /hostname HTTP/1.1\r\nHost: load\r\nConnection: {then}\r\n\r\n");
    connection.write_all(request.as_bytes()).context("asking")?;
    let mut answer = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        let read = connection.read(&mut buffer).context("waiting for the answer")?;
        ensure!(read > 0, "the connection was closed before the answer");
        answer.extend(buffer.iter().take(read));
        if is_whole(&answer) {
            ensure!(answer.starts_with(b"HTTP/1.1 200 "), "an answer that is not 200");
            return Ok(());
        }
    }
}

/// Whether all of an answer has arrived.
fn is_whole(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    length.is_some_and(|length: usize| body.len() >= length)
}

/// Requests that are under way.
pub(crate) struct Load {
    child: Child,
    printed: BufReader<ChildStdout>,
}

impl Load {
    /// Starts this program's command `load`, which `command` calls wherever it is to run, and waits until requests are
    /// answered.
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("starting load")?;
        let mut printed = BufReader::new(child.stdout.take().context("a child without stdout")?);
        let mut first = String::new();
        printed.read_line(&mut first).context("waiting for load")?;
        ensure!(first.trim_end() == UNDER_WAY, "load could not begin");
        Ok(Self { child, printed })
    }

    /// Ends it; what became of the requests.
    pub(crate) fn end(mut self) -> Result<Outcome> {
        drop(self.child.stdin.take());
        let mut printed = String::new();
        self.printed.read_to_string(&mut printed)?;
        let status = self.child.wait().context("waiting for load")?;
        ensure!(status.success(), "load failed ({status})");
        serde_json::from_str(&printed).map_err(|error| anyhow!("load printed {printed:?}: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_with_its_last_byte() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc";
        assert!(is_whole(answer));
        for end in 0..answer.len() {
            assert!(!is_whole(answer.get(..end).unwrap_or_default()));
        }
    }
}
