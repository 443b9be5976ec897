//! Tallies, which alerts go by: failures by cause, repairs by kind, drains.

use std::{
    collections::BTreeMap,
    sync::mpsc::{Receiver, Sender, channel},
};

use ipvs::{Family, Protocol::Tcp, VirtualServerId};
use netfilter::Element;
use netlink::Errno;
use reconciler::{FailureKind, Observer, Programmed, RepairKind, Subsystem, SyncEvent, SyncStats};
use service::{Change, Event, Service};
use testkit::{FakeKernel, fake_kernel::Fault};

use crate::common::{Running, Setup, active_connections, at, real, service, slice};

struct Listener(Sender<SyncStats>);

impl Observer for Listener {
    fn on_sync(&mut self, sync: &SyncEvent<'_>) {
        self.0.send(sync.stats.clone()).unwrap();
    }
}

/// A Service with two endpoints that is in the kernel, and the sender from then on.
fn served(kernel: &FakeKernel) -> (Running, Receiver<SyncStats>) {
    let (sender, stats_of_syncs) = channel();
    let observers: Vec<Box<dyn Observer>> = vec![Box::new(Listener(sender))];
    let running = Running::with(kernel, Setup { observers, ..Setup::default() });
    running.lists(
        vec![service("web", "10.96.0.1", Tcp)],
        vec![slice("web", Tcp, &["10.244.0.1", "10.244.0.2"])],
    );
    assert_eq!(
        sum(&stats_of_syncs).repairs,
        BTreeMap::new(),
        "the first sync makes what is missing, and repairs nothing"
    );
    kernel.heal();
    (running, stats_of_syncs)
}

/// The sum of the sender since the last time.
fn sum(stats_of_syncs: &Receiver<SyncStats>) -> SyncStats {
    stats_of_syncs.try_iter().fold(SyncStats::default(), |mut sum, stats| {
        stats.failures.into_iter().for_each(|(kind, count)| *sum.failures.entry(kind).or_default() += count);
        stats.repairs.into_iter().for_each(|(kind, count)| *sum.repairs.entry(kind).or_default() += count);
        sum.drains.started += stats.drains.started;
        sum.drains.ended += stats.drains.ended;
        sum
    })
}

#[test]
fn each_kind_of_foreign_change_is_counted_when_it_is_repaired() {
    let kernel = FakeKernel::new();
    let (running, stats_of_syncs) = served(&kernel);
    let web = VirtualServerId::from(at("10.96.0.1", Tcp));
    let vip = "10.96.0.1".parse().unwrap();
    let repaired = |change: &dyn Fn(&mut testkit::fake_kernel::State)| {
        change(&mut kernel.state());
        running.handle.resync().unwrap();
        let SyncStats { failures, repairs, .. } = sum(&stats_of_syncs);
        assert_eq!(failures, BTreeMap::new());
        repairs
    };
    let one = |kind| BTreeMap::from([(kind, 1)]);
    assert_eq!(repaired(&|_| {}), BTreeMap::new());
    assert_eq!(repaired(&|kernel| _ = kernel.dummy_interface.bound.remove(&vip)), one(RepairKind::Vip));
    assert_eq!(repaired(&|kernel| kernel.dummy_interface.device = false), one(RepairKind::Device));
    assert_eq!(repaired(&|kernel| _ = kernel.elements.remove(&Element::Vip(vip))), one(RepairKind::Element));
    assert_eq!(repaired(&|kernel| _ = kernel.tables.pop_first()).keys().next(), Some(&RepairKind::Table));
    let weight = |kernel: &mut testkit::fake_kernel::State| {
        let servers = &mut kernel.virtual_servers.get_mut(&web).unwrap().1;
        servers.get_mut(&real("10.244.0.1")).unwrap().config.weight = 7;
    };
    assert_eq!(repaired(&weight), one(RepairKind::RealServer));
    let cleared = repaired(&|kernel| kernel.virtual_servers.clear());
    assert_eq!(cleared, BTreeMap::from([(RepairKind::VirtualServer, 1), (RepairKind::RealServer, 2)]));
}

#[test]
fn failed_repair_counts_as_a_failure_first_and_as_a_repair_once_done() {
    let kernel = FakeKernel::new();
    let (running, stats_of_syncs) = served(&kernel);
    let vip = "10.96.0.1".parse().unwrap();
    kernel.state().elements.remove(&Element::Vip(vip));
    kernel.state().refused_elements.insert(Element::Vip(vip));
    let report = running.handle.resync().unwrap();
    assert_eq!((report.repairs.len(), report.failed), (0, 1));
    let SyncStats { failures, repairs, .. } = sum(&stats_of_syncs);
    assert_eq!(failures, BTreeMap::from([((Subsystem::NfTables, FailureKind::Refused), 1)]));
    assert_eq!(repairs, BTreeMap::new());
    // Once more in vain, and then it can be done.
    running.handle.resync().unwrap();
    assert_eq!(sum(&stats_of_syncs).repairs, BTreeMap::new());
    kernel.state().refused_elements.clear();
    let report = running.handle.resync().unwrap();
    assert_eq!((report.repairs.len(), report.failed), (1, 0));
    let one = BTreeMap::from([(RepairKind::Element, 1)]);
    assert_eq!(sum(&stats_of_syncs).repairs, one);
    running.handle.resync().unwrap();
    assert_eq!(sum(&stats_of_syncs).repairs, BTreeMap::new(), "once");
}

#[test]
fn what_rests_on_a_failed_repair_is_repaired_with_it() {
    let kernel = FakeKernel::new();
    let (running, stats_of_syncs) = served(&kernel);
    kernel.state().dummy_interface.device = false;
    kernel.state().dummy_interface.bound.clear();
    let vip = Element::Vip("10.96.0.1".parse().unwrap());
    kernel.state().elements.remove(&vip);
    kernel.state().refused_elements.insert(vip);
    running.handle.resync().unwrap();
    let SyncStats { failures, repairs, .. } = sum(&stats_of_syncs);
    assert!(failures.contains_key(&(Subsystem::DummyInterface, FailureKind::PutOff)), "{failures:?}");
    assert_eq!(repairs, BTreeMap::from([(RepairKind::Device, 1)]));
    kernel.state().refused_elements.clear();
    running.handle.resync().unwrap();
    let repaired = [(RepairKind::Element, 1), (RepairKind::Vip, 1)];
    assert_eq!(sum(&stats_of_syncs).repairs, BTreeMap::from(repaired));
}

#[test]
fn a_change_that_failed_at_first_does_not_count_as_a_repair() {
    let kernel = FakeKernel::new();
    let (running, stats_of_syncs) = served(&kernel);
    kernel.state().refused_elements.insert(Element::Vip("10.96.0.2".parse().unwrap()));
    running.tell(Change::Services(Event::Apply(service("www", "10.96.0.2", Tcp))));
    running.handle.resync().unwrap();
    kernel.state().refused_elements.clear();
    running.handle.resync().unwrap();
    let SyncStats { failures, repairs, .. } = sum(&stats_of_syncs);
    assert!(failures.contains_key(&(Subsystem::NfTables, FailureKind::Refused)), "{failures:?}");
    assert_eq!(repairs, BTreeMap::new());
}

#[test]
fn failures_are_counted_by_where_and_how() {
    for (fault, expected) in [
        // The second call of a full look is the reading of the virtual servers, after the text.
        (Fault::Refused(Errno::ENOMEM), (Subsystem::Ipvs, FailureKind::Unread)),
        (Fault::BrokenOff, (Subsystem::Ipvs, FailureKind::Unread)),
    ] {
        let kernel = FakeKernel::new();
        let (running, stats_of_syncs) = served(&kernel);
        kernel.inject(1, fault);
        running.handle.resync().unwrap();
        assert_eq!(sum(&stats_of_syncs).failures, BTreeMap::from([(expected, 1)]), "{fault:?}");
    }
    // The first call of a change is its first element.
    let kernel = FakeKernel::new();
    let (running, stats_of_syncs) = served(&kernel);
    kernel.inject(0, Fault::BrokenOff);
    running.tell(Change::Services(Event::Apply(service("www", "10.96.0.2", Tcp))));
    running.settled();
    let failures = sum(&stats_of_syncs).failures;
    assert!(failures.contains_key(&(Subsystem::NfTables, FailureKind::InDoubt)), "{failures:?}");
    assert!(
        failures.keys().any(|(_, how)| *how == FailureKind::PutOff),
        "{failures:?}: what rests on it waits"
    );
}

#[test]
fn drain_is_counted_when_it_begins_and_when_it_ends() {
    let kernel = FakeKernel::new();
    let (running, stats_of_syncs) = served(&kernel);
    active_connections(&kernel, at("10.96.0.1", Tcp).into(), "10.244.0.2", 3);
    running.tell(Change::Slices(Event::Apply(slice("web", Tcp, &["10.244.0.1"]))));
    running.status_where(|status| status.draining == 1);
    let drains = sum(&stats_of_syncs).drains;
    assert_eq!((drains.started, drains.ended), (1, 0));
    active_connections(&kernel, at("10.96.0.1", Tcp).into(), "10.244.0.2", 0);
    running.handle.resync().unwrap();
    let last = stats_of_syncs.try_iter().last().unwrap().drains;
    assert_eq!((last.ended, last.pending, last.oldest), (1, 0, None));
}

#[test]
fn what_the_kernel_has_is_counted_foreign_and_draining_servers_too() {
    let kernel = FakeKernel::new();
    let (running, stats_of_syncs) = served(&kernel);
    let programmed = || {
        running.handle.resync().unwrap();
        stats_of_syncs.try_iter().last().unwrap().programmed.unwrap()
    };
    assert_eq!(
        programmed(),
        Programmed { virtual_servers: 1, real_servers: 2, vips: 1, ..Programmed::default() }
    );
    active_connections(&kernel, at("10.96.0.1", Tcp).into(), "10.244.0.2", 3);
    running.tell(Change::Slices(Event::Apply(slice("web", Tcp, &["10.244.0.1"]))));
    running.tell(Change::Services(Event::Apply(service("www", "10.96.0.2", Tcp))));
    assert_eq!(
        programmed(),
        Programmed { virtual_servers: 2, real_servers: 2, vips: 2, ..Programmed::default() }
    );
    running.tell(Change::Services(Event::Replace(Vec::new())));
    assert_eq!(programmed(), Programmed::default());
}

#[test]
fn the_kernel_is_not_counted_while_it_is_in_doubt() {
    let kernel = FakeKernel::new();
    let (running, stats_of_syncs) = served(&kernel);
    kernel.inject(1, Fault::BrokenOff);
    running.handle.resync().unwrap();
    assert_eq!(stats_of_syncs.try_iter().next().unwrap().programmed, None);
}

#[test]
fn all_problems_are_counted_although_the_status_lists_the_first_twenty() {
    let kernel = FakeKernel::new();
    let (sender, stats_of_syncs) = channel();
    let observers: Vec<Box<dyn Observer>> = vec![Box::new(Listener(sender))];
    let running =
        Running::with(&kernel, Setup { families: [Family::V4].into(), observers, ..Setup::default() });
    let claimant = |number: u8| Service {
        external_ips: vec!["127.0.0.1".parse().unwrap()],
        problems: vec!["a field".to_owned()],
        ..service(&format!("web-{number}"), &format!("10.96.0.{number}"), Tcp)
    };
    let few: Vec<_> = (1..=3).map(claimant).collect();
    let on_the_other_family = service("six", "fd00:96::1", Tcp);
    let of_web_1 = Service { cluster_ips: few[0].cluster_ips.clone(), ..service("late", "10.96.0.9", Tcp) };
    let unlucky = Service { created: Some(1), ..of_web_1 };
    running.lists([few, vec![on_the_other_family, unlucky]].concat(), Vec::new());
    let problems = || {
        running.handle.resync().unwrap();
        let listed = running.handle.status().unwrap().problems.len();
        (listed, stats_of_syncs.try_iter().last().unwrap().problems)
    };
    // Of each a refused address and a field, the family, and the conflict.
    assert_eq!(problems(), (8, 8));
    running.tell(Change::Services(Event::Replace((1..=30).map(claimant).collect())));
    assert_eq!(problems(), (20, 60));
}
