//! The state of each watch, for `status` and metrics.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use serde::{Deserialize, Serialize};
use service::seconds;

/// The watches of the API server, by resource. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Watches(Arc<Mutex<States>>);

#[derive(Debug, Default)]
struct States {
    resources: BTreeMap<&'static str, ResourceState>,
    last_heard: Option<SystemTime>,
}

/// The state of the watch of one resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// Its name in the API: `services`.
    pub resource: String,
    /// Whether it is watched.
    pub state: WatchState,
    /// For how long it has been in this state; in JSON, seconds.
    #[serde(with = "seconds")]
    pub age: Duration,
    /// The last failure, even if it is over.
    pub last_failure: Option<PastFailure>,
}

/// Whether a resource is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WatchState {
    /// The list was requested, and is not complete.
    Listing,
    /// The list is complete, and a watch is open.
    Watching,
    /// The last attempt has failed, and another one follows. Earlier objects stay as they were.
    Failing,
}

/// A failure to list or watch, and when it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastFailure {
    /// The cause, without a full stop.
    pub cause: String,
    /// How long ago; in JSON, seconds.
    #[serde(with = "seconds")]
    pub age: Duration,
}

#[derive(Debug)]
struct ResourceState {
    state: WatchState,
    since: Instant,
    last_failure: Option<(Instant, String)>,
}

impl Watches {
    /// The state of each watch, sorted by resource. Empty before the first request.
    pub fn all(&self) -> Vec<Watch> {
        let shown = |(resource, resource_state): (&&str, &ResourceState)| Watch {
            resource: (*resource).to_owned(),
            state: resource_state.state,
            age: resource_state.since.elapsed(),
            last_failure: resource_state
                .last_failure
                .as_ref()
                .map(|(at, cause)| PastFailure { cause: cause.clone(), age: at.elapsed() }),
        };
        self.lock().resources.iter().map(shown).collect()
    }

    /// Describes each resource that cannot be watched now, in one line.
    pub fn troubles(&self) -> Vec<String> {
        let failing = |watch: Watch| {
            let cause = watch.last_failure.filter(|_| watch.state == WatchState::Failing)?.cause;
            let (resource, seconds) = (watch.resource, watch.age.as_secs_f64());
            Some(format!(
                "API server: {resource} not watched for {seconds:.0} s: {cause}; the programmed state is kept"
            ))
        };
        self.all().into_iter().filter_map(failing).collect()
    }

    /// How many resources cannot be watched now.
    pub fn failing(&self) -> usize {
        self.lock().resources.values().filter(|it| it.state == WatchState::Failing).count()
    }

    /// When the server last answered, or sent an event, as it should. On a quiet watch it sends a bookmark
    /// about once a minute.
    pub fn last_heard(&self) -> Option<SystemTime> {
        self.lock().last_heard
    }

    pub(super) fn listing(&self, resource: &'static str) {
        self.enter(resource, WatchState::Listing, None);
    }

    /// Records that the server has answered as it should.
    pub(super) fn watching(&self, resource: &'static str) {
        self.lock().last_heard = Some(SystemTime::now());
        self.enter(resource, WatchState::Watching, None);
    }

    pub(super) fn failed(&self, resource: &'static str, cause: &str) {
        self.enter(resource, WatchState::Failing, Some(cause));
    }

    /// Removes a resource that is not watched any more.
    pub(super) fn forget(&self, resource: &'static str) {
        self.lock().resources.remove(resource);
    }

    /// Enters a state. Its age is counted from when it was first entered.
    fn enter(&self, resource: &'static str, state: WatchState, failure: Option<&str>) {
        let (now, mut states) = (Instant::now(), self.lock());
        let new = || ResourceState { state, since: now, last_failure: None };
        let resource_state = states.resources.entry(resource).or_insert_with(new);
        if resource_state.state != state {
            (resource_state.state, resource_state.since) = (state, now);
        }
        if let Some(cause) = failure {
            resource_state.last_failure = Some((now, cause.to_owned()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, States> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// State and last failure.
    fn services(watches: &Watches) -> (WatchState, Option<String>) {
        let all = watches.all();
        let [watch] = &all[..] else { panic!("{all:?}") };
        assert_eq!(watch.resource, "services");
        (watch.state, watch.last_failure.as_ref().map(|failure| failure.cause.clone()))
    }

    #[test]
    fn a_failure_is_reported_while_it_lasts_and_remembered_when_it_is_over() {
        let watches = Watches::default();
        assert!(watches.all().is_empty());
        watches.listing("services");
        assert_eq!(services(&watches), (WatchState::Listing, None));
        assert!(watches.troubles().is_empty());

        watches.failed("services", "forbidden");
        watches.failed("services", "refused");
        assert_eq!(services(&watches), (WatchState::Failing, Some("refused".to_owned())));
        assert_eq!(
            watches.troubles(),
            ["API server: services not watched for 0 s: refused; the programmed state is kept"]
        );

        watches.watching("services");
        assert_eq!(services(&watches), (WatchState::Watching, Some("refused".to_owned())));
        assert!(watches.troubles().is_empty());
    }

    #[test]
    fn failing_watches_are_counted_until_the_server_answers() {
        let watches = Watches::default();
        assert_eq!((watches.failing(), watches.last_heard()), (0, None));
        watches.failed("services", "refused");
        watches.failed("services", "still refused");
        watches.failed("nodes", "refused");
        assert_eq!((watches.failing(), watches.last_heard()), (2, None));
        let before = SystemTime::now();
        watches.watching("services");
        assert_eq!(watches.failing(), 1);
        assert!(watches.last_heard().is_some_and(|heard| heard >= before));
    }

    #[test]
    fn a_repeated_state_keeps_its_begin() {
        let watches = Watches::default();
        watches.watching("services");
        let begin = watches.lock().resources.get("services").unwrap().since;
        watches.watching("services");
        assert_eq!(watches.lock().resources.get("services").unwrap().since, begin);
    }
}
