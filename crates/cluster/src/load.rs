//! Requests to a Service, each of which is accounted for.
//!
//! It is a command of this program, `cluster load`, which runs wherever the client is to be: outside the cluster, on a
//! node, in a pod. It asks until its stdin ends, and then prints what became of the requests.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use serde::{Deserialize, Serialize};

/// How long opening a connection, and an answer over it, may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many requests may be under way at a time.
const THREADS: u32 = 32;

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

/// What became of the requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Answered.
    pub(crate) answered: u64,
    /// Not answered, by why.
    pub(crate) failed: BTreeMap<String, u64>,
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

    /// How many connections broke.
    pub(crate) fn losses(&self) -> u64 {
        self.broken.values().sum()
    }
}

/// Asks until stdin ends.
pub(crate) fn run(args: &Args) -> Result<()> {
    let asking = Asking::default();
    thread::scope(|scope| {
        for number in 0..THREADS.min(args.rate) {
            let asking = &asking;
            scope.spawn(move || asking.on_time(args, number));
        }
        for _ in 0..args.held {
            scope.spawn(|| asking.over_one_connection(args.target));
        }
        let ended = io::copy(&mut io::stdin(), &mut io::sink()).context("waiting for the end of stdin");
        asking.stop.store(true, Relaxed);
        ended.map(drop)
    })?;
    println!("{}", serde_json::to_string(&*asking.outcome())?);
    Ok(())
}

/// What all threads share.
#[derive(Default)]
struct Asking {
    stop: AtomicBool,
    outcome: Mutex<Outcome>,
}

impl Asking {
    /// Every so often, a connection for one request. One that takes long does not hold up the others.
    fn on_time(&self, args: &Args, number: u32) {
        let threads = THREADS.min(args.rate);
        let pause = Duration::from_secs(1) * threads / args.rate;
        let mut next = Instant::now() + pause * number / threads;
        while !self.stop.load(Relaxed) {
            thread::sleep(next.saturating_duration_since(Instant::now()));
            next += pause;
            match connect(args.target).and_then(|mut connection| ask(&mut connection, "close")) {
                Ok(()) => self.outcome().answered += 1,
                Err(error) => *self.outcome().failed.entry(format!("{error:#}")).or_default() += 1,
            }
        }
    }

    /// One connection, which is asked over once a second.
    fn over_one_connection(&self, target: SocketAddr) {
        let held = connect(target).and_then(|mut connection| {
            while !self.stop.load(Relaxed) {
                ask(&mut connection, "keep-alive")?;
                thread::sleep(Duration::from_secs(1));
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
pub(crate) struct Load(Child);

impl Load {
    /// Starts this program's command `load`, which `command` calls wherever it is to run.
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("starting load")?;
        Ok(Self(child))
    }

    /// Ends it; what became of the requests.
    pub(crate) fn end(mut self) -> Result<Outcome> {
        drop(self.0.stdin.take());
        let mut printed = String::new();
        self.0.stdout.take().context("a child without stdout")?.read_to_string(&mut printed)?;
        let status = self.0.wait().context("waiting for load")?;
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
