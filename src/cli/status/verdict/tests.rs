use reconciler::{FirstNamed, KernelDifference, LastSync};

use super::{super::tests::sample, *};
use crate::serve::liveness::AnswersSummary;

/// The verdict on a status in order, after this was done to it.
fn verdict(change: impl FnOnce(&mut DaemonStatus)) -> (Grade, String) {
    let mut status = sample::status();
    (status.programmed.sync_state, status.programmed.services) = (SyncState::Synced, 4);
    (status.programmed.without_endpoints, status.programmed.difference) = (FirstNamed::default(), None);
    status.programmed.problems.clear();
    status.programmed.ejected = 0;
    status.endpoints = AnswersSummary::default();
    status.advice.retain(|advice| advice.severity == Severity::Note);
    if let SourceInfo::ApiServer { watches, .. } = &mut status.daemon.source {
        watches.retain(|watch| watch.state == WatchState::Watching);
    }
    change(&mut status);
    let Verdict { grade, subject, words } = Verdict::from_status(&status);
    (grade, format!("{subject}: {words}"))
}

const AS_DESIRED: &str = "serving: 4 Services, all as desired when last read, 3.2 s ago";

#[test]
fn a_node_in_order_serves_as_desired_as_of_its_last_reading() {
    assert_eq!(verdict(|_| {}), (Grade::Good, AS_DESIRED.to_owned()), "whatever notes there are");
    let (grade, words) = verdict(|status| status.programmed.services = 1);
    assert_eq!((grade, words.starts_with("serving: 1 Service, all as desired")), (Grade::Good, true));
}

#[test]
fn what_is_wrong_with_objects_or_the_node_is_counted_and_is_not_our_fault() {
    let all = sample::status();
    let (grade, words) = verdict(|status| {
        status.programmed.without_endpoints = all.programmed.without_endpoints.clone();
        status.programmed.problems = vec![String::new(); 2];
        status.advice = all.advice.clone();
        status.endpoints = all.endpoints.clone();
    });
    assert_eq!(grade, Grade::Doubtful);
    assert_eq!(
        words,
        format!(
            "{AS_DESIRED}; 1 Service without endpoint, 1 endpoint does not answer, 2 problems, 1 warning"
        )
    );
}

#[test]
fn a_kernel_that_was_compared_is_as_desired_now_or_is_the_fault() {
    let compared = |difference| verdict(|status| status.programmed.difference = Some(difference));
    let same = compared(KernelDifference::default());
    assert_eq!(same, (Grade::Good, "serving: 4 Services, all as desired".to_owned()));
    let (grade, words) = compared(sample::status().programmed.difference.unwrap());
    let expected =
        "NOT in sync: the kernel differs: 6 real servers and 1 virtual server to be added, for default/web";
    assert_eq!((grade, &*words), (Grade::Bad, expected));
}

#[test]
fn what_is_not_programmed_or_not_watched_is_a_fault() {
    let state = |state, seconds| {
        verdict(|status| {
            status.programmed.sync_state = state;
            status.programmed.sync_state_age = Duration::from_secs(seconds);
            status.programmed.scheduler_changes = 0;
        })
    };
    let (bad, words) = state(SyncState::Failing, 5);
    assert_eq!((bad, &*words), (Grade::Bad, "NOT in sync: syncs have been failing for 5.0 s"));
    let (good, words) = state(SyncState::Behind, 9);
    assert_eq!((good, &*words), (Grade::Good, "serving: 4 Services; a change is being programmed"));
    let (bad, words) = state(SyncState::Behind, 10);
    assert_eq!((bad, &*words), (Grade::Bad, "NOT in sync: a change has been waiting for 10 s"));
    assert_eq!(state(SyncState::NotListed, 0).0, Grade::Bad);
    let (bad, words) = verdict(|status| status.daemon.source = sample::status().daemon.source);
    let expected =
        "NOT up to date: endpointslices are not watched: the server answered 503 Service Unavailable";
    assert_eq!((bad, &*words), (Grade::Bad, expected));
}

#[test]
fn before_a_full_reading_nothing_is_said_to_be_as_desired() {
    let none: Option<LastSync> = None;
    let (grade, words) = verdict(|status| status.programmed.last_full_sync = none);
    assert_eq!((grade, &*words), (Grade::Good, "serving: 4 Services"));
}

#[test]
fn before_services_are_asked_for_it_is_the_node_that_is_waited_for() {
    let waiting = |watches: &[&str]| {
        verdict(|status| {
            (status.programmed.sync_state, status.programmed.sync_state_age) =
                (SyncState::NotListed, Duration::from_secs(12));
            if let SourceInfo::ApiServer { watches: all, .. } = &mut status.daemon.source {
                all.retain(|watch| watches.contains(&&*watch.resource));
            }
        })
        .1
    };
    assert_eq!(waiting(&["nodes"]), "NOT in sync: waiting for the Node node-1 and its IPs for 12 s");
    let both = waiting(&["nodes", "services"]);
    assert_eq!(both, "NOT in sync: Services and EndpointSlices are not listed yet, for 12 s");
}
