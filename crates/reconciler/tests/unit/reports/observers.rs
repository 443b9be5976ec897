//! What the observers, which are health checks and metrics, receive.

use std::{
    num::NonZero,
    sync::mpsc::{Receiver, Sender, channel},
    time::{Duration, SystemTime},
};

use ipvs::Protocol::Tcp;
use netlink::Errno;
use reconciler::{ChangeEvent, ObjectKind, Observer, SyncEvent, Trigger};
use service::{Change, EndpointSlice, Event, Service, ServiceKind, TrafficPolicy};
use testkit::FakeKernel;

use crate::common::{Running, Setup, service, slice};

/// An observer that passes on what it receives.
struct Listener {
    changes: Sender<ChangeEvent>,
    syncs: Sender<Heard>,
}

/// The part of an observation that can be passed on.
#[derive(Debug, PartialEq, Eq)]
struct Heard {
    trigger: Trigger,
    complete: bool,
    served: usize,
    /// The number of ready endpoints, over all health checks.
    ready: usize,
    done: usize,
    triggered_at: Vec<SystemTime>,
}

impl Observer for Listener {
    fn on_change_applied(&mut self, change: ChangeEvent) {
        self.changes.send(change).unwrap();
    }

    fn on_sync(&mut self, sync: &SyncEvent<'_>) {
        let heard = Heard {
            trigger: sync.report.trigger,
            complete: sync.complete,
            served: sync.state.virtual_servers().count(),
            ready: sync.state.reports().health_checks().map(|(_, check)| check.ready_v4).sum(),
            done: sync.report.done,
            triggered_at: sync.triggered_at.to_vec(),
        };
        self.syncs.send(heard).unwrap();
    }
}

fn observed(kernel: &FakeKernel) -> (Running, Receiver<ChangeEvent>, Receiver<Heard>) {
    let (changes, received_changes) = channel();
    let (syncs, received_syncs) = channel();
    let observers: Vec<Box<dyn Observer>> = vec![Box::new(Listener { changes, syncs })];
    (Running::with(kernel, Setup { observers, ..Setup::default() }), received_changes, received_syncs)
}

/// A slice that was written because of something that happened this many seconds after 1970.
fn slice_of(seconds: u64, addresses: &[&str]) -> EndpointSlice {
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    EndpointSlice { triggered_at: Some(then), ..slice("web", Tcp, addresses) }
}

#[test]
fn changes_are_counted_and_wait_once_both_lists_are_here() {
    let (running, changes, _syncs) = observed(&FakeKernel::new());
    let web = service("web", "10.96.0.1", Tcp);
    running.tell(Change::Services(Event::Replace(vec![web.clone(), service("www", "10.96.0.2", Tcp)])));
    running.tell(Change::Slices(Event::Replace(vec![])));
    running.tell(Change::Slices(Event::Apply(slice_of(1, &["10.244.0.1"]))));
    running.tell(Change::Services(Event::Apply(web)));
    running.settled();
    let heard = |kind, objects, waits| ChangeEvent { kind, objects, changes: 1, waits };
    assert_eq!(
        changes.try_iter().collect::<Vec<_>>(),
        [
            heard(ObjectKind::Services, 2, false),
            // Now that both lists are here, there is something to do.
            heard(ObjectKind::EndpointSlices, 0, true),
            heard(ObjectKind::EndpointSlices, 1, true),
            heard(ObjectKind::Services, 1, false),
        ]
    );
}

#[test]
fn a_sync_tells_when_the_changes_that_it_acted_on_were_asked_for() {
    let (running, _changes, syncs) = observed(&FakeKernel::new());
    // A list may be old: it says nothing about how long anything took.
    running.lists(vec![service("web", "10.96.0.1", Tcp)], vec![slice_of(1, &["10.244.0.1"])]);
    running.tell(Change::Slices(Event::Apply(slice_of(2, &["10.244.0.2"]))));
    running.settled();
    // Not different, so no sync is due because of it.
    running.tell(Change::Slices(Event::Apply(slice_of(3, &["10.244.0.2"]))));
    running.handle.resync().unwrap();
    let events: Vec<_> = syncs.try_iter().collect();
    assert!(events.iter().all(|heard| heard.complete && heard.served == 1), "{events:?}");
    let times: Vec<_> = events.iter().flat_map(|heard| &heard.triggered_at).collect();
    assert_eq!(times, [&(SystemTime::UNIX_EPOCH + Duration::from_secs(2))]);
    assert_eq!(events.first().unwrap().trigger, Trigger::Start);
}

#[test]
fn sync_is_incomplete_and_keeps_the_times_while_the_kernel_cannot_be_read() {
    let kernel = FakeKernel::new();
    let (running, _changes, syncs) = observed(&kernel);
    running.lists(vec![service("web", "10.96.0.1", Tcp)], vec![slice_of(1, &["10.244.0.1"])]);
    syncs.try_iter().for_each(drop);
    kernel.heal();
    // The next call is the first of a reading.
    kernel.fail_call(0, Errno::ENOMEM);
    running.tell(Change::Slices(Event::Apply(slice_of(2, &["10.244.0.2"]))));
    running.handle.resync().unwrap();
    running.settled();
    let events: Vec<_> = syncs.try_iter().collect();
    let (failed, complete): (Vec<_>, Vec<_>) = events.iter().partition(|heard| !heard.complete);
    assert!(!failed.is_empty() && failed.iter().all(|heard| heard.triggered_at.is_empty()), "{events:?}");
    assert_eq!(complete.iter().map(|heard| heard.triggered_at.len()).sum::<usize>(), 1, "{events:?}");
}

#[test]
fn change_for_health_checks_only_is_observed_at_once_and_writes_nothing() {
    let (running, _changes, syncs) = observed(&FakeKernel::new());
    let balanced = Service {
        kind: ServiceKind::LoadBalancer,
        external_traffic_policy: TrafficPolicy::Local,
        health_check_node_port: NonZero::new(32_000),
        ..service("web", "10.96.0.1", Tcp)
    };
    let mut slice = slice("web", Tcp, &["10.244.0.1"]);
    running.lists(vec![balanced], vec![slice.clone()]);
    running.settled();
    assert_eq!(syncs.try_iter().last().unwrap().ready, 1);
    // The only pod begins to terminate, and stays the real server.
    for endpoint in &mut slice.endpoints {
        (endpoint.ready, endpoint.terminating) = (false, true);
    }
    running.tell(Change::Slices(Event::Apply(slice)));
    running.settled();
    let events: Vec<_> = syncs.try_iter().map(|heard| (heard.trigger, heard.ready, heard.done)).collect();
    assert_eq!(events, [(Trigger::Change, 0, 0)]);
}
