//! Why a list or a watch stopped, and what that means for the next attempt.

use std::time::Duration;

use kube::core::Status;
use service::one_line;

/// Why a list or a watch stopped.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The request was refused, or the connection failed.
    #[error("{}", cause(.0))]
    Request(kube::Error),
    /// The server reported an error in the middle of a watch.
    #[error("the server ended the watch: {}", status(.0))]
    InStream(Box<Status>),
    /// The server did not answer.
    #[error("no answer within {} s", .0.as_secs())]
    Silent(Duration),
    /// The watch ended before its list of the objects that exist was complete.
    #[error("the watch ended before the list was complete")]
    Incomplete,
    /// The server closed the watch as soon as it was opened.
    #[error("the watch was closed at once")]
    ClosedAtOnce,
    /// A list came without a version to watch from.
    #[error("the list has no resource version")]
    NoVersion,
    /// The list is empty, and the one before was not.
    #[error("the list is empty; it must say so twice")]
    SuddenlyEmpty,
}

impl Failure {
    /// Whether a request for a list by way of a watch should be repeated as a plain list.
    ///
    /// Servers without WatchList answer with a status (422: `sendInitialEvents` is forbidden, 400) or
    /// with an error event; one whose storage cannot report its progress never ends the list. A request that
    /// was refused for another reason would be refused again.
    pub(super) fn refuses_watch_list(&self) -> bool {
        match self {
            Self::Request(kube::Error::Api(status)) => {
                (400..500).contains(&status.code) && ![401, 403, 410, 429].contains(&status.code)
            }
            Self::InStream(status) => status.code != 410,
            Self::Silent(_) => true,
            _ => false,
        }
    }

    /// Whether the request itself was wrong for this server, such as a selector of a field that it does not know.
    pub(super) fn refuses_parameters(&self) -> bool {
        matches!(self, Self::Request(kube::Error::Api(status)) if status.code == 400)
    }

    /// Whether it is useless to watch on from the same version.
    ///
    /// A version can be too old (410, in either form) or, after a restore of the server's storage, too
    /// new for ever (504). After a lost connection, a restart or under load, watching on spares the
    /// server a list from every node at once.
    pub(super) fn needs_a_new_list(&self) -> bool {
        match self {
            Self::Request(kube::Error::Api(status)) => match status.code {
                429 => false,
                504 => status.message.contains("Too large resource version"),
                code => code < 500,
            },
            Self::InStream(status) => status.code != 429,
            // An event that is no JSON is an event that was missed.
            Self::Request(kube::Error::SerdeError(_)) => true,
            _ => false,
        }
    }
}

fn status(status: &Status) -> String {
    let text = [&status.message, &status.reason].into_iter().find(|text| !text.is_empty());
    format!("{} ({})", text.map_or("no reason given", String::as_str), status.code)
}

/// The error with its causes. A connection that fails says why only in the last cause.
fn cause(error: &kube::Error) -> String {
    if let kube::Error::Api(refusal) = error {
        return status(refusal);
    }
    // kube's own word for a failed connection is "ServiceError", after tower's Service: no Service is
    // meant.
    match error {
        kube::Error::Service(error) => one_line(&**error),
        error => one_line(error),
    }
}
