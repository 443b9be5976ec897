//! Errors of an exchange with the kernel.

use std::{borrow::Cow, fmt, io};

use nix::errno::Errno;

/// Why a netlink exchange failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket could not be opened or configured.
    #[error("cannot {operation} a {protocol} netlink socket")]
    Open {
        /// What was being done to the socket.
        operation: &'static str,
        /// The netlink protocol's name.
        protocol: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The datagram could not be sent; nothing was executed.
    #[error("cannot send {bytes} bytes over netlink")]
    Send {
        /// The datagram's size.
        bytes: usize,
        /// The system's answer. `EMSGSIZE`: larger than the send buffer may become.
        source: io::Error,
    },
    /// Nothing could be received.
    #[error("cannot receive from netlink")]
    Receive(#[source] io::Error),
    /// The kernel did not answer in time. The requests may have been executed.
    #[error("the kernel did not answer within {seconds} s")]
    TimedOut {
        /// The time waited.
        seconds: u64,
    },
    /// The receive queue overflowed (`ENOBUFS`): the requests were executed, their answers are lost.
    #[error("answers from the kernel were lost (ENOBUFS): the state must be read back")]
    StateUnknown,
    /// The table kept changing while it was read.
    #[error("the table changed during each of {attempts} dumps")]
    DumpInterrupted {
        /// How often the dump was started.
        attempts: u32,
    },
    /// The kernel refused a single request, a dump, or a whole transaction.
    #[error(transparent)]
    Refused(#[from] KernelError),
    /// A transaction was rolled back because of these requests.
    #[error("transaction rolled back: {0}")]
    RolledBack(FailedRequest),
    /// The generic netlink family does not exist, and loading its module did not help.
    #[error("the kernel has no generic netlink family {0}: its module is missing")]
    NoSuchFamily(String),
    /// A message did not have the shape its type promises.
    #[error("malformed netlink message: {what}")]
    Malformed {
        /// What was wrong.
        what: String,
    },
}

/// A failed operation on one part of the kernel.
#[derive(Debug, thiserror::Error)]
pub enum OperationError {
    /// CAP_NET_ADMIN is missing.
    #[error("{subsystem} refuses to {operation}: CAP_NET_ADMIN is needed (EPERM)")]
    NotPermitted {
        /// The part of the kernel: `nf_tables`, `conntrack`.
        subsystem: &'static str,
        /// The operation, such as `read addresses`.
        operation: Cow<'static, str>,
    },
    /// Some other failure of the exchange.
    #[error("cannot {operation}")]
    Failed {
        /// The operation, such as `read addresses`.
        operation: Cow<'static, str>,
        /// The reason.
        source: Error,
    },
}

impl OperationError {
    /// The error of an operation on a subsystem that failed for this reason.
    pub fn new(subsystem: &'static str, operation: impl Into<Cow<'static, str>>, source: Error) -> Self {
        let operation = operation.into();
        match source.errno() {
            Some(Errno::EPERM) => Self::NotPermitted { subsystem, operation },
            _ => Self::Failed { operation, source },
        }
    }

    /// The errno that the kernel refused the operation with, if that is what happened.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::NotPermitted { .. } => Some(Errno::EPERM),
            Self::Failed { source, .. } => source.errno(),
        }
    }
}

/// The outcome of an exchange; `None` if the kernel refused it with one of these errnos, which mean that its subject
/// does not exist.
pub fn if_exists<T>(outcome: Result<T, Error>, missing: &[Errno]) -> Result<Option<T>, Error> {
    match outcome {
        Err(error) if error.errno().is_some_and(|errno| missing.contains(&errno)) => Ok(None),
        outcome => outcome.map(Some),
    }
}

impl Error {
    /// The errno that the kernel refused the request with, if that is what happened.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused(error) | Self::RolledBack(FailedRequest { error, .. }) => Some(error.errno),
            _ => None,
        }
    }
}

/// The kernel's refusal of one request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct KernelError {
    /// The error number.
    pub errno: Errno,
    /// The kernel's text (extended acknowledgement), or a client's explanation of the errno.
    pub message: Option<Box<str>>,
}

impl KernelError {
    /// An error without a message.
    pub fn new(errno: Errno) -> Self {
        Self { errno, message: None }
    }

    /// The message if there is one, and the error number otherwise.
    pub fn cause(&self) -> String {
        self.message.as_ref().map_or_else(|| self.errno.to_string(), ToString::to_string)
    }
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({})", self.errno, self.errno.desc())?;
        match &self.message {
            Some(message) => write!(f, ": {message}"),
            None => Ok(()),
        }
    }
}

/// One request of a batch that the kernel refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedRequest {
    /// The request's position in the batch, from 0.
    pub index: usize,
    /// The kernel's answer.
    pub error: KernelError,
}

impl fmt::Display for FailedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}: {}", self.index, self.error)
    }
}
