//! The list-and-watch protocol, for one kind of object.
//!
//! Read everything (a WatchList where the server has it, pages of a list otherwise), then follow the changes
//! from there. What a list leaves out is gone when the list is complete, and not before. While the server is
//! out of reach nothing is sent.
//!
//! This is not `kube::runtime::watcher` because that one retries a watch refused with the HTTP status
//! 410 at the same version for ever, takes a deletion during a WatchList for impossible (it happens:
//! the server first sends its cache, then what changed until it has caught up), and asks again without
//! a pause when a watch is closed at once.

use std::{convert::Infallible, future::Future, mem, time::Duration};

use futures::{StreamExt, stream::BoxStream};
use kube::{
    Api, Client,
    api::{ListParams, VersionMatch, WatchEvent, WatchParams},
};
use service::{Change, ObjectName};
use tokio::time::timeout;
use tracing::debug;

use super::{Watches, failure::Failure, listing::Listing, retry::Retry};
use crate::{
    objects::{Kind, View},
    problem_log::ProblemLog,
};

/// How long the server keeps one watch open; then it is resumed.
const WATCH_SECONDS: u32 = 290;
/// How long a watch may be quiet. After longer than the server would keep it open it is dead.
const QUIET: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 5);
/// How long the server may take to begin an answer, or to send a page of a list.
const ANSWER: Duration = Duration::from_secs(60);
/// How long a WatchList may be quiet before it is complete.
const WATCH_LIST_QUIET: Duration = Duration::from_secs(10);
/// How long a watch without an event must last to count as open; one that ends sooner has failed. Where
/// nothing changes the server sends its first event, a bookmark, after a minute.
const SHORTEST_WATCH: Duration = Duration::from_secs(1);
/// How many objects a page of a list has.
const PAGE: u32 = 500;
/// The annotation of the bookmark with which the server marks the end of a WatchList.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

type Events<T> = BoxStream<'static, kube::Result<WatchEvent<View<T>>>>;

/// The selectors for the objects that the server is to send.
#[derive(Clone, Debug, Default)]
pub(super) struct Selectors {
    pub(super) labels: Option<String>,
    pub(super) fields: Fields,
}

/// A field selector.
#[derive(Clone, Debug, Default)]
pub(super) enum Fields {
    #[default]
    None,
    /// Every server knows it.
    Always(String),
    /// It spares the server what nobody needs. One that does not know the field sends that too.
    IfKnown(String),
}

impl Fields {
    fn selector(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Always(selector) | Self::IfKnown(selector) => Some(selector.clone()),
        }
    }

    /// Does without it from now on, if that is possible.
    fn forgo(&mut self) -> bool {
        let is_possible = matches!(self, Self::IfKnown(_));
        if is_possible {
            *self = Self::None;
        }
        is_possible
    }
}

/// How recent a list must be.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Recency {
    /// As the server has it at hand: the first list must come soon, and later changes follow.
    Any,
    /// As of now: a list after others must not go back in time.
    Latest,
}

/// A list that was read to its end, and where its watch goes on.
struct Listed<T> {
    listing: Listing<T>,
    version: String,
    /// The stream of the WatchList, if it was one, which goes on as a watch.
    events: Option<Events<T>>,
}

/// Follows the objects of one kind.
pub(super) struct Reflector<T: Kind, F> {
    api: Api<View<T>>,
    selectors: Selectors,
    send: F,
    retry: Retry,
    problem_log: ProblemLog,
    recency: Recency,
    /// Whether the last list was empty and nothing is known since, so that another empty one is believed.
    was_empty: bool,
}

impl<T: Kind, F: Fn(Change)> Reflector<T, F> {
    pub(super) fn new(client: &Client, selectors: Selectors, watches: &Watches, send: F) -> Self {
        Self {
            api: Api::all(client.clone()),
            selectors,
            send,
            retry: Retry::new(T::WATCHED_AS, watches.clone()),
            problem_log: ProblemLog::default(),
            recency: Recency::Any,
            was_empty: false,
        }
    }

    /// Lists and watches until dropped.
    pub(super) async fn run(mut self) -> Infallible {
        loop {
            let failure = match self.list_all().await {
                Ok((version, events)) => self.follow(version, events).await,
                Err(failure) => failure,
            };
            self.retry.pause(&failure).await;
        }
    }

    /// Sends everything that exists, and returns where the watch goes on.
    async fn list_all(&mut self) -> Result<(String, Option<Events<T>>), Failure> {
        let listed = match self.read_all().await {
            Err(failure) if failure.refuses_parameters() && self.selectors.fields.forgo() => {
                debug!("no field selector for {}: {failure}", T::PLURAL);
                self.read_all().await
            }
            other => other,
        };
        let Listed { listing, version, events } = listed?;
        // A wrong answer of some proxy in between must not take every Service off the node, least of all
        // a node that is just being taken over; an answer that is given twice is believed.
        let is_empty = listing.is_empty();
        let was_empty = mem::replace(&mut self.was_empty, is_empty);
        if T::ALWAYS_SOME && is_empty && !was_empty {
            return Err(Failure::SuddenlyEmpty);
        }
        self.problem_log.list_ends();
        listing.finish().into_iter().for_each(&self.send);
        self.recency = Recency::Latest;
        self.retry.succeeded();
        Ok((version, events))
    }

    /// Reads everything that exists, in the best way that the server has.
    async fn read_all(&mut self) -> Result<Listed<T>, Failure> {
        match self.watch_list().await {
            Err(failure) if failure.refuses_watch_list() => {
                debug!("no WatchList of {}: {failure}; listing instead", T::PLURAL);
                self.list().await
            }
            other => other,
        }
    }

    /// Reads everything that exists, as the first events of a watch.
    async fn watch_list(&mut self) -> Result<Listed<T>, Failure> {
        let version = match self.recency {
            Recency::Any => "0",
            Recency::Latest => "",
        };
        let mut events = self.open(version, true).await?;
        let mut listing = self.begin_list();
        loop {
            let next = timeout(WATCH_LIST_QUIET, events.next()).await;
            match next.map_err(|_| Failure::Silent(WATCH_LIST_QUIET))?.ok_or(Failure::Incomplete)? {
                Ok(WatchEvent::Added(view) | WatchEvent::Modified(view)) => self.gather(view, &mut listing),
                Ok(WatchEvent::Deleted(view)) => {
                    let name = view.name();
                    self.problem_log.forget::<T>(&name);
                    listing.remove(&name);
                }
                Ok(WatchEvent::Bookmark(bookmark)) => {
                    if bookmark.metadata.annotations.contains_key(INITIAL_EVENTS_END) {
                        let version = bookmark.metadata.resource_version;
                        return Ok(Listed { listing, version, events: Some(events) });
                    }
                }
                Ok(WatchEvent::Error(status)) => return Err(Failure::InStream(status)),
                Err(error) => return Err(Failure::Request(error)),
            }
        }
    }

    /// Reads everything that exists, in pages.
    async fn list(&mut self) -> Result<Listed<T>, Failure> {
        let mut params = ListParams {
            label_selector: self.selectors.labels.clone(),
            field_selector: self.selectors.fields.selector(),
            ..ListParams::default()
        };
        match self.recency {
            Recency::Any => {
                params.resource_version = Some("0".to_owned());
                params.version_match = Some(VersionMatch::NotOlderThan);
            }
            Recency::Latest => params.limit = Some(PAGE),
        }
        let mut listing = self.begin_list();
        loop {
            let page = answer(self.api.list(&params)).await?;
            for view in page.items {
                self.gather(view, &mut listing);
            }
            let token = page.metadata.continue_.filter(|token| !token.is_empty());
            if token.is_none() {
                let version = page.metadata.resource_version.filter(|version| !version.is_empty());
                return Ok(Listed { listing, version: version.ok_or(Failure::NoVersion)?, events: None });
            }
            params.continue_token = token;
        }
    }

    /// Sends changes until everything must be listed again, and returns why.
    async fn follow(&mut self, mut version: String, mut events: Option<Events<T>>) -> Failure {
        loop {
            let watched = match events.take() {
                Some(events) => self.send_events(events, &mut version).await,
                None => match self.open(&version, false).await {
                    Ok(events) => self.send_events(events, &mut version).await,
                    Err(failure) => Err(failure),
                },
            };
            match watched {
                Ok(()) => {}
                Err(failure) if failure.needs_a_new_list() => return failure,
                Err(failure) => self.retry.pause(&failure).await,
            }
        }
    }

    /// Sends the events of one watch until the server ends it. `version` is that of the last.
    async fn send_events(&mut self, mut events: Events<T>, version: &mut String) -> Result<(), Failure> {
        let mut stands = false;
        loop {
            let event = match timeout(if stands { QUIET } else { SHORTEST_WATCH }, events.next()).await {
                Ok(Some(event)) => event,
                Ok(None) if stands => return Ok(()),
                Ok(None) => return Err(Failure::ClosedAtOnce),
                Err(_) if stands => return Err(Failure::Silent(QUIET)),
                Err(_) => {
                    stands = true;
                    self.retry.succeeded();
                    continue;
                }
            };
            match event.map_err(Failure::Request)? {
                WatchEvent::Added(view) | WatchEvent::Modified(view) => {
                    note_version(version, &view);
                    self.apply(view);
                }
                WatchEvent::Deleted(view) => {
                    note_version(version, &view);
                    self.delete(&view.name());
                }
                WatchEvent::Bookmark(bookmark) => *version = bookmark.metadata.resource_version,
                WatchEvent::Error(status) => return Err(Failure::InStream(status)),
            }
            stands = true;
            self.retry.succeeded();
        }
    }

    async fn open(&self, version: &str, send_initial_events: bool) -> Result<Events<T>, Failure> {
        let params = WatchParams {
            label_selector: self.selectors.labels.clone(),
            field_selector: self.selectors.fields.selector(),
            timeout: Some(WATCH_SECONDS),
            bookmarks: true,
            send_initial_events,
        };
        Ok(answer(self.api.watch(&params, version)).await?.boxed())
    }

    fn begin_list(&mut self) -> Listing<T> {
        self.problem_log.list_begins();
        match self.recency {
            Recency::Any => Listing::first(),
            Recency::Latest => Listing::later(),
        }
    }

    fn gather(&mut self, view: View<T>, listing: &mut Listing<T>) {
        let name = view.name();
        match self.problem_log.usable(&name, view.decoded) {
            Some(object) => listing.add(name, object).into_iter().for_each(&self.send),
            None => listing.remove(&name),
        }
    }

    /// Sends an object. One that has become useless counts as gone.
    fn apply(&mut self, view: View<T>) {
        self.was_empty = false;
        let name = view.name();
        let nameless = name.name.is_empty();
        match self.problem_log.usable(&name, view.decoded) {
            Some(object) => (self.send)(object.apply()),
            None if nameless => {}
            None => (self.send)(T::delete(name)),
        }
    }

    fn delete(&mut self, name: &ObjectName) {
        self.problem_log.forget::<T>(name);
        (self.send)(T::delete(name.clone()));
    }
}

fn note_version<T>(version: &mut String, view: &View<T>) {
    if let Some(newer) = &view.metadata.resource_version {
        version.clone_from(newer);
    }
}

/// Waits for an answer, but not for ever.
async fn answer<R>(request: impl Future<Output = kube::Result<R>>) -> Result<R, Failure> {
    timeout(ANSWER, request).await.map_err(|_| Failure::Silent(ANSWER))?.map_err(Failure::Request)
}
