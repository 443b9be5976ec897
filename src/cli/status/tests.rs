pub(in crate::cli) mod sample;

use super::{super::documented_tests::assert_documented, *};

#[test]
fn its_json_is_documented() {
    assert_documented("status", &sample::status());
}

/// A status in order, after this was done to it.
fn reason(change: impl FnOnce(&mut DaemonStatus)) -> Option<String> {
    let mut status = sample::status();
    status.programmed.sync_state = SyncState::Synced;
    if let SourceInfo::ApiServer { watches, .. } = &mut status.daemon.source {
        watches.retain(|watch| watch.state == WatchState::Watching);
    }
    change(&mut status);
    not_in_order(&status)
}

#[test]
fn problems_of_objects_and_advice_on_the_node_do_not_make_the_status_fail() {
    let status = sample::status();
    assert!(!status.programmed.problems.is_empty() && !status.advice.is_empty());
    assert_eq!(reason(|_| {}), None);
}

#[test]
fn what_is_not_programmed_or_not_watched_is_not_in_order() {
    let state = |state, seconds| {
        reason(|status| {
            status.programmed.sync_state = state;
            status.programmed.sync_state_age = Duration::from_secs(seconds);
            status.programmed.scheduler_changes = 0;
        })
    };
    assert_eq!(
        state(SyncState::Failing, 5).as_deref(),
        Some("synced: no, syncs have been failing for 5.0 s")
    );
    assert_eq!(state(SyncState::Behind, 9), None);
    assert_eq!(
        state(SyncState::Behind, 10).as_deref(),
        Some("synced: no, a change has been waiting for 10 s")
    );
    assert!(state(SyncState::NotListed, 0).is_some());
    let unwatched = reason(|status| status.daemon.source = sample::status().daemon.source);
    let words = "endpointslices are not watched: the server answered 503 Service Unavailable";
    assert_eq!(unwatched.as_deref(), Some(words));
}
