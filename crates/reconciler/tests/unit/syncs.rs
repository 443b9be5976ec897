//! When a sync comes, and how much of the kernel it reads and writes.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::common::{AT_ONCE, LONG, Running, Setup, at, endpoint, real, service, slice};
use dummy_interface::Changed;
use ipvs::{Protocol::Tcp, Scheduler, VirtualServer, VirtualServerId};
use reconciler::Timing;
use rustc_hash::FxHashSet;
use service::{Change, EndpointSlice, Event, ObjectName};
use testkit::FakeKernel;

#[test]
fn nothing_is_written_before_both_lists_have_arrived() {
    let running = Running::on(&FakeKernel::new());
    running.tell(Change::Services(Event::Replace(vec![service("web", "10.96.0.10", Tcp)])));
    let report = running.handle.resync().unwrap();
    assert_eq!(report.failures, ["not synced: the lists of Services and EndpointSlices have not arrived"]);
    assert_eq!((running.kernel.writes().as_str(), running.kernel.state().calls), ("", 0));
}

#[test]
fn nothing_is_removed_before_the_ends_of_both_lists() {
    let kernel = Running::serving_web().kernel.clone();
    let running = Running::on(&kernel);
    let (written, calls) = (kernel.writes(), kernel.state().calls);
    let other = service("other", "10.96.0.20", Tcp);
    let name = other.name.clone();
    running.tell(Change::Services(Event::InitApply(vec![other])));
    running.tell(Change::Slices(Event::InitApply(vec![slice("other", Tcp, &["10.244.0.9"])])));
    running.tell(Change::Slices(Event::InitDone(FxHashSet::from_iter(["default/other-1".parse().unwrap()]))));
    let report = running.handle.resync().unwrap();
    assert_eq!(report.failures, ["not synced: the lists of Services and EndpointSlices have not arrived"]);
    assert_eq!((kernel.writes(), kernel.state().calls), (written.clone(), calls));

    running.tell(Change::Services(Event::InitDone(FxHashSet::from_iter([name]))));
    running.settled();
    let since = kernel.writes().strip_prefix(&written).unwrap().to_owned();
    for line in ["add virtual server TCP 10.96.0.20:80 rr", "delete virtual server TCP 10.96.0.10:80"] {
        assert!(since.lines().any(|it| it == line), "{since}");
    }
}

#[test]
fn a_changed_endpoint_costs_its_own_service_and_no_full_read() {
    let running = Running::serving_web();
    running.kernel.heal();
    running.tell(Change::Slices(Event::Apply(slice(
        "web",
        Tcp,
        &["10.244.0.1", "10.244.0.2", "10.244.0.3"],
    ))));
    running.settled();
    assert_eq!(
        running.kernel.writes(),
        "\
add element hairpin TCP 10.244.0.3:8080
add real server TCP 10.96.0.10:80 -> 10.244.0.3:8080 weight 1
"
    );
    let kernel = running.kernel.state();
    assert_eq!(kernel.full_reads, 0);
    assert_eq!(
        kernel.link_calls, 0,
        "a program that holds the lock of rtnetlink for long must not delay this"
    );
}

/// The slice `number` of a Service, with a hundred endpoints of its own.
fn hundred(number: u16, change: impl FnOnce(&mut EndpointSlice)) -> EndpointSlice {
    let addresses: Vec<_> = (0..100).map(|pod| format!("10.244.{number}.{pod}")).collect();
    let mut slice = slice("large", Tcp, &addresses.iter().map(String::as_str).collect::<Vec<_>>());
    slice.name = ObjectName::new("default", format!("large-{number}"));
    change(&mut slice);
    slice
}

#[test]
fn only_changed_endpoints_of_a_changed_slice_are_written_out_of_five_thousand() {
    let running = Running::on(&FakeKernel::new());
    let slices = (0..50).map(|number| hundred(number, |_| {})).collect();
    running.lists(vec![service("large", "10.96.0.10", Tcp)], slices);
    running.kernel.heal();
    running
        .tell(Change::Slices(Event::Apply(hundred(7, |slice| slice.endpoints[3] = endpoint("10.245.0.1")))));
    running.settled();
    assert_eq!(
        running.kernel.writes(),
        "\
add element hairpin TCP 10.245.0.1:8080
add real server TCP 10.96.0.10:80 -> 10.245.0.1:8080 weight 1
edit real server TCP 10.96.0.10:80 -> 10.244.7.3:8080 weight 0
delete element hairpin TCP 10.244.7.3:8080
delete real server TCP 10.96.0.10:80 -> 10.244.7.3:8080
"
    );
    let kernel = running.kernel.state();
    assert_eq!((kernel.full_reads, kernel.summary_reads), (0, 0));
    let (_, servers) = &kernel.virtual_servers[&at("10.96.0.10", Tcp).into()];
    assert!(servers.len() == 5_000 && servers.contains_key(&real("10.245.0.1")));
}

#[test]
fn a_restart_over_unchanged_state_writes_nothing() {
    let first = Running::serving_web();
    let kernel = first.kernel.clone();
    drop(first);
    kernel.heal();
    let second = Running::on(&kernel);
    second.lists(
        vec![service("web", "10.96.0.10", Tcp)],
        vec![slice("web", Tcp, &["10.244.0.1", "10.244.0.2"])],
    );
    assert_eq!(kernel.writes(), "");
}

#[test]
fn an_added_and_deleted_service_is_never_programmed() {
    let running = Running::timed(&FakeKernel::new(), Timing { min_sync_period: LONG, ..AT_ONCE });
    running.lists(vec![], vec![]);
    running.kernel.heal();
    running.tell(Change::Services(Event::Apply(service("brief", "10.96.0.77", Tcp))));
    running.tell(Change::Services(Event::Delete(ObjectName::new("default", "brief"))));
    assert_eq!(running.handle.resync().unwrap().done, 0);
    assert_eq!(running.kernel.writes(), "");
}

#[test]
fn the_period_repairs_what_was_changed_by_hand() {
    let kernel = FakeKernel::new();
    let running = Running::timed(&kernel, Timing { sync_period: Duration::from_millis(50), ..AT_ONCE });
    running.lists(vec![service("web", "10.96.0.10", Tcp)], vec![slice("web", Tcp, &["10.244.0.1"])]);
    let id = VirtualServerId::Address(at("10.96.0.10", Tcp));
    kernel
        .state()
        .virtual_servers
        .get_mut(&id)
        .unwrap()
        .1
        .get_mut(&real("10.244.0.1"))
        .unwrap()
        .config
        .weight = 0;
    let foreign = VirtualServer::new(at("192.0.2.1", Tcp), Scheduler::WLC);
    kernel.state().virtual_servers.insert(foreign.id, (foreign.clone(), BTreeMap::default()));
    running.kernel_where(|state| {
        let web = &state.virtual_servers[&id].1[&real("10.244.0.1")];
        web.config.weight == 1 && !state.virtual_servers.contains_key(&foreign.id)
    });
}

#[test]
fn foreign_virtual_servers_in_excluded_ranges_and_firewall_marks_are_left_alone() {
    let kernel = FakeKernel::new();
    for id in [
        VirtualServerId::Address(at("192.0.2.1", Tcp)),
        VirtualServerId::Mark { family: ipvs::Family::V4, mark: 7 },
    ] {
        let server = VirtualServer::new(id, Scheduler::WLC);
        kernel.state().virtual_servers.insert(id, (server, BTreeMap::default()));
    }
    let excluded = VirtualServerId::Address(at("192.0.2.1", Tcp));
    let running = Running::with(&kernel, Setup { exclude: &["192.0.2.0/24"], ..Setup::default() });
    running.lists(vec![], vec![]);
    assert_eq!(kernel.state().virtual_servers.len(), 2, "{}", kernel.writes());
    assert!(kernel.state().virtual_servers.contains_key(&excluded));
    let status = running.handle.status().unwrap();
    assert_eq!(status.kept_foreign.to_string(), "TCP 192.0.2.1:80", "those of marks are not looked at");
    assert_eq!(status.removed_foreign.count, 0);
}

#[test]
fn removed_virtual_servers_are_counted_since_the_start_only_if_they_are_foreign() {
    let running = Running::serving_web();
    let add = |ip: &str| {
        let foreign = VirtualServer::new(at(ip, Tcp), Scheduler::WLC);
        running.kernel.state().virtual_servers.insert(foreign.id, (foreign.clone(), BTreeMap::default()));
    };
    add("192.0.2.1");
    add("192.0.2.2");
    running.tell(Change::Services(Event::Delete(ObjectName::new("default", "web"))));
    let report = running.handle.resync().unwrap();
    assert_eq!(report.removed_foreign.to_string(), "TCP 192.0.2.1:80, TCP 192.0.2.2:80");
    add("192.0.2.3");
    running.handle.resync().unwrap();
    let status = running.handle.status().unwrap();
    assert_eq!(status.removed_foreign.to_string(), "TCP 192.0.2.1:80, TCP 192.0.2.2:80, TCP 192.0.2.3:80");
    assert!(running.kernel.state().virtual_servers.is_empty());
}

#[test]
fn a_changed_port_and_a_changed_vip_take_the_old_ones_away() {
    let running = Running::serving_web();
    running.kernel.heal();
    let mut moved = service("web", "10.96.0.10", Tcp);
    moved.ports[0].port = 81;
    running.tell(Change::Services(Event::Apply(moved)));
    running.settled();
    let writes = running.kernel.writes();
    assert!(writes.contains("delete virtual server TCP 10.96.0.10:80\n"), "{writes}");
    assert!(writes.contains("delete element cluster-ips TCP 10.96.0.10:80\n"), "{writes}");
    assert!(!writes.contains("bind"), "the VIP stays: {writes}");

    running.kernel.heal();
    running.tell(Change::Services(Event::Apply(service("web", "10.96.0.20", Tcp))));
    running.settled();
    let writes = running.kernel.writes();
    assert!(writes.contains("bind 10.96.0.20\nunbind 10.96.0.10\n"), "{writes}");
    assert_eq!(running.kernel.state().virtual_servers.len(), 1);
}

#[test]
fn a_change_of_a_removed_virtual_server_restores_it() {
    let running = Running::serving_web();
    running.kernel.state().virtual_servers.clear();
    running.tell(Change::Slices(Event::Apply(slice(
        "web",
        Tcp,
        &["10.244.0.1", "10.244.0.2", "10.244.0.3"],
    ))));
    // The first attempt fails, the retry a second later reads what there is.
    running.settled();
    let id = VirtualServerId::Address(at("10.96.0.10", Tcp));
    assert_eq!(running.kernel.state().virtual_servers[&id].1.len(), 3);
}

#[test]
fn edit_of_a_removed_virtual_server_restores_its_real_servers_too() {
    let running = Running::serving_web();
    running.kernel.state().virtual_servers.clear();
    let mut sticky = service("web", "10.96.0.10", Tcp);
    sticky.session_affinity = Some(60);
    running.tell(Change::Services(Event::Apply(sticky)));
    running.settled();
    let id = VirtualServerId::Address(at("10.96.0.10", Tcp));
    assert_eq!(running.kernel.state().virtual_servers[&id].1.len(), 2);
}

#[test]
fn notification_of_our_own_change_costs_nothing_and_of_a_foreign_one_a_repair() {
    let running = Running::serving_web();
    running.kernel.heal();
    let vip: std::net::IpAddr = "10.96.0.10".parse().unwrap();
    let changed = |bound| Changed { vips: BTreeMap::from([(vip, bound)]), ..Changed::default() };
    running.handle.kernel_changed(changed(true));
    running.settled();
    assert_eq!(running.kernel.state().calls, 0);
    running.kernel.state().dummy_interface.bound.clear();
    running.handle.kernel_changed(changed(false));
    running.kernel_where(|state| state.is_bound(vip));
}

#[test]
fn changes_that_never_end_do_not_put_off_the_sync() {
    let running = Running::serving_web();
    running.kernel.heal();
    // They come until the first sync, and would come for ten seconds.
    let deadline = Instant::now() + Duration::from_secs(10);
    for address in ["10.244.0.7", "10.244.0.8"].iter().cycle() {
        running.tell(Change::Slices(Event::Apply(slice("web", Tcp, &[address]))));
        if !running.kernel.state().writes.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "nothing was written while changes came in");
    }
    running.settled();
}
