//! The operator's end of the control socket.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::IpAddr,
    os::{fd::AsFd as _, unix::net::UnixStream},
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use reconciler::{JournalPage, VirtualServerOwner};
use serde::de::DeserializeOwned;
use service::{AddressExplanation, AddressQuery, Explanation, ObjectName};

use super::{BugReport, Control, DaemonStatus, Difference, Request, Resynced, decode_answer};
use crate::{logging::Level, process::Build};

/// The timeout of reading everything and repairing it.
const RESYNC_PATIENCE: Duration = Duration::from_secs(120);
/// The timeout of an answer without work: it waits for the running sync.
const STATUS_PATIENCE: Duration = Duration::from_secs(20);
/// The timeout of what the caller can do without: the owners of virtual servers, the version.
const SHORT_PATIENCE: Duration = Duration::from_secs(2);

/// The wait after which the user learns that the daemon is slow.
const SILENCE: Duration = Duration::from_secs(3);

/// The longest answer, in bytes. To clear a table of a hundred thousand Services is a plan of some 100 MB; what is
/// longer comes from no daemon.
const LONGEST_ANSWER: u64 = 256 << 20;

fn patience(request: &Request) -> Duration {
    match request {
        Request::Diff | Request::Resync | Request::Status { compare: true } => RESYNC_PATIENCE,
        Request::BugReport
        | Request::Explain { .. }
        | Request::ExplainAddress { .. }
        | Request::History { .. }
        | Request::LogLevel { .. }
        | Request::Status { compare: false } => STATUS_PATIENCE,
        Request::Owners | Request::Version => SHORT_PATIENCE,
    }
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No process listens at the socket.
    #[error("no daemon answers at {path}: is kube-ipvs running on this node?", path = path.display())]
    NoDaemon {
        /// The socket.
        path: PathBuf,
    },
    /// The daemon takes too long.
    #[error("the daemon at {path} does not answer within {seconds} s", path = path.display())]
    TimedOut {
        /// The socket.
        path: PathBuf,
        /// How long it was given.
        seconds: u64,
    },
    /// The user may not talk to the daemon.
    #[error("cannot talk to the daemon at {path}: run as root", path = path.display())]
    NotPermitted {
        /// The socket.
        path: PathBuf,
    },
    /// The system refuses, or the daemon closed the connection.
    #[error("cannot talk to the daemon at {path}", path = path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The daemon refuses.
    #[error("the daemon says: {0}")]
    Refused(String),
    /// The answer cannot be read: the daemon is perhaps of another version.
    #[error("unexpected response from the daemon at {path}, which may be of another version", path = path.display())]
    Malformed {
        /// The socket.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// The operator's end of the control socket.
#[derive(Clone, Debug, Default)]
pub struct Client {
    socket: PathBuf,
    waits: Option<fn(Duration)>,
}

impl Client {
    /// A client of the daemon at this socket. Each request has a connection of its own.
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), waits: None }
    }

    /// Calls `waits` with the longest time it will wait, if no answer comes within some seconds.
    #[must_use]
    pub fn on_wait(self, waits: fn(Duration)) -> Self {
        Self { waits: Some(waits), ..self }
    }

    fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T, AskError> {
        let path = || self.socket.clone();
        let line = exchange(&self.socket, request, self.waits).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => AskError::NoDaemon { path: path() },
            io::ErrorKind::WouldBlock => {
                AskError::TimedOut { path: path(), seconds: patience(request).as_secs() }
            }
            io::ErrorKind::PermissionDenied => AskError::NotPermitted { path: path() },
            _ => AskError::Io { path: path(), source },
        })?;
        decode_answer(line.as_bytes())
            .map_err(|source| AskError::Malformed { path: path(), source })?
            .map_err(AskError::Refused)
    }
}

impl Control for Client {
    type Error = AskError;

    fn bug_report(&self) -> Result<BugReport, AskError> {
        self.ask(&Request::BugReport)
    }

    fn diff(&self) -> Result<Difference, AskError> {
        self.ask(&Request::Diff)
    }

    fn explain(&self, service: &ObjectName, client: Option<IpAddr>) -> Result<Explanation, AskError> {
        self.ask(&Request::Explain { service: service.clone(), client })
    }

    fn explain_address(
        &self,
        query: &AddressQuery,
        client: Option<IpAddr>,
    ) -> Result<AddressExplanation, AskError> {
        self.ask(&Request::ExplainAddress { query: *query, client })
    }

    fn history(&self, of: Option<&ObjectName>, after: u64) -> Result<JournalPage, AskError> {
        self.ask(&Request::History { of: of.cloned(), after })
    }

    fn log_level(&self, set: Option<Level>) -> Result<String, AskError> {
        self.ask(&Request::LogLevel { set })
    }

    fn owners(&self) -> Result<Vec<VirtualServerOwner>, AskError> {
        self.ask(&Request::Owners)
    }

    fn resync(&self) -> Result<Resynced, AskError> {
        self.ask(&Request::Resync)
    }

    fn status(&self) -> Result<DaemonStatus, AskError> {
        self.ask(&Request::Status { compare: false })
    }

    fn checked_status(&self) -> Result<DaemonStatus, AskError> {
        self.ask(&Request::Status { compare: true })
    }

    fn version(&self) -> Result<Build, AskError> {
        self.ask(&Request::Version)
    }
}

/// Sends the request, and reads the line of its answer.
fn exchange(path: &Path, request: &Request, waits: Option<fn(Duration)>) -> io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    let patience = patience(request);
    stream.set_write_timeout(Some(patience))?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    match stream.write_all(&line) {
        // The daemon answers a client without permission, and closes, before it has read the request.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        written => written?,
    }
    let silence = SILENCE.min(patience);
    if patience > silence
        && !has_begun(&stream, silence)?
        && let Some(waits) = waits
    {
        waits(patience);
    }
    stream.set_read_timeout(Some(patience.saturating_sub(silence).max(silence)))?;
    read_answer(stream, LONGEST_ANSWER)
}

/// Whether the answer begins within this time.
fn has_begun(stream: &UnixStream, within: Duration) -> io::Result<bool> {
    let within = PollTimeout::try_from(within).unwrap_or(PollTimeout::MAX);
    match poll(&mut [PollFd::new(stream.as_fd(), PollFlags::POLLIN)], within) {
        Ok(0) | Err(Errno::EINTR) => Ok(false),
        Ok(_) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}

/// Reads one line of fewer than so many bytes.
fn read_answer(stream: impl Read, most: u64) -> io::Result<String> {
    let mut answer = String::new();
    let length = BufReader::new(stream).take(most).read_line(&mut answer)?;
    if u64::try_from(length).is_ok_and(|length| length == most) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the answer is too long"));
    }
    if answer.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the daemon closed the connection without an answer",
        ));
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_without_an_end_is_given_up() {
        let refused = read_answer(io::repeat(b' '), 1 << 20).unwrap_err();
        assert_eq!(refused.to_string(), "the answer is too long");
    }
}
