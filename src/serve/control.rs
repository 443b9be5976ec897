//! The control socket of the running daemon: a unix socket, one line of JSON each way.
//!
//! [`Control`] has one method per request, which names the type of its answer. [`Client`] implements it by asking over
//! the socket, the daemon by answering: the two ends cannot differ. Only root, or the user that the daemon runs as,
//! gets an answer.

mod answers;
mod client;
mod server;

use std::{collections::BTreeMap, net::IpAddr};

use serde::{
    Deserialize, Serialize,
    de::{DeserializeOwned, Error as _},
};

use reconciler::{JournalPage, VirtualServerOwner};
use service::{AddressExplanation, AddressQuery, Explanation, ObjectName};

use crate::{logging::Level, process::Build};

pub use crate::takeover::instance_lock::SOCKET;
pub use answers::{BugReport, DaemonInfo, DaemonStatus, Difference, KernelInfo, Resynced, SourceInfo};
pub use client::{AskError, Client};
pub use server::{ControlServer, NoSocket, RequestHandler};

/// The requests to the daemon and their answers. A method may block.
pub trait Control {
    /// Why a request has no answer.
    type Error;

    /// What belongs to a bug report and only the daemon has.
    fn bug_report(&self) -> Result<BugReport, Self::Error>;

    /// Reads everything, and returns the difference from the desired state.
    fn diff(&self) -> Result<Difference, Self::Error>;

    /// How a Service is served, and what becomes of a client there.
    fn explain(&self, service: &ObjectName, client: Option<IpAddr>) -> Result<Explanation, Self::Error>;

    /// The owner of an address or port, and what becomes of a client there.
    fn explain_address(
        &self,
        query: &AddressQuery,
        client: Option<IpAddr>,
    ) -> Result<AddressExplanation, Self::Error>;

    /// The changes of one Service, or of all, after the one with a number.
    fn history(&self, of: Option<&ObjectName>, after: u64) -> Result<JournalPage, Self::Error>;

    /// Sets the level of the log if one is given, and returns what is logged, in `RUST_LOG`'s notation.
    fn log_level(&self, set: Option<Level>) -> Result<String, Self::Error>;

    /// The owner of each virtual server, in no particular order.
    fn owners(&self) -> Result<Vec<VirtualServerOwner>, Self::Error>;

    /// Reads everything, repairs everything, and returns what was done.
    fn resync(&self) -> Result<Resynced, Self::Error>;

    /// The status of the daemon, of what is programmed, and of the node.
    fn status(&self) -> Result<DaemonStatus, Self::Error>;

    /// The status, for which the kernel is read and compared.
    fn checked_status(&self) -> Result<DaemonStatus, Self::Error>;

    /// The daemon's build.
    fn version(&self) -> Result<Build, Self::Error>;
}

/// A request as it is sent: each is a method of [`Control`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase")]
#[allow(missing_docs, reason = "Control documents them")]
pub enum Request {
    BugReport,
    Diff,
    Explain {
        service: ObjectName,
        #[serde(default)]
        client: Option<IpAddr>,
    },
    ExplainAddress {
        #[serde(flatten)]
        query: AddressQuery,
        #[serde(default)]
        client: Option<IpAddr>,
    },
    History {
        #[serde(default)]
        of: Option<ObjectName>,
        #[serde(default)]
        after: u64,
    },
    LogLevel {
        #[serde(default)]
        set: Option<Level>,
    },
    #[serde(rename = "holders")]
    Owners,
    Resync,
    Status {
        // A client of an earlier release does not send it.
        #[serde(default)]
        compare: bool,
    },
    Version,
}

impl Request {
    /// Reads one line; its end may be missing.
    pub fn decode(line: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(line)
    }

    /// Whether the writer thread has to answer.
    fn needs_writer(&self) -> bool {
        !matches!(self, Self::BugReport | Self::LogLevel { .. } | Self::Version)
    }

    /// Carries the request out and returns the answer as one line.
    fn answered_by(self, daemon: &impl RequestHandler) -> serde_json::Result<Vec<u8>> {
        match self {
            Self::BugReport => encode_answer("bugreport", daemon.bug_report()),
            Self::Diff => encode_answer("difference", daemon.diff()),
            Self::Explain { service, client } => {
                encode_answer("explanation", daemon.explain(&service, client))
            }
            Self::ExplainAddress { query, client } => {
                encode_answer("addressexplanation", daemon.explain_address(&query, client))
            }
            Self::History { of, after } => encode_answer("history", daemon.history(of.as_ref(), after)),
            Self::LogLevel { set } => encode_answer("loglevel", daemon.log_level(set)),
            Self::Owners => encode_answer("holders", daemon.owners()),
            Self::Resync => encode_answer("resynced", daemon.resync()),
            Self::Status { compare: false } => encode_answer("status", daemon.status()),
            Self::Status { compare: true } => encode_answer("status", daemon.checked_status()),
            Self::Version => encode_answer("version", daemon.version()),
        }
    }
}

/// Writes an answer under its name, or why there is none, as one line.
pub fn encode_answer<T: Serialize>(name: &str, answer: Result<T, String>) -> serde_json::Result<Vec<u8>> {
    match answer {
        Ok(answer) => encode_line(name, answer),
        Err(reason) => encode_refusal(reason),
    }
}

/// Writes why there is no answer, as one line.
fn encode_refusal(reason: String) -> serde_json::Result<Vec<u8>> {
    encode_line("error", reason)
}

fn encode_line(name: &str, value: impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(&BTreeMap::from([(name, value)]))?;
    line.push(b'\n');
    Ok(line)
}

/// Reads one line, whose end may be missing: an answer, or the daemon's reason for having none. The answer is the only
/// field; its name belongs to the request, and its type says the same.
pub fn decode_answer<T: DeserializeOwned>(line: &[u8]) -> serde_json::Result<Result<T, String>> {
    /// The request was not understood or could not be carried out.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Refusal {
        error: String,
    }

    if let Ok(Refusal { error }) = serde_json::from_slice(line) {
        return Ok(Err(error));
    }
    let mut fields: BTreeMap<String, T> = serde_json::from_slice(line)?;
    match (fields.pop_first(), fields.is_empty()) {
        (Some((_, answer)), true) => Ok(Ok(answer)),
        _ => Err(serde_json::Error::custom("expected one field")),
    }
}

#[cfg(test)]
mod tests;
