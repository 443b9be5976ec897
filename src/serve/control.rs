//! How an operator talks to the running daemon: a unix socket, one line of JSON each way.
//!
//! Only root, or whoever the daemon runs as, gets an answer.

mod client;
mod server;
mod status;

use serde::{Deserialize, Serialize};

use reconciler::{SyncReport, VirtualServerOwner};
use service::{Explanation, ObjectName};
use watcher::Plan;

use crate::logging::Level;

pub use client::{AskError, ask, ask_aloud};
pub use server::{ControlServer, NoSocket, RequestHandler};
pub use status::{DaemonInfo, DaemonStatus, KernelInfo, SourceInfo};

/// Where the socket is unless the command line says otherwise.
pub const SOCKET: &str = "/run/kube-ipvs/control.sock";

/// What the daemon is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase")]
pub enum Request {
    /// Read everything, and say what differs.
    Diff,
    /// Say why a Service is served as it is.
    Explain {
        /// The Service.
        service: ObjectName,
    },
    /// Change what is logged, or leave it, and say what it is.
    LogLevel {
        /// What to log from now on.
        #[serde(default)]
        set: Option<Level>,
    },
    /// Say whose each virtual server is.
    Holders,
    /// Read everything, repair everything, and say what was done.
    Resync,
    /// Say how things stand.
    Status,
}

impl Request {
    /// Reads one line; its end may be missing.
    pub fn decode(line: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(line)
    }

    /// Whether the answer has to wait for the writer thread.
    pub(crate) fn needs_writer(&self) -> bool {
        !matches!(self, Self::LogLevel { .. })
    }
}

/// What differs between the kernel and what is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// What would be done about it.
    pub plan: Plan,
    /// Why what is wanted may be out of date: what cannot be watched.
    pub troubles: Vec<String>,
}

/// What a sync on request has done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resynced {
    /// What it did.
    #[serde(flatten)]
    pub report: SyncReport,
    /// Why what was wanted may have been out of date: what cannot be watched.
    pub troubles: Vec<String>,
}

/// What it answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Response {
    /// To [`Request::Diff`].
    Difference(Difference),
    /// To [`Request::Explain`].
    Explanation(Box<Explanation>),
    /// To [`Request::LogLevel`]: what is logged, in `RUST_LOG`'s notation.
    LogLevel(String),
    /// To [`Request::Holders`], in no particular order.
    Holders(Vec<VirtualServerOwner>),
    /// To [`Request::Resync`]: what was done.
    Resynced(Resynced),
    /// To [`Request::Status`]: how things stand.
    Status(Box<DaemonStatus>),
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
