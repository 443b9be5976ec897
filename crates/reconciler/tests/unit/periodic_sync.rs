//! The periodic check of everything: what another program has changed is repaired and reported. Where
//! nothing has changed, it costs no more than a look in short.

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use crate::common::{AT_ONCE, Running, active_connections, at, real, service, slice};
use ipvs::{
    Forwarding, ObservedRealServer,
    Protocol::{Tcp, Udp},
    RealServer, Scheduler, ServiceFlags, VirtualServer, VirtualServerId,
};
use reconciler::{SyncReport, SyncState, Timing, Trigger};
use service::{Change, Event, ObjectName};
use testkit::{FakeKernel, fake_kernel::State};

/// A period that is short enough for a test to wait for.
const PERIOD: Duration = Duration::from_millis(50);

/// Three Services, and the kernel as they want it.
fn served() -> Running {
    served_on(&FakeKernel::new())
}

fn served_on(kernel: &FakeKernel) -> Running {
    let running = Running::timed(kernel, Timing { sync_period: PERIOD, ..AT_ONCE });
    running.lists(
        vec![
            service("dns", "10.96.0.53", Udp),
            service("web", "10.96.0.10", Tcp),
            service("six", "fd00::10", Tcp),
        ],
        vec![
            slice("dns", Udp, &["10.244.0.5", "10.244.0.6"]),
            slice("web", Tcp, &["10.244.0.1", "10.244.0.2"]),
            slice("six", Tcp, &["fd01::1"]),
        ],
    );
    kernel.heal();
    running
}

/// The next periodic sync that did anything.
fn repaired(running: &Running) -> SyncReport {
    // The last change, and not the last sync: another period may be over before anybody looks.
    let done = |report: &SyncReport| report.trigger == Trigger::Period;
    let status =
        running.status_where(|status| status.last_change.as_ref().is_some_and(|sync| done(&sync.report)));
    status.last_change.unwrap().report
}

/// Waits until this many periods are over.
fn periods(running: &Running, count: u32) {
    let looks = |running: &Running| running.kernel.state().summary_reads;
    let enough = looks(running) + count as usize + 1;
    running.status_where(|_| looks(running) >= enough);
}

fn web() -> VirtualServerId {
    at("10.96.0.10", Tcp).into()
}

fn real_servers(state: &mut State) -> &mut BTreeMap<ipvs::RealServerAddress, ObservedRealServer> {
    &mut state.virtual_servers.get_mut(&web()).unwrap().1
}

/// Changes the kernel, and expects exactly these repairs.
fn expect(change: impl FnOnce(&mut State), repairs: &[&str]) {
    let running = served();
    let before = running.kernel.state().virtual_servers.clone();
    change(&mut running.kernel.state());
    let report = repaired(&running);
    assert_eq!((report.repairs.as_slice(), report.failed, report.full), (owned(repairs).as_slice(), 0, true));
    assert_eq!(running.kernel.state().virtual_servers, before);
}

fn owned(lines: &[&str]) -> Vec<String> {
    lines.iter().map(ToString::to_string).collect()
}

#[test]
fn unchanged_kernel_gets_no_write_and_hardly_a_netlink_read_of_real_servers() {
    let running = served();
    periods(&running, 20);
    let state = running.kernel.state();
    assert_eq!(state.writes, [""; 0]);
    // Each of the three has its turn once in 120 periods.
    assert!(state.real_server_reads <= 3, "{} in {}", state.real_server_reads, state.summary_reads);
    assert_eq!(state.full_reads, 0);
}

#[test]
fn connections_that_come_and_go_are_no_difference() {
    let running = served();
    for count in 0..10 {
        active_connections(&running.kernel, web(), "10.244.0.1", count);
        periods(&running, 1);
    }
    assert_eq!(running.kernel.writes(), "");
    assert!(running.kernel.state().real_server_reads <= 3);
}

#[test]
fn another_weight_is_put_right() {
    expect(
        |state| real_servers(state).get_mut(&real("10.244.0.1")).unwrap().config.weight = 7,
        &["edit real server TCP 10.96.0.10:80 -> 10.244.0.1:8080 weight 1"],
    );
}

#[test]
fn another_way_to_a_real_server_is_put_right() {
    expect(
        |state| {
            let server = real_servers(state).get_mut(&real("10.244.0.1")).unwrap();
            server.config.forwarding = Forwarding::Route;
        },
        &["edit real server TCP 10.96.0.10:80 -> 10.244.0.1:8080 weight 1"],
    );
}

#[test]
fn a_real_server_that_the_kernel_calls_local_is_not_a_difference() {
    let running = served();
    real_servers(&mut running.kernel.state()).get_mut(&real("10.244.0.1")).unwrap().config.forwarding =
        Forwarding::Local;
    periods(&running, 5);
    assert_eq!(running.kernel.writes(), "");
    assert!(running.kernel.state().real_server_reads <= 3);
}

#[test]
fn a_missing_real_server_comes_back() {
    expect(
        |state| _ = real_servers(state).remove(&real("10.244.0.2")).unwrap(),
        &["add real server TCP 10.96.0.10:80 -> 10.244.0.2:8080 weight 1"],
    );
}

#[test]
fn a_foreign_real_server_goes_by_way_of_weight_0() {
    let config = RealServer::masquerade([10, 244, 9, 9].into(), 8080);
    let foreign = ObservedRealServer::new(config);
    expect(
        |state| _ = real_servers(state).insert(config.address, foreign),
        &["edit real server TCP 10.96.0.10:80 -> 10.244.9.9:8080 weight 0"],
    );
}

#[test]
fn a_missing_virtual_server_comes_back_with_its_real_servers() {
    expect(
        |state| _ = state.virtual_servers.remove(&web()).unwrap(),
        &[
            "add virtual server TCP 10.96.0.10:80 rr",
            // The turn of this node.
            "add real server TCP 10.96.0.10:80 -> 10.244.0.2:8080 weight 1",
            "add real server TCP 10.96.0.10:80 -> 10.244.0.1:8080 weight 1",
        ],
    );
}

#[test]
fn a_foreign_virtual_server_goes() {
    let foreign = VirtualServer::new(at("192.0.2.1", Tcp), Scheduler::WLC);
    expect(
        |state| _ = state.virtual_servers.insert(foreign.id, (foreign.clone(), BTreeMap::new())),
        &["delete virtual server TCP 192.0.2.1:80"],
    );
}

#[test]
fn another_scheduler_and_other_flags_are_put_right() {
    let changes: [fn(&mut VirtualServer); 3] = [
        |server| server.scheduler = Scheduler::WLC,
        |server| server.flags |= ServiceFlags::ONE_PACKET,
        |server| (server.flags, server.timeout) = (ServiceFlags::PERSISTENT, 300),
    ];
    for change in changes {
        expect(
            |state| change(&mut state.virtual_servers.get_mut(&web()).unwrap().0),
            &["edit virtual server TCP 10.96.0.10:80 rr"],
        );
    }
}

#[test]
fn everything_is_read_where_no_summary_is_available() {
    let kernel = FakeKernel::new();
    kernel.state().no_summaries = true;
    let running = served_on(&kernel);
    periods(&running, 3);
    assert!(kernel.state().real_server_reads >= 9);
    assert_eq!(kernel.writes(), "");
    real_servers(&mut kernel.state()).get_mut(&real("10.244.0.1")).unwrap().config.weight = 7;
    let report = repaired(&running);
    assert_eq!(report.repairs, ["edit real server TCP 10.96.0.10:80 -> 10.244.0.1:8080 weight 1"]);
}

/// Makes a change that is not seen in short, and expects this repair all the same.
fn expect_in_its_turn(change: impl FnOnce(&mut State), repair: &str) {
    let sync_period = Duration::from_millis(2);
    let running = Running::timed(&FakeKernel::new(), Timing { sync_period, ..AT_ONCE });
    running.lists(vec![service("web", "10.96.0.10", Tcp)], vec![slice("web", Tcp, &["10.244.0.1"])]);
    change(&mut running.kernel.state());
    assert_eq!(repaired(&running).repairs, [repair]);
}

#[test]
fn difference_that_a_summary_lacks_is_found_by_the_deep_verification() {
    expect_in_its_turn(
        |state| real_servers(state).get_mut(&real("10.244.0.1")).unwrap().config.upper_threshold = 5,
        "edit real server TCP 10.96.0.10:80 -> 10.244.0.1:8080 weight 1",
    );
    expect_in_its_turn(
        |state| state.virtual_servers.get_mut(&web()).unwrap().0.flags |= ServiceFlags::SCHEDULER_2,
        "edit virtual server TCP 10.96.0.10:80 rr",
    );
}

#[test]
fn an_operator_who_asks_learns_of_all_changes_also_of_what_a_summary_lacks() {
    let changes: [fn(&mut RealServer); 3] = [
        |server| server.weight = 7,
        |server| (server.upper_threshold, server.lower_threshold) = (1, 1),
        |server| server.forwarding = Forwarding::Bypass,
    ];
    for change in changes {
        let running = Running::serving_web();
        {
            let mut state = running.kernel.state();
            change(&mut real_servers(&mut state).get_mut(&real("10.244.0.1")).unwrap().config);
            state.virtual_servers.get_mut(&web()).unwrap().0.flags |= ServiceFlags::SCHEDULER_2;
        }
        let repairs = owned(&[
            "edit virtual server TCP 10.96.0.10:80 rr",
            "edit real server TCP 10.96.0.10:80 -> 10.244.0.1:8080 weight 1",
        ]);
        let difference: Vec<_> =
            running.handle.compare().unwrap().operations().map(|it| it.to_string()).collect();
        assert_eq!(difference, repairs);
        let report = running.handle.resync().unwrap();
        assert_eq!((report.done, report.failed, report.repairs), (2, 0, repairs));
        assert!(running.handle.compare().unwrap().is_empty());
    }
}

#[test]
fn a_vip_an_element_and_a_table_that_are_missing_come_back() {
    let running = served();
    let before = running.kernel.state().dummy_interface.clone();
    let elements = running.kernel.state().elements.clone();
    {
        let mut state = running.kernel.state();
        state.dummy_interface.bound.remove(&"10.96.0.10".parse().unwrap());
        let one = *state.elements.iter().next().unwrap();
        state.elements.remove(&one);
    }
    let report = repaired(&running);
    assert_eq!(report.repairs.len(), 2, "{report:?}");
    let state = running.kernel.state();
    assert_eq!((&state.dummy_interface, &state.elements), (&before, &elements));
}

#[test]
fn repair_restarts_the_age_of_the_synced_state() {
    let running = served();
    let broken = Instant::now();
    running.kernel.state().dummy_interface.bound.remove(&"10.96.0.10".parse().unwrap());
    repaired(&running);
    let status = running.handle.status().unwrap();
    assert_eq!(status.sync_state, SyncState::Synced);
    assert!(status.sync_state_age < broken.elapsed(), "{status:?}");
}

#[test]
fn changes_of_the_desired_state_and_of_the_kernel_are_distinguished() {
    let running = served();
    {
        let mut state = running.kernel.state();
        let mut server = state.virtual_servers[&web()].1[&real("10.244.0.1")].clone();
        server.config.weight = 3;
        real_servers(&mut state).insert(server.config.address, server);
    }
    running.tell(Change::Slices(Event::Apply(slice("dns", Udp, &["10.244.0.5", "10.244.0.7"]))));
    let report = repaired(&running);
    assert!(
        report.repairs == ["edit real server TCP 10.96.0.10:80 -> 10.244.0.1:8080 weight 1"],
        "{report:?}"
    );
}

/// Waits for something in the kernel, without the writer.
fn wait_for(running: &Running, what: &str, is_there: impl Fn(&State) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_there(&running.kernel.state()) {
        assert!(Instant::now() < deadline, "{what}\n{}", running.kernel.writes());
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_change_goes_before_the_rest_of_the_comparison() {
    const COUNT: u8 = 250;
    // The comparison can be interrupted for as long again.
    let sync_period = Duration::from_secs(2);
    let running = Running::timed(&FakeKernel::new(), Timing { sync_period, ..AT_ONCE });
    let named = |block: u8, number: u8| (format!("web-{block}-{number}"), format!("10.96.{block}.{number}"));
    let all: Vec<_> = (0..4).flat_map(|block| (0..COUNT).map(move |number| named(block, number))).collect();
    let both = ["10.244.0.1", "10.244.0.2"];
    running.lists(
        all.iter().map(|(name, ip)| service(name, ip, Tcp)).collect(),
        all.iter().map(|(name, _)| slice(name, Tcp, &both[..1])).collect(),
    );
    running.kernel.heal();
    running.kernel.state().most_summaries = Some(300);
    wait_for(&running, "no periodic sync", |state| state.shown_summaries == 300);

    // What is compared already, and what is not; one Service goes, so that the kernel omits another, and one comes.
    for block in [0, 3] {
        running.tell(Change::Slices(Event::Apply(slice(&named(block, 7).0, Tcp, &both))));
    }
    running.tell(Change::Services(Event::Delete(ObjectName::new("default", &named(1, 249).0))));
    running.tell(Change::Services(Event::Apply(service("new", "10.96.0.251", Tcp))));
    running.kernel.state().most_summaries = Some(600);
    let has_both = |state: &State, block| {
        state.virtual_servers.get(&at(&named(block, 7).1, Tcp).into()).is_some_and(|it| it.1.len() == 2)
    };
    wait_for(&running, "the changes wait", |state| {
        let ids = [at("10.96.0.251", Tcp), at(&named(1, 249).1, Tcp)].map(VirtualServerId::from);
        let is_there = ids.map(|id| state.virtual_servers.contains_key(&id));
        let has_element = state.elements.iter().any(|element| element.to_string().contains("10.96.1.249"));
        has_both(state, 0) && has_both(state, 3) && is_there == [true, false] && !has_element
    });

    running.kernel.heal();
    running.kernel.state().most_summaries = None;
    periods(&running, 1);
    assert_eq!(running.kernel.writes(), "", "the comparison has found nothing that was changed by us");
    assert!(running.handle.compare().unwrap().is_empty());
}

#[test]
fn a_periodic_sync_with_nothing_to_do_does_not_delay_the_next_change() {
    let min_sync_period = Duration::from_secs(5);
    let timing = Timing { sync_period: min_sync_period, min_sync_period, ..AT_ONCE };
    let running = Running::timed(&FakeKernel::new(), timing);
    running.lists(vec![service("web", "10.96.0.10", Tcp)], vec![slice("web", Tcp, &["10.244.0.1"])]);
    running.kernel.heal();
    running.status_where(|it| it.last_sync.as_ref().is_some_and(|it| it.report.trigger == Trigger::Period));
    let begin = Instant::now();
    running.tell(Change::Slices(Event::Apply(slice("web", Tcp, &["10.244.0.1", "10.244.0.2"]))));
    running.kernel_where(|state| !state.writes.is_empty());
    assert!(begin.elapsed() < min_sync_period / 2, "{:?}", begin.elapsed());
    // The pause counts from a sync that has written something.
    running.tell(Change::Slices(Event::Apply(slice("web", Tcp, &["10.244.0.1"]))));
    running.kernel.heal();
    running.kernel_where(|state| !state.writes.is_empty());
    assert!(begin.elapsed() > min_sync_period, "{:?}", begin.elapsed());
}
