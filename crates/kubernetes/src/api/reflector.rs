//! The list-and-watch protocol, for one kind of object.
//!
//! Read everything, then follow the changes from there. What a list leaves out is gone when the list is complete, and
//! not before. While the server is out of reach nothing is sent.
//!
//! Everything is read by a list and not by the first events of a watch (WatchList): the server compresses only lists.
//! It sends them from its cache in either way, and since Kubernetes 1.33 object by object
//! (`StreamingCollectionEncodingToProtobuf`), as they are read here.
//!
//! This is not `kube::runtime::watcher` because that one has only JSON, retries a watch refused with the HTTP status 410
//! at the same version for ever, and asks again without a pause when a watch is closed at once.

use std::{
    collections::BTreeMap, convert::Infallible, future::Future, marker::PhantomData, mem, time::Duration,
};

use futures::{FutureExt as _, StreamExt as _};
use kube::{
    Client,
    api::{ListParams, VersionMatch, WatchParams},
};
use rustc_hash::FxHashSet;
use service::{Event, ObjectName};
use tokio::time::timeout;
use tracing::debug;

use super::{
    Watches,
    failure::{Failure, Retry},
    requests::{Events, Part, Requests, WatchEvent},
};
use crate::{
    objects::{Kind, View},
    problem_log::ProblemLog,
};

/// How long the server keeps one watch open; then it is resumed.
const WATCH_SECONDS: u32 = 290;
/// How long a watch may be quiet. After longer than the server would keep it open it is dead.
const QUIET: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 5);
/// How long the server may take to begin an answer, and a list may be quiet.
const ANSWER: Duration = Duration::from_secs(60);
/// How long a watch without an event must last to count as open; one that ends sooner has failed. Where
/// nothing changes the server sends its first event, a bookmark, after a minute.
const SHORTEST_WATCH: Duration = Duration::from_secs(1);

/// The most objects of a list: five times those of the largest cluster that is tested (docs/evidence/performance.md).
const MOST_OBJECTS: usize = if cfg!(test) { 5_000 } else { 500_000 };

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
    /// It spares the server objects that are not needed. A server that does not know the field sends them too.
    IfKnown(String),
}

impl Fields {
    fn selector(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Always(selector) | Self::IfKnown(selector) => Some(selector.clone()),
        }
    }

    /// Drops the selector, if it is optional.
    fn forgo(&mut self) -> bool {
        let is_possible = matches!(self, Self::IfKnown(_));
        if is_possible {
            *self = Self::None;
        }
        is_possible
    }
}

/// How recent a list must be.
#[derive(Clone, Debug, PartialEq)]
enum Recency {
    /// Any version in the server's cache: the first list must come soon, and later changes follow.
    Any,
    /// At least the version that is known already: a list after others must not go back in time.
    NotOlderThan(String),
    /// The latest: the known version is one that the server does not know any more.
    Latest,
}

/// Follows the objects of one kind.
pub(super) struct Reflector<T, F> {
    requests: Requests,
    selectors: Selectors,
    send: F,
    retry: Retry,
    problem_log: ProblemLog,
    recency: Recency,
    kind: PhantomData<fn() -> T>,
    /// Whether the last list was empty and nothing is known since, so that another empty one is believed.
    was_empty: bool,
}

impl<T: Kind, F: Fn(Event<T>)> Reflector<T, F> {
    /// `resource` is the name of the watch in `status` and metrics.
    pub(super) fn new(
        client: &Client,
        resource: &'static str,
        selectors: Selectors,
        watches: &Watches,
        send: F,
    ) -> Self {
        Self {
            requests: Requests::new(client.clone()),
            selectors,
            send,
            retry: Retry::new(resource, watches.clone()),
            problem_log: ProblemLog::default(),
            recency: Recency::Any,
            kind: PhantomData,
            was_empty: false,
        }
    }

    /// Lists and watches until dropped.
    pub(super) async fn run(mut self) -> Infallible {
        loop {
            let failure = match self.list_all().await {
                Ok(version) => self.follow(version).await,
                Err(failure) => {
                    if failure.refuses_version() && self.recency != Recency::Any {
                        self.recency = Recency::Latest;
                    }
                    failure
                }
            };
            if failure.is_too_new() {
                self.recency = Recency::Latest;
            }
            if failure.is_not_protobuf() {
                self.requests.no_more_protobuf();
            }
            self.retry.pause(&failure).await;
        }
    }

    /// Sends everything that exists, and returns where a watch goes on.
    async fn list_all(&mut self) -> Result<String, Failure> {
        let (listing, version) = match self.read_all().await {
            Err(failure) if failure.refuses_parameters() && self.selectors.fields.forgo() => {
                debug!("no field selector for {}: {failure}", T::PLURAL);
                self.read_all().await?
            }
            other => other?,
        };
        // A wrong answer of a proxy must not take every Service off the node, least of all
        // a node that is just being taken over; an answer that is given twice is believed.
        let is_empty = listing.is_empty();
        let was_empty = mem::replace(&mut self.was_empty, is_empty);
        if T::ALWAYS_SOME && is_empty && !was_empty {
            return Err(Failure::SuddenlyEmpty);
        }
        self.problem_log.list_ends();
        listing.finish().into_iter().for_each(&self.send);
        self.recency = Recency::NotOlderThan(version.clone());
        self.retry.succeeded();
        Ok(version)
    }

    /// Reads everything that exists, and the version of it.
    async fn read_all(&mut self) -> Result<(Listing<T>, String), Failure> {
        let (version, version_match) = match &self.recency {
            Recency::Any => (Some("0"), None),
            Recency::NotOlderThan(version) => (Some(&**version), Some(VersionMatch::NotOlderThan)),
            Recency::Latest => (None, None),
        };
        let params = ListParams {
            label_selector: self.selectors.labels.clone(),
            field_selector: self.selectors.fields.selector(),
            resource_version: version.map(str::to_owned),
            version_match,
            ..ListParams::default()
        };
        let mut parts = answer(self.requests.list::<T>(&params)).await?;
        let (mut listing, mut version, mut objects) = (self.begin_list(), String::new(), 0);
        loop {
            // A clock for each of ten thousand objects would take longer than to read them.
            let part = match parts.next().now_or_never() {
                Some(part) => part.transpose()?,
                None => answer(async { parts.next().await.transpose() }).await?,
            };
            match part {
                Some(Part::Object(_)) if objects == MOST_OBJECTS => return Err(Failure::TooMany(objects)),
                Some(Part::Object(view)) => {
                    objects += 1;
                    self.gather(view, &mut listing);
                }
                Some(Part::Version(of_list)) => version = of_list,
                None => break,
            }
        }
        if version.is_empty() { Err(Failure::NoVersion) } else { Ok((listing, version)) }
    }

    /// Sends changes until everything must be listed again, and returns why.
    async fn follow(&mut self, mut version: String) -> Failure {
        loop {
            let watched = match self.open(&version).await {
                Ok(events) => self.send_events(events, &mut version).await,
                Err(failure) => Err(failure),
            };
            match watched {
                Ok(()) => {}
                Err(failure) if self.retry.gives_watch_up(&failure) => {
                    self.recency = Recency::NotOlderThan(version);
                    return failure;
                }
                Err(failure) => self.retry.pause(&failure).await,
            }
        }
    }

    /// Sends the events of one watch until the server ends it. `version` is that of the last.
    async fn send_events(&mut self, mut events: Events<T>, version: &mut String) -> Result<(), Failure> {
        let mut established = false;
        loop {
            let event = match timeout(if established { QUIET } else { SHORTEST_WATCH }, events.next()).await {
                Ok(Some(event)) => event,
                Ok(None) if established => return Ok(()),
                Ok(None) => return Err(Failure::ClosedAtOnce),
                Err(_) if established => return Err(Failure::Silent(QUIET)),
                Err(_) => {
                    established = true;
                    self.retry.succeeded();
                    continue;
                }
            };
            match event? {
                WatchEvent::Applied(view) => {
                    note_version(version, &view);
                    self.apply(view);
                }
                WatchEvent::Deleted(view) => {
                    note_version(version, &view);
                    self.delete(&view.name);
                }
                WatchEvent::Bookmark(seen) => *version = seen,
                WatchEvent::Error(status) => return Err(Failure::InStream(status)),
            }
            established = true;
            self.retry.succeeded();
        }
    }

    async fn open(&self, version: &str) -> Result<Events<T>, Failure> {
        let params = WatchParams {
            label_selector: self.selectors.labels.clone(),
            field_selector: self.selectors.fields.selector(),
            timeout: Some(WATCH_SECONDS),
            bookmarks: true,
            send_initial_events: false,
        };
        answer(self.requests.watch(&params, version)).await
    }

    fn begin_list(&mut self) -> Listing<T> {
        self.problem_log.list_begins();
        match self.recency {
            Recency::Any => Listing::First { names: FxHashSet::default(), objects: Vec::new() },
            Recency::NotOlderThan(_) | Recency::Latest => Listing::Later(BTreeMap::new()),
        }
    }

    fn gather(&mut self, view: View<T>, listing: &mut Listing<T>) {
        let name = view.name;
        match self.problem_log.usable(&name, view.decoded) {
            Some(object) => listing.add(name, object).into_iter().for_each(&self.send),
            None => listing.remove(&name),
        }
    }

    /// Sends an object. One that has become useless counts as gone.
    fn apply(&mut self, view: View<T>) {
        self.was_empty = false;
        let name = view.name;
        let nameless = name.name().is_empty();
        match self.problem_log.usable(&name, view.decoded) {
            Some(object) => (self.send)(Event::Apply(object)),
            None if nameless => {}
            None => (self.send)(Event::Delete(name)),
        }
    }

    fn delete(&mut self, name: &ObjectName) {
        self.problem_log.forget::<T>(name);
        (self.send)(Event::Delete(name.clone()));
    }
}

fn note_version<T>(version: &mut String, view: &View<T>) {
    if let Some(newer) = &view.version {
        version.clear();
        version.push_str(newer);
    }
}

/// Waits for an answer, but not for ever.
async fn answer<R>(answer: impl Future<Output = Result<R, Failure>>) -> Result<R, Failure> {
    timeout(ANSWER, answer).await.map_err(|_| Failure::Silent(ANSWER))?
}

/// How many objects are sent together: waking the receiver costs more than one object.
const AT_ONCE: usize = 100;

/// The objects of a list that have been read so far.
enum Listing<T> {
    /// The first list. Nothing is acted on before its end, so objects are sent as they arrive: they need not
    /// be kept, and the desired state is computed by the time the last one is there.
    First {
        /// The names of all objects read.
        names: FxHashSet<ObjectName>,
        /// The objects that are still to be sent.
        objects: Vec<T>,
    },
    /// A later list. It is sent as a whole, so that objects that are gone leave before their successors come.
    Later(BTreeMap<ObjectName, T>),
}

impl<T: Kind> Listing<T> {
    /// Adds an object, and returns the event to send now.
    fn add(&mut self, name: ObjectName, object: T) -> Option<Event<T>> {
        match self {
            Self::First { names, objects } => {
                names.insert(name);
                objects.push(object);
                (objects.len() >= AT_ONCE).then(|| Event::InitApply(mem::take(objects)))
            }
            Self::Later(objects) => {
                objects.insert(name, object);
                None
            }
        }
    }

    /// Removes an object that is gone, or has become useless.
    fn remove(&mut self, name: &ObjectName) {
        match self {
            Self::First { names, .. } => _ = names.remove(name),
            Self::Later(objects) => _ = objects.remove(name),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::First { names, .. } => names.is_empty(),
            Self::Later(objects) => objects.is_empty(),
        }
    }

    /// Ends the list, and returns the events to send.
    fn finish(self) -> Vec<Event<T>> {
        match self {
            Self::First { names, objects } if objects.is_empty() => vec![Event::InitDone(names)],
            Self::First { names, objects } => vec![Event::InitApply(objects), Event::InitDone(names)],
            Self::Later(objects) => vec![Event::Replace(objects.into_values().collect())],
        }
    }
}
