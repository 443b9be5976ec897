//! Why a list or a watch stopped, how the next attempt differs, and the pause before it.

use std::{error::Error, time::Duration};

use hyper_util::client::legacy;
use kube::{
    core::{Status, request},
    runtime::watcher::DefaultBackoff,
};
use service::one_line;
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use super::{Watches, encoding::Unreadable};

/// How many characters of a server's message are repeated in the log and in `status`.
const LONGEST_MESSAGE: usize = 1000;

/// Why a list or a watch stopped.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The request could not be sent, or was not answered.
    #[error("{}", cause(.0))]
    Request(#[from] kube::Error),
    /// The request cannot be built.
    #[error("{0}")]
    NoRequest(#[from] request::Error),
    /// The request was refused.
    #[error("{}", status(.0))]
    Refused(Box<Status>),
    /// The answer cannot be read, or broke off.
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
    #[error("the list is empty; it is accepted only if the next one is empty too")]
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
    /// new for ever (504), or not valid in a URL. After a lost connection, a restart or under load, watching on spares
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

    /// Whether the requested version is newer than anything the server has, as after a restore of its storage.
    pub(super) fn is_too_new(&self) -> bool {
        let says_so =
            |status: &Status| status.code == 504 && status.message.contains("Too large resource version");
        matches!(self, Self::Refused(status) if says_so(status))
    }

    /// Whether protobuf may have been changed on the way.
    pub(super) fn is_not_protobuf(&self) -> bool {
        matches!(self, Self::Unreadable(unreadable) if unreadable.is_not_protobuf())
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
    // kube calls a failed connection "ServiceError", after tower's Service: a reader would think of a Service.
    match error {
        kube::Error::Service(error) => one_line(&**error),
        error => one_line(error),
    }
}

/// How often a watch may fail at one version before everything is listed anew: a server that starts again is back
/// within these attempts, 6 to 11 seconds, as a rule.
const ATTEMPTS: u32 = 3;

/// The pauses between attempts for one resource.
pub(super) struct Retry {
    resource: &'static str,
    /// The pauses of client-go: 0.8 s doubling to 30 s, each up to twice as long at random, and from the start again
    /// after two quiet minutes.
    pauses: DefaultBackoff,
    /// Those before a list that follows a watch. A server that is back refuses every version older than its start, and
    /// the list must not wait for as long as the server was away; nor may it come again and again without a pause
    /// where each watch is refused.
    pauses_before_lists: DefaultBackoff,
    /// How often the watch has failed in a way that may be due to its version, since the server last answered as it
    /// should.
    failed_watches: u32,
    /// Since when the resource cannot be watched, and the cause that was logged; `None` while it can.
    failing: Option<(Instant, String)>,
    watches: Watches,
}

impl Retry {
    pub(super) fn new(resource: &'static str, watches: Watches) -> Self {
        watches.listing(resource);
        let [pauses, pauses_before_lists] = [(), ()].map(|()| DefaultBackoff::default());
        Self { resource, pauses, pauses_before_lists, failed_watches: 0, failing: None, watches }
    }

    /// Records that a watch has failed. Returns whether to list everything instead of watching on.
    pub(super) fn gives_watch_up(&mut self, failure: &Failure) -> bool {
        self.failed_watches += u32::from(failure.may_be_due_to_the_version());
        self.lists_next(failure)
    }

    fn lists_next(&self, failure: &Failure) -> bool {
        failure.needs_a_new_list() || self.failed_watches >= ATTEMPTS
    }

    /// Waits before the next attempt. Each different cause is logged once.
    pub(super) async fn pause(&mut self, failure: &Failure) {
        let resource = self.resource;
        let words = failure.to_string();
        self.watches.failed(resource, &words);
        match &mut self.failing {
            Some((_, logged)) if *logged == words => {
                debug!(object = resource, "still cannot watch {resource}: {words}");
            }
            Some((_, logged)) => {
                warn!(object = resource, "still cannot watch {resource}: {words}");
                *logged = words;
            }
            None => {
                warn!(
                    object = resource,
                    "cannot watch {resource}: {words}; trying again, the programmed state is kept"
                );
                self.failing = Some((Instant::now(), words));
            }
        }
        let lists_next = self.lists_next(failure);
        let pauses = if lists_next { &mut self.pauses_before_lists } else { &mut self.pauses };
        if let Some(pause) = pauses.next() {
            sleep(pause).await;
        }
    }

    /// Records that the server answered as it should.
    pub(super) fn succeeded(&mut self) {
        self.watches.watching(self.resource);
        self.failed_watches = 0;
        if let Some((since, _)) = self.failing.take() {
            let took = since.elapsed().as_secs_f64();
            info!(object = self.resource, "watching {} again after {took:.1} s", self.resource);
        }
    }
}
