//! Why a list or a watch stopped, and what that means for the next attempt.

use std::{error::Error, time::Duration};

use hyper_util::client::legacy;
use kube::core::{Status, request};
use service::one_line;

use super::encoding::Unreadable;

/// How many characters of what a server says are repeated in the log and in `status`.
const LONGEST_MESSAGE: usize = 1000;

/// Why a list or a watch stopped.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The request could not be sent, or was not answered.
    #[error("{}", cause(.0))]
    Request(#[from] kube::Error),
    /// There is no such request.
    #[error("{0}")]
    NoRequest(#[from] request::Error),
    /// The request was refused.
    #[error("{}", status(.0))]
    Refused(Box<Status>),
    /// The answer, or a part of it, makes no sense, or broke off.
    #[error("{}", one_line(.0))]
    Unreadable(#[from] Unreadable),
    /// The server reported an error in the middle of a watch.
    #[error("the server ended the watch: {}", status(.0))]
    InStream(Box<Status>),
    /// The server did not answer.
    #[error("no answer within {} s", .0.as_secs())]
    Silent(Duration),
    /// The server closed the watch as soon as it was opened.
    #[error("the watch was closed at once")]
    ClosedAtOnce,
    /// A list came without a version to watch from.
    #[error("the list has no resource version")]
    NoVersion,
    /// A list of more objects than any cluster has.
    #[error("a list of more than {0} objects")]
    TooMany(usize),
    /// The list is empty, and the one before was not.
    #[error("the list is empty; it must say so twice")]
    SuddenlyEmpty,
}

impl Failure {
    /// Whether the request itself was wrong for this server, such as a selector of a field that it does not know.
    pub(super) fn refuses_parameters(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code == 400)
    }

    /// Whether it is useless to watch on from the same version.
    ///
    /// A version can be too old (410, in either form) or, after a restore of the server's storage, too
    /// new for ever (504), or no part of a URL. After a lost connection, a restart or under load, watching on spares
    /// the server a list from every node at once; what goes on for longer may be due to the version all the same
    /// ([`Self::may_be_due_to_the_version`]).
    pub(super) fn needs_a_new_list(&self) -> bool {
        match self {
            Self::Refused(status) => self.is_too_new() || (status.code < 500 && status.code != 429),
            Self::InStream(status) => status.code != 429,
            // An event that cannot be read was missed.
            Self::Unreadable(unreadable) => !matches!(unreadable, Unreadable::Connection(_)),
            Self::NoRequest(_) => true,
            _ => false,
        }
    }

    /// Whether a watch from another version might succeed: the server was reached, and did not say that it is too busy.
    /// client-go watches on in these two cases alone (`isWatchErrorRetriable` in tools/cache/reflector.go).
    pub(super) fn may_be_due_to_the_version(&self) -> bool {
        match self {
            Self::Request(error) => !is_out_of_reach(error),
            Self::Refused(status) | Self::InStream(status) => status.code != 429,
            _ => true,
        }
    }

    /// Whether a list that must not be older than a version is refused because of that version: 400 and 422 say that it
    /// is invalid, 410 that it is gone.
    pub(super) fn refuses_version(&self) -> bool {
        match self {
            Self::NoRequest(_) => true,
            Self::Refused(status) => matches!(status.code, 400 | 410 | 422),
            _ => false,
        }
    }

    /// Whether the server knows nothing as new as what was asked for, as after a restore of its storage.
    pub(super) fn is_too_new(&self) -> bool {
        let says_so =
            |status: &Status| status.code == 504 && status.message.contains("Too large resource version");
        matches!(self, Self::Refused(status) if says_so(status))
    }

    /// Whether protobuf may have been changed on the way.
    pub(super) fn is_no_protobuf(&self) -> bool {
        matches!(self, Self::Unreadable(unreadable) if unreadable.is_no_protobuf())
    }
}

/// Whether there was no connection to the server.
fn is_out_of_reach(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref().is_some_and(legacy::Error::is_connect) || error.source().is_some_and(is_out_of_reach)
}

fn status(status: &Status) -> String {
    let text = [&status.message, &status.reason].into_iter().find(|text| !text.is_empty());
    let text = text.map_or("no reason given", String::as_str);
    let end = text.char_indices().nth(LONGEST_MESSAGE).and_then(|(end, _)| text.get(..end));
    format!("{}{} ({})", end.unwrap_or(text), if end.is_some() { "..." } else { "" }, status.code)
}

/// The error with its causes. A connection that fails says why only in the last cause.
fn cause(error: &kube::Error) -> String {
    // kube's own word for a failed connection is "ServiceError", after tower's Service: no Service is
    // meant.
    match error {
        kube::Error::Service(error) => one_line(&**error),
        error => one_line(error),
    }
}
