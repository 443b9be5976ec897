use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use dummy_interface::Changed;
use ipvs::{Family, Protocol, RealServerAddress};
use service::{
    Change, Endpoint, EndpointPort, EndpointSlice, Event, ObjectName, Service, ServiceKind, ServicePort,
};
use testkit::FakeKernel;
use watcher::Draining;

use super::*;
use crate::{
    FailureKind,
    follow::LostAddresses,
    sync::{Look, tests::reconciler},
};

const VIP: ServiceAddress =
    ServiceAddress { protocol: Protocol::Tcp, ip: IpAddr::V4(Ipv4Addr::new(10, 96, 0, 10)), port: 80 };

fn real_server(pod: u8) -> RealServerAddress {
    RealServerAddress { ip: [10, 244, 0, pod].into(), port: 8080 }
}

fn web() -> Service {
    Service {
        cluster_ips: vec![VIP.ip],
        ports: vec![ServicePort { name: "".into(), protocol: VIP.protocol, port: VIP.port, node_port: None }],
        ..Service::new(ObjectName::new("default", "web"))
    }
}

fn slice(pods: &[u8]) -> EndpointSlice {
    let endpoint = |pod: &u8| Endpoint::new(real_server(*pod).ip);
    EndpointSlice {
        ports: vec![EndpointPort { name: "".into(), protocol: Protocol::Tcp, port: 8080 }],
        endpoints: pods.iter().map(endpoint).collect(),
        ..EndpointSlice::new(
            ObjectName::new("default", "web-1"),
            ObjectName::new("default", "web"),
            Family::V4,
        )
    }
}

#[test]
fn node_port_stays_at_a_lost_address_until_the_grace_period_ends() {
    let fake = FakeKernel::new();
    let mut reconciler = reconciler(&fake, Draining::new(None));
    let mut node_port = web();
    node_port.ports.iter_mut().for_each(|port| port.node_port = 30080.try_into().ok());
    reconciler.apply_change(Change::Services(Event::Replace(vec![Service {
        kind: ServiceKind::NodePort,
        ..node_port
    }])));
    reconciler.apply_change(Change::Slices(Event::Replace(vec![slice(&[1])])));
    let address: IpAddr = [192, 0, 2, 1].into();
    fake.state().dummy_interface.node_addresses.insert(address);
    reconciler.sync_whole(Trigger::Start);
    fake.heal();

    let change = Changed { node_addresses: true, ..Changed::default() };
    let notify = |reconciler: &mut Reconciler| {
        reconciler.on_link_event(&change);
        reconciler.sync_whole(Trigger::NodeAddresses);
        assert!(reconciler.compare().unwrap().is_empty(), "and nothing else is wanted");
        fake.writes()
    };
    fake.state().dummy_interface.node_addresses.clear();
    assert_eq!(notify(&mut reconciler), "");
    fake.state().dummy_interface.node_addresses.insert(address);
    assert_eq!(notify(&mut reconciler), "");
    assert_eq!(reconciler.next_check(), None);

    // The time is over as soon as it has begun.
    reconciler.lost_addresses = LostAddresses::new(Duration::ZERO);
    assert_eq!(notify(&mut reconciler), "");
    fake.state().dummy_interface.node_addresses.clear();
    assert_eq!(notify(&mut reconciler), "");
    let (due, trigger) = reconciler.next_check().unwrap();
    assert!(due <= Instant::now());
    reconciler.sync_whole(trigger);
    assert_eq!(
        fake.writes(),
        "delete virtual server TCP 192.0.2.1:30080\n\
         delete element external TCP 192.0.2.1:30080\n"
    );
    assert_eq!(reconciler.next_check(), None);
}

#[test]
fn drain_found_only_by_the_comparison_of_everything_is_followed_to_its_end() {
    let fake = FakeKernel::new();
    let mut reconciler = reconciler(&fake, Draining::new(Some(Duration::ZERO)));
    reconciler.apply_change(Change::Services(Event::Replace(vec![web()])));
    reconciler.apply_change(Change::Slices(Event::Replace(vec![slice(&[1, 2])])));
    assert!(reconciler.sync_whole(Trigger::Start).outcome.failures.is_empty());
    let id = VIP.into();
    let real_servers = |count: u32| {
        let mut state = fake.state();
        let (_, servers) = state.virtual_servers.get_mut(&id).unwrap();
        for server in servers.values_mut() {
            server.active_connections = count;
        }
        servers.len()
    };
    assert_eq!(real_servers(3), 2);

    // A fault in what is kept: it is not known that a real server is no longer wanted.
    reconciler.apply_change(Change::Slices(Event::Apply(slice(&[1]))));
    reconciler.dirty = Dirty::default();
    let mut next = reconciler.deep_verify;
    while !next.next_part().is_first() {
        reconciler.deep_verify = next;
    }
    assert!(!next.contains(&VIP), "it is found although it is not its turn");
    reconciler.sync_whole(Trigger::Period);
    assert_eq!(
        fake.writes().lines().last(),
        Some("edit real server TCP 10.96.0.10:80 -> 10.244.0.2:8080 weight 0")
    );
    assert_eq!(reconciler.draining.virtual_servers().collect::<Vec<_>>(), [VIP]);
    // The timeout is over at once, so the next check of what drains removes it.
    reconciler.sync_whole(Trigger::Period);
    assert_eq!(real_servers(3), 1);
    assert_eq!(reconciler.draining.count(), 0);
}

#[test]
fn what_failed_waits_for_its_retry_while_there_is_more_to_do() {
    let fake = FakeKernel::new();
    let mut reconciler = reconciler(&fake, Draining::default());
    reconciler.portion = 3;
    let (mut services, mut slices) = (vec![web()], vec![slice(&[1])]);
    for number in 20..30 {
        let name = ObjectName::new("default", format!("other-{number}"));
        services.push(Service { cluster_ips: vec![[10, 96, 0, number].into()], name: name.clone(), ..web() });
        slices.push(EndpointSlice { name: name.clone(), service: name, ..slice(&[1, 2, 3]) });
    }
    reconciler.apply_change(Change::Services(Event::Replace(services)));
    reconciler.apply_change(Change::Slices(Event::Replace(slices)));
    fake.state().refused_vips.insert(VIP.ip);
    let refused = |synced: &SyncResult| {
        let of_kind =
            synced.outcome.stats.failures.iter().filter(|((_, kind), _)| *kind == FailureKind::Refused);
        of_kind.map(|(_, count)| count).sum::<usize>()
    };

    let mut synced = reconciler.sync(Trigger::Start, &Slice::over());
    let (mut attempts, mut waits) = (refused(&synced), 0);
    while synced.busy.is_some() {
        synced = reconciler.sync(Trigger::Continue, &Slice::over());
        attempts += refused(&synced);
        let waits_now = synced.failures == Failures::Waiting;
        waits += usize::from(waits_now);
        assert!(!waits_now || !synced.outcome.failures.is_empty(), "it still fails");
    }
    assert!(attempts == 1 && waits > 3, "{attempts} attempts, {waits} slices without one");
    assert!(!fake.state().tables.contains(&Family::V4), "the rules wait for it");

    assert_eq!(refused(&reconciler.sync_whole(Trigger::Retry)), 1);
    fake.state().refused_vips.clear();
    assert!(reconciler.sync_whole(Trigger::Retry).outcome.failures.is_empty());
    assert!(reconciler.compare().unwrap().is_empty());
}

/// A reconciler that was started with these Services `web-0`, `web-1`… on a kernel that had them, after its first sync.
fn restarted(fake: &FakeKernel, services: u8) -> Reconciler {
    let mut restarted = None;
    for _ in 0..2 {
        fake.heal();
        let mut reconciler = reconciler(fake, Draining::new(None));
        let name = |number| ObjectName::new("default", format!("web-{number}"));
        let web =
            |number| Service { name: name(number), cluster_ips: vec![[10, 96, 0, number].into()], ..web() };
        let slice = |number| EndpointSlice { name: name(number), service: name(number), ..slice(&[number]) };
        reconciler.apply_change(Change::Services(Event::Replace((1..=services).map(web).collect())));
        reconciler.apply_change(Change::Slices(Event::Replace((1..=services).map(slice).collect())));
        assert!(reconciler.sync_whole(Trigger::Start).outcome.failures.is_empty());
        restarted = Some(reconciler);
    }
    fake.heal();
    restarted.unwrap()
}

#[test]
fn whatever_sync_follows_the_loss_of_a_virtual_server_restores_it() {
    let fake = FakeKernel::new();
    for next in [Trigger::Continue, Trigger::Drain, Trigger::Change, Trigger::VirtualServerLost] {
        let mut reconciler = restarted(&fake, 1);
        fake.state().virtual_servers.clear();
        assert_eq!(reconciler.look_for_virtual_server(), Look::Lost);
        assert!(reconciler.sync_whole(next).full, "{next:?}");
        assert_eq!(fake.state().virtual_servers.len(), 1, "{next:?}");
        assert!(!reconciler.sync_whole(Trigger::Change).full, "once");
    }
}

#[test]
fn the_adopted_is_verified_for_milliseconds_of_each_sync_fewer_beside_other_work() {
    let fake = FakeKernel::new();
    let mut reconciler = restarted(&fake, 200);
    fake.state().real_server_reads_take = Duration::from_millis(1);
    let read_by = |reconciler: &mut Reconciler, trigger| {
        let before = fake.state().real_server_reads;
        let unfinished = reconciler.sync_whole(trigger).unfinished;
        (fake.state().real_server_reads - before, unfinished)
    };
    let (beside, _) = read_by(&mut reconciler, Trigger::Change);
    assert!((1..=5).contains(&beside), "{beside}");
    reconciler.dirty.vips.insert(VIP.ip);
    let (beside, _) = read_by(&mut reconciler, Trigger::Continue);
    assert!((1..=5).contains(&beside), "{beside}");
    let begin = Instant::now();
    let (alone, unfinished) = read_by(&mut reconciler, Trigger::Continue);
    assert!((1..=30).contains(&alone) && unfinished, "{alone}");
    assert!(begin.elapsed() >= Duration::from_millis(30), "not stopped earlier: {:?}", begin.elapsed());
    while read_by(&mut reconciler, Trigger::Continue).1 {}
    assert_eq!(fake.state().real_server_reads, 200, "each once");
}

#[test]
fn what_fails_while_the_adopted_is_verified_waits_for_its_retry() {
    let fake = FakeKernel::new();
    let mut reconciler = restarted(&fake, 50);
    let vip: IpAddr = [10, 96, 0, 1].into();
    fake.state().real_server_reads_take = Duration::from_millis(1);
    fake.state().dummy_interface.bound.remove(&vip);
    fake.state().refused_vips.insert(vip);
    reconciler.on_link_event(&Changed::everything());
    let failing = reconciler.sync_whole(Trigger::KernelEvent);
    assert_eq!((failing.outcome.failures.len(), failing.failures, failing.idle), (1, Failures::Tried, false));
    let tries = fake.state().link_calls;
    let mut syncs = 0;
    loop {
        let going_on = reconciler.sync_whole(Trigger::Continue);
        syncs += 1;
        let SyncResult { outcome, failures, idle, .. } = &going_on;
        assert_eq!((outcome.failures.len(), *failures, *idle), (1, Failures::Waiting, true));
        if !going_on.unfinished {
            break;
        }
    }
    assert!(syncs > 1);
    assert_eq!(fake.state().link_calls, tries, "not tried meanwhile");
    fake.state().refused_vips.clear();
    assert_eq!(reconciler.sync_whole(Trigger::Retry).outcome.failures, []);
    assert!(fake.state().is_bound(vip));
}

#[test]
fn what_the_start_has_missed_is_not_repaired_by_a_periodic_sync_either() {
    let fake = FakeKernel::new();
    let mut reconciler = restarted(&fake, 200);
    for (_, servers) in fake.state().virtual_servers.values_mut() {
        // A summary does not show thresholds.
        for server in servers.values_mut() {
            server.config.upper_threshold = 7;
        }
    }
    fake.state().real_server_reads_take = Duration::from_millis(1);
    let mut edited = 0;
    while edited < 200 {
        let outcome = reconciler.sync_whole(Trigger::Period).outcome;
        assert_eq!(outcome.first_repairs, [""; 0]);
        edited += outcome.done();
    }
}
