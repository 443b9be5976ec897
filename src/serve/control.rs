//! The control socket of the running daemon: a unix socket, one line of JSON each way.
//!
//! Only root, or the user that the daemon runs as, gets an answer.

mod bug_report;
mod client;
mod server;
mod status;

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use reconciler::{SyncReport, VirtualServerOwner};
use service::{AddressExplanation, Explanation, ObjectName};
use watcher::Plan;

use crate::{logging::Level, version::Build};

pub use crate::takeover::instance_lock::SOCKET;
pub use bug_report::BugReport;
pub use client::{AskError, ask, ask_aloud};
pub use server::{ControlServer, NoSocket, RequestHandler};
pub use status::{DaemonInfo, DaemonStatus, KernelInfo, SourceInfo};

/// A request to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase")]
pub enum Request {
    /// Return what belongs to a bug report and only the daemon has.
    BugReport,
    /// Read everything, and return what differs.
    Diff,
    /// Explain how a Service is served.
    Explain {
        /// The Service.
        service: ObjectName,
    },
    /// Explain whose an address is.
    ExplainAddress {
        /// The address.
        ip: IpAddr,
    },
    /// Return the level of the log, after changing it if a new one is given.
    LogLevel {
        /// The new level.
        #[serde(default)]
        set: Option<Level>,
    },
    /// Return the owner of each virtual server.
    Holders,
    /// Read everything, repair everything, and return what was done.
    Resync,
    /// Return the status.
    Status,
    /// Return the version.
    Version,
}

impl Request {
    /// Reads one line; its end may be missing.
    pub fn decode(line: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(line)
    }

    /// Whether the writer thread has to answer.
    pub(crate) fn needs_writer(&self) -> bool {
        !matches!(self, Self::BugReport | Self::LogLevel { .. } | Self::Version)
    }
}

/// The difference between the kernel and the desired state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// The plan that would remove it.
    pub plan: Plan,
    /// Why the desired state may be out of date: what cannot be watched.
    pub troubles: Vec<String>,
}

/// The result of a requested sync.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resynced {
    /// What the sync did.
    #[serde(flatten)]
    pub report: SyncReport,
    /// Why the desired state may have been out of date: what cannot be watched.
    pub troubles: Vec<String>,
}

/// A response of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Response {
    /// To [`Request::BugReport`].
    BugReport(Box<BugReport>),
    /// To [`Request::Diff`].
    Difference(Difference),
    /// To [`Request::Explain`].
    Explanation(Box<Explanation>),
    /// To [`Request::ExplainAddress`].
    AddressExplanation(Box<AddressExplanation>),
    /// To [`Request::LogLevel`]: what is logged, in `RUST_LOG`'s notation.
    LogLevel(String),
    /// To [`Request::Holders`], in no particular order.
    Holders(Vec<VirtualServerOwner>),
    /// To [`Request::Resync`].
    Resynced(Resynced),
    /// To [`Request::Status`].
    Status(Box<DaemonStatus>),
    /// To [`Request::Version`].
    Version(Build),
    /// The request was not understood or could not be carried out.
    Error(String),
}

impl Response {
    /// Reads one line; its end may be missing.
    pub fn decode(line: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(line)
    }
}

#[cfg(test)]
mod tests;
