//! What a sync does: in which order, how much, and how it goes on when something is refused.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use crate::common::{AT_ONCE, LONG, Running, Setup, active_connections, at, endpoint, real, service, slice};
use dummy_interface::Changed;
use ipvs::{
    Family,
    Protocol::{Tcp, Udp},
    RealServer, Scheduler, ServiceAddress, VirtualServer, VirtualServerId,
};
use netfilter::Element;
use netlink::Errno;
use reconciler::{SyncReport, Timing};
use rustc_hash::FxHashSet;
use service::{Change, EndpointSlice, ObjectName, Service, TrafficPolicy};
use testkit::FakeKernel;

fn web() -> Running {
    let running = Running::on(&FakeKernel::new());
    running.lists(
        vec![service("web", "10.96.0.10", Tcp)],
        vec![slice("web", Tcp, &["10.244.0.1", "10.244.0.2"])],
    );
    running
}

#[test]
fn a_new_table_takes_no_flows_while_something_is_refused_but_does_not_wait_for_ever() {
    let kernel = FakeKernel::new();
    let vip = "10.96.0.11".parse().unwrap();
    kernel.state().refused_elements.insert(Element::Vip(vip));
    let running = Running::on(&kernel);
    let services = [("web", "10.96.0.10"), ("refused", "10.96.0.11")];
    running.tell(Change::ReplaceServices(services.map(|(name, ip)| service(name, ip, Tcp)).into()));
    running.tell(Change::ReplaceSlices(vec![slice("web", Tcp, &["10.244.0.1"])]));
    let syncs = [(); 3].map(|()| running.handle.resync().unwrap());
    let waits = |report: &SyncReport| {
        report.failures.iter().any(|failure| failure.starts_with("install table IPv4: put off"))
    };
    let [.., last] = &syncs;
    assert!(!waits(last), "{syncs:#?}");
    assert!(syncs.iter().any(waits), "{syncs:#?}");
    let kernel = kernel.state();
    assert_eq!(kernel.tables, BTreeSet::from(Family::BOTH));
    assert!(
        kernel.dummy_interface.bound.contains(&"10.96.0.10".parse().unwrap())
            && !kernel.dummy_interface.bound.contains(&vip)
    );
    // It has failed before, and nobody else has changed anything.
    assert!(syncs.iter().all(|report| report.repairs.is_empty()), "{syncs:#?}");
}

#[test]
fn a_table_that_somebody_deletes_later_waits_as_long_as_the_first_one() {
    let kernel = FakeKernel::new();
    kernel.state().refused_elements.insert(Element::Vip("10.96.0.11".parse().unwrap()));
    let running = Running::timed(&kernel, Timing { min_sync_period: LONG, ..AT_ONCE });
    let services = [("web", "10.96.0.10"), ("refused", "10.96.0.11")];
    running.tell(Change::ReplaceServices(services.map(|(name, ip)| service(name, ip, Tcp)).into()));
    running.tell(Change::ReplaceSlices(vec![slice("web", Tcp, &["10.244.0.1"])]));
    let syncs_until_it_is_there = || {
        let has_rules = || {
            running.handle.resync().unwrap();
            kernel.state().tables.contains(&Family::V4)
        };
        (1..10).find(|_| has_rules())
    };
    syncs_until_it_is_there().unwrap();
    for _ in 0..2 {
        kernel.state().tables.clear();
        kernel.state().elements.clear();
        assert_eq!(syncs_until_it_is_there(), Some(3));
    }
}

#[test]
fn nothing_is_written_before_both_lists_have_arrived() {
    let running = Running::on(&FakeKernel::new());
    running.tell(Change::ReplaceServices(vec![service("web", "10.96.0.10", Tcp)]));
    let report = running.handle.resync().unwrap();
    assert_eq!(report.failures, ["not yet: the lists of Services and EndpointSlices have not arrived"]);
    assert_eq!((running.kernel.writes().as_str(), running.kernel.state().calls), ("", 0));
}

#[test]
fn nothing_is_removed_before_the_ends_of_both_lists() {
    let kernel = web().kernel.clone();
    let running = Running::on(&kernel);
    let (written, calls) = (kernel.writes(), kernel.state().calls);
    let other = service("other", "10.96.0.20", Tcp);
    let name = other.name.clone();
    running.tell(Change::InitApplyServices(vec![other]));
    running.tell(Change::InitApplySlices(vec![slice("other", Tcp, &["10.244.0.9"])]));
    running.tell(Change::InitDoneSlices(FxHashSet::from_iter(["default/other-1".parse().unwrap()])));
    let report = running.handle.resync().unwrap();
    assert_eq!(report.failures, ["not yet: the lists of Services and EndpointSlices have not arrived"]);
    assert_eq!((kernel.writes(), kernel.state().calls), (written.clone(), calls));

    running.tell(Change::InitDoneServices(FxHashSet::from_iter([name])));
    running.settled();
    let since = kernel.writes().strip_prefix(&written).unwrap().to_owned();
    for line in ["add virtual server TCP 10.96.0.20:80 rr", "delete virtual server TCP 10.96.0.10:80"] {
        assert!(since.lines().any(|it| it == line), "{since}");
    }
}

#[test]
fn a_first_sync_makes_the_masquerade_rule_before_the_virtual_server_before_the_vip_and_takes_flows_then() {
    let running = web();
    // Of two real servers, a node of this name begins with the second.
    assert_eq!(
        running.kernel.writes(),
        "\
ensure device kube-ipvs0
prepare table IPv4
prepare table IPv6
add element hairpin TCP 10.244.0.1:8080
add element hairpin TCP 10.244.0.2:8080
add element vips 10.96.0.10
add element cluster-ips TCP 10.96.0.10:80
add virtual server TCP 10.96.0.10:80 rr
add real server TCP 10.96.0.10:80 -> 10.244.0.2:8080 weight 1
add real server TCP 10.96.0.10:80 -> 10.244.0.1:8080 weight 1
bind 10.96.0.10
install table IPv4
install table IPv6
"
    );
}

#[test]
fn default_kubernetes_works_before_anything_else_is_begun() {
    let running = Running::on(&FakeKernel::new());
    running.lists(
        vec![service("a", "10.96.0.2", Tcp), service("kubernetes", "10.96.0.9", Tcp)],
        vec![slice("a", Tcp, &["10.244.0.1"]), slice("kubernetes", Tcp, &["192.168.0.1"])],
    );
    let writes = running.kernel.writes();
    let bound = writes.find("bind 10.96.0.9").unwrap();
    assert!(bound < writes.find("10.96.0.2").unwrap(), "{writes}");
}

#[test]
fn removal_closes_the_door_first() {
    let running = web();
    running.kernel.heal();
    running.tell(Change::DeleteService(ObjectName::new("default", "web")));
    running.settled();
    assert_eq!(
        running.kernel.writes(),
        "\
unbind 10.96.0.10
delete virtual server TCP 10.96.0.10:80
delete element vips 10.96.0.10
delete element cluster-ips TCP 10.96.0.10:80
delete element hairpin TCP 10.244.0.1:8080
delete element hairpin TCP 10.244.0.2:8080
"
    );
}

#[test]
fn a_changed_endpoint_costs_its_own_service_and_no_full_read() {
    let running = web();
    running.kernel.heal();
    running.tell(Change::ApplySlice(slice("web", Tcp, &["10.244.0.1", "10.244.0.2", "10.244.0.3"])));
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
    assert_eq!(kernel.link_calls, 0, "whoever holds the lock of rtnetlink for long must not hold this up");
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
fn of_five_thousand_endpoints_those_of_a_changed_slice_that_changed_are_written() {
    let running = Running::on(&FakeKernel::new());
    let slices = (0..50).map(|number| hundred(number, |_| {})).collect();
    running.lists(vec![service("large", "10.96.0.10", Tcp)], slices);
    running.kernel.heal();
    running.tell(Change::ApplySlice(hundred(7, |slice| slice.endpoints[3] = endpoint("10.245.0.1"))));
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
fn what_a_family_that_the_node_lacks_is_wanted_for_is_told_and_the_other_one_is_served() {
    let kernel = FakeKernel::new();
    let running =
        Running::with(&kernel, Setup { families: BTreeSet::from([Family::V4]), ..Setup::default() });
    let mut both = service("both", "10.96.0.10", Tcp);
    both.cluster_ips.push("fd00::10".parse().unwrap());
    running.lists(vec![both], vec![slice("both", Tcp, &["10.244.0.1"])]);
    let status = running.status_where(|status| status.synced);
    assert_eq!(status.problems, ["this node has no IPv6; virtual servers that are not served: 1"]);
    assert!(kernel.state().is_bound("10.96.0.10".parse().unwrap()));
    assert!(!kernel.writes().contains("fd00::10"), "{}", kernel.writes());
}

#[test]
fn a_restart_over_unchanged_state_writes_nothing() {
    let first = web();
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
    running.tell(Change::ApplyService(service("brief", "10.96.0.77", Tcp)));
    running.tell(Change::DeleteService(ObjectName::new("default", "brief")));
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
}

#[test]
fn a_tcp_endpoint_with_connections_drains_and_leaves_when_the_last_one_ends() {
    let running = web();
    let kernel = &running.kernel;
    let id = VirtualServerId::Address(at("10.96.0.10", Tcp));
    let connections = |count| active_connections(kernel, id, "10.244.0.2", count);
    connections(1);
    kernel.heal();
    running.tell(Change::ApplySlice(slice("web", Tcp, &["10.244.0.1"])));
    running.settled();
    assert!(kernel.writes().starts_with("edit real server TCP 10.96.0.10:80 -> 10.244.0.2:8080 weight 0\n"));
    assert_eq!(running.handle.status().unwrap().draining, 1);

    kernel.heal();
    running.handle.resync().unwrap();
    assert_eq!(kernel.writes(), "", "it waits");
    connections(0);
    running.handle.resync().unwrap();
    assert_eq!(kernel.writes(), "delete real server TCP 10.96.0.10:80 -> 10.244.0.2:8080\n");
    assert_eq!(running.handle.status().unwrap().draining, 0);
}

#[test]
fn an_endpoint_that_returns_while_it_drains_gets_its_weight_back_in_place() {
    let running = web();
    let kernel = &running.kernel;
    let id = VirtualServerId::Address(at("10.96.0.10", Tcp));
    let both = slice("web", Tcp, &["10.244.0.1", "10.244.0.2"]);
    active_connections(kernel, id, "10.244.0.2", 1);
    running.tell(Change::ApplySlice(slice("web", Tcp, &["10.244.0.1"])));
    running.settled();
    kernel.heal();
    running.tell(Change::ApplySlice(both));
    running.settled();
    let writes = kernel.writes();
    assert!(writes.contains("edit real server TCP 10.96.0.10:80 -> 10.244.0.2:8080 weight 1\n"), "{writes}");
    assert!(!writes.contains("delete real server"), "{writes}");
}

#[test]
fn a_udp_endpoint_leaves_at_once_even_with_connections() {
    let running = Running::on(&FakeKernel::new());
    running.lists(
        vec![service("dns", "10.96.0.53", Udp)],
        vec![slice("dns", Udp, &["10.244.0.1", "10.244.0.2"])],
    );
    let id = VirtualServerId::Address(at("10.96.0.53", Udp));
    active_connections(&running.kernel, id, "10.244.0.2", 9);
    running.kernel.heal();
    running.tell(Change::ApplySlice(slice("dns", Udp, &["10.244.0.1"])));
    running.settled();
    assert!(running.kernel.writes().contains("delete real server UDP 10.96.0.53:80 -> 10.244.0.2:8080\n"));
}

#[test]
fn one_refused_real_server_does_not_stop_the_others() {
    let running = Running::on(&FakeKernel::new());
    let mut with_multicast = slice("web", Tcp, &["10.244.0.1", "10.244.0.9"]);
    with_multicast.endpoints.insert(1, endpoint("224.0.0.1"));
    running.tell(Change::ReplaceServices(vec![service("web", "10.96.0.10", Tcp)]));
    running.tell(Change::ReplaceSlices(vec![with_multicast]));
    let report = running.handle.resync().unwrap();
    assert_eq!(report.failed, 1);
    assert!(report.failures[0].contains("224.0.0.1:8080 weight 1: EINVAL"), "{report:?}");
    let state = running.kernel.state();
    assert_eq!(state.virtual_servers[&VirtualServerId::Address(at("10.96.0.10", Tcp))].1.len(), 2);
    assert!(state.is_bound("10.96.0.10".parse().unwrap()));
}

#[test]
fn a_vip_that_the_kernel_refuses_is_told_with_the_kernels_own_words() {
    let kernel = FakeKernel::new();
    kernel.state().refused_vips.insert("10.96.0.10".parse().unwrap());
    let running = Running::on(&kernel);
    running.tell(Change::ReplaceServices(vec![service("web", "10.96.0.10", Tcp)]));
    running.tell(Change::ReplaceSlices(vec![slice("web", Tcp, &["10.244.0.1"])]));
    let report = running.handle.resync().unwrap();
    let told = "bind 10.96.0.10: EINVAL (Invalid argument): Invalid prefsrc address";
    assert!(report.failures.iter().any(|failure| failure == told), "{report:?}");
}

#[test]
fn one_refused_virtual_server_does_not_stop_the_others() {
    // Changes wait, so that what follows is one sync.
    let running = Running::timed(&FakeKernel::new(), Timing { min_sync_period: LONG, ..AT_ONCE });
    running.lists(vec![], vec![slice("a", Tcp, &["10.244.0.1"]), slice("b", Tcp, &["10.244.0.2"])]);
    let kernel = &running.kernel;
    kernel.heal();
    // Three reads, and of each Service three elements come before the first virtual server.
    kernel.fail_call(9, Errno::ENOMEM);
    running.tell(Change::ReplaceServices(vec![
        service("a", "10.96.0.10", Tcp),
        service("b", "10.96.0.11", Tcp),
    ]));
    let report = running.handle.resync().unwrap();
    assert!(report.failures[0].starts_with("add virtual server TCP 10.96.0.10:80 rr: ENOMEM"), "{report:?}");
    let served = |vip: &str| {
        let state = kernel.state();
        let real_servers =
            state.virtual_servers.get(&VirtualServerId::Address(at(vip, Tcp))).map(|(_, reals)| reals.len());
        (real_servers, state.is_bound(vip.parse().unwrap()))
    };
    assert_eq!(served("10.96.0.10"), (None, false));
    assert_eq!(served("10.96.0.11"), (Some(1), true));
    assert_eq!(running.handle.resync().unwrap().failed, 0);
    assert_eq!(served("10.96.0.10"), (Some(1), true));
}

#[test]
fn a_changed_port_and_a_changed_vip_take_the_old_ones_away() {
    let running = web();
    running.kernel.heal();
    let mut moved = service("web", "10.96.0.10", Tcp);
    moved.ports[0].port = 81;
    running.tell(Change::ApplyService(moved));
    running.settled();
    let writes = running.kernel.writes();
    assert!(writes.contains("delete virtual server TCP 10.96.0.10:80\n"), "{writes}");
    assert!(writes.contains("delete element cluster-ips TCP 10.96.0.10:80\n"), "{writes}");
    assert!(!writes.contains("bind"), "the VIP stays: {writes}");

    running.kernel.heal();
    running.tell(Change::ApplyService(service("web", "10.96.0.20", Tcp)));
    running.settled();
    let writes = running.kernel.writes();
    assert!(writes.contains("bind 10.96.0.20\nunbind 10.96.0.10\n"), "{writes}");
    assert_eq!(running.kernel.state().virtual_servers.len(), 1);
}

#[test]
fn an_endpoint_that_drains_over_a_restart_still_leaves_when_its_last_connection_ends() {
    let first = web();
    let kernel = first.kernel.clone();
    drop(first);
    let id = VirtualServerId::Address(at("10.96.0.10", Tcp));
    let connections = |count| {
        let mut state = kernel.state();
        let server = state.virtual_servers.get_mut(&id).unwrap().1.get_mut(&real("10.244.0.2")).unwrap();
        (server.config.weight, server.inactive_connections) = (0, count);
    };
    connections(1);
    kernel.heal();
    let second = Running::on(&kernel);
    second.lists(vec![service("web", "10.96.0.10", Tcp)], vec![slice("web", Tcp, &["10.244.0.1"])]);
    assert_eq!(second.handle.status().unwrap().draining, 1);
    assert_eq!(kernel.writes(), "delete element hairpin TCP 10.244.0.2:8080\n");
    connections(0);
    kernel.heal();
    // Draining real servers are looked at between periods, here by request.
    second.handle.resync().unwrap();
    assert_eq!(kernel.writes(), "delete real server TCP 10.96.0.10:80 -> 10.244.0.2:8080\n");
}

#[test]
fn a_removed_tcp_endpoint_without_connections_leaves_at_once_by_way_of_weight_0() {
    let running = web();
    running.kernel.heal();
    running.tell(Change::ApplySlice(slice("web", Tcp, &["10.244.0.1"])));
    running.settled();
    // Between reading the connections and removing the real server nobody can connect to it any more.
    assert_eq!(
        running.kernel.writes(),
        "\
edit real server TCP 10.96.0.10:80 -> 10.244.0.2:8080 weight 0
delete element hairpin TCP 10.244.0.2:8080
delete real server TCP 10.96.0.10:80 -> 10.244.0.2:8080
"
    );
}

#[test]
fn a_change_of_a_virtual_server_that_somebody_removed_restores_it() {
    let running = web();
    running.kernel.state().virtual_servers.clear();
    running.tell(Change::ApplySlice(slice("web", Tcp, &["10.244.0.1", "10.244.0.2", "10.244.0.3"])));
    // The first attempt fails, the retry a second later reads what there is.
    running.settled();
    let id = VirtualServerId::Address(at("10.96.0.10", Tcp));
    assert_eq!(running.kernel.state().virtual_servers[&id].1.len(), 3);
}

#[test]
fn an_edit_of_a_virtual_server_that_somebody_removed_brings_its_real_servers_back_too() {
    let running = web();
    running.kernel.state().virtual_servers.clear();
    let mut sticky = service("web", "10.96.0.10", Tcp);
    sticky.session_affinity = Some(60);
    running.tell(Change::ApplyService(sticky));
    running.settled();
    let id = VirtualServerId::Address(at("10.96.0.10", Tcp));
    assert_eq!(running.kernel.state().virtual_servers[&id].1.len(), 2);
}

#[test]
fn an_urgent_vip_opens_after_the_hairpin_rule_of_its_pods() {
    let running = Running::on(&FakeKernel::new());
    running.lists(
        vec![service("kubernetes", "10.96.0.9", Tcp)],
        vec![slice("kubernetes", Tcp, &["10.244.0.1"])],
    );
    let writes = running.kernel.writes();
    assert!(writes.find("hairpin").unwrap() < writes.find("bind").unwrap(), "{writes}");
}

#[test]
fn a_lasting_failure_and_a_draining_endpoint_do_not_put_off_the_period() {
    let kernel = FakeKernel::new();
    let running = Running::timed(&kernel, Timing { sync_period: Duration::from_millis(1500), ..AT_ONCE });
    let mut slices = vec![slice("web", Tcp, &["10.244.0.1", "224.0.0.1"])];
    slices.push(slice("other", Tcp, &["10.244.0.2"]));
    let services = vec![service("web", "10.96.0.10", Tcp), service("other", "10.96.0.11", Tcp)];
    running.tell(Change::ReplaceServices(services));
    running.tell(Change::ReplaceSlices(slices));
    running.handle.resync().unwrap();
    let other = VirtualServerId::Address(at("10.96.0.11", Tcp));
    kernel.state().virtual_servers.remove(&other).unwrap();
    running.kernel_where(|state| state.virtual_servers.contains_key(&other));
}

#[test]
fn what_the_kernel_tells_of_our_own_changes_costs_nothing_and_of_others_a_repair() {
    let running = web();
    running.kernel.heal();
    let vip: std::net::IpAddr = "10.96.0.10".parse().unwrap();
    let told = |bound| Changed { vips: BTreeMap::from([(vip, bound)]), ..Changed::default() };
    running.handle.kernel_changed(told(true)).unwrap();
    running.settled();
    assert_eq!(running.kernel.state().calls, 0);
    running.kernel.state().dummy_interface.bound.clear();
    running.handle.kernel_changed(told(false)).unwrap();
    running.kernel_where(|state| state.is_bound(vip));
}

#[test]
fn a_virtual_server_without_its_masquerade_rule_is_put_off_and_the_vips_other_port_goes_on() {
    let running = web();
    let kernel = &running.kernel;
    kernel.heal();
    let mut two = service("web", "10.96.0.10", Tcp);
    two.ports[0].name = "a".into();
    two.ports.push(service::ServicePort { name: "b".into(), protocol: Tcp, port: 81, node_port: None });
    let rule = Element::ClusterIp(ServiceAddress { port: 81, ..at("10.96.0.10", Tcp) });
    kernel.state().refused_elements.insert(rule);
    running.tell(Change::ApplyService(two));
    assert!(running.handle.resync().unwrap().failed > 0);
    let writes = kernel.writes();
    assert!(!writes.contains("add virtual server TCP 10.96.0.10:81"), "{writes}");
    assert!(kernel.state().is_bound("10.96.0.10".parse().unwrap()));
    kernel.state().refused_elements.clear();
    running.settled();
    let writes = kernel.writes();
    let element = writes.find("add element cluster-ips TCP 10.96.0.10:81").unwrap();
    assert!(element < writes.find("add virtual server TCP 10.96.0.10:81").unwrap(), "{writes}");
}

#[test]
fn real_servers_on_other_nodes_wait_for_the_masquerade_rule_and_leave_before_it() {
    let mut local = service("web", "10.96.0.10", Tcp);
    local.external_ips = vec!["203.0.113.7".parse().unwrap()];
    local.external_traffic_policy = TrafficPolicy::Local;
    let mut pods = slice("web", Tcp, &["10.244.0.1", "10.244.0.2"]);
    pods.endpoints[1].node = Some("elsewhere".into());
    let running = Running::on(&FakeKernel::new());
    running.lists(vec![local.clone()], vec![pods]);
    let kernel = &running.kernel;
    kernel.heal();

    let cluster = Service { external_traffic_policy: TrafficPolicy::Cluster, ..local.clone() };
    kernel.fail_call(0, Errno::ENFILE);
    running.tell(Change::ApplyService(cluster));
    let failed = running.status_where(|status| status.last_sync.as_ref().unwrap().report.failed > 0);
    assert_eq!(
        failed.last_sync.unwrap().report.failed,
        3,
        "the element, the real server, and the element that it replaces"
    );
    assert_eq!(kernel.writes(), "");
    running.settled();
    assert_eq!(
        kernel.writes(),
        "\
add element external TCP 203.0.113.7:80
add real server TCP 203.0.113.7:80 -> 10.244.0.2:8080 weight 1
delete element external-local TCP 203.0.113.7:80
"
    );

    kernel.heal();
    running.tell(Change::ApplyService(local));
    running.settled();
    assert_eq!(
        kernel.writes(),
        "\
add element external-local TCP 203.0.113.7:80
edit real server TCP 203.0.113.7:80 -> 10.244.0.2:8080 weight 0
delete element external TCP 203.0.113.7:80
delete real server TCP 203.0.113.7:80 -> 10.244.0.2:8080
"
    );
}

#[test]
fn a_scheduler_that_the_kernel_lacks_is_named_and_no_door_is_opened() {
    let kernel = FakeKernel::new();
    kernel.state().missing_schedulers.insert(Scheduler::RR);
    let running = Running::on(&kernel);
    running.tell(Change::ReplaceServices(vec![service("web", "10.96.0.10", Tcp)]));
    running.tell(Change::ReplaceSlices(vec![slice("web", Tcp, &["10.244.0.1"])]));
    let report = running.handle.resync().unwrap();
    assert!(report.failures.iter().any(|line| line.contains("load the module ip_vs_rr")), "{report:?}");
    assert!(!kernel.state().is_bound("10.96.0.10".parse().unwrap()));
}

#[test]
fn a_vip_without_one_of_its_rules_stays_closed() {
    let vip = "10.96.0.10".parse().unwrap();
    for rule in [Element::Vip(vip), Element::ClusterIp(at("10.96.0.10", Tcp))] {
        let kernel = FakeKernel::new();
        let running = Running::on(&kernel);
        running.lists(vec![], vec![]);
        kernel.state().refused_elements.insert(rule);
        running.tell(Change::ApplyService(service("web", "10.96.0.10", Tcp)));
        assert!(running.handle.resync().unwrap().failed > 0);
        assert!(!kernel.state().is_bound(vip), "without {rule:?}:\n{}", kernel.writes());

        kernel.state().refused_elements.clear();
        running.settled();
        assert!(kernel.state().is_bound(vip), "a later sync opens it");
    }
}

#[test]
fn a_real_server_at_weight_0_after_a_restart_gets_its_weight_back() {
    let kernel = FakeKernel::new();
    let running = Running::on(&kernel);
    running.lists(vec![service("web", "10.96.0.10", Tcp)], vec![slice("web", Tcp, &["10.244.0.1"])]);
    drop(running);
    let id = VirtualServerId::Address(at("10.96.0.10", Tcp));
    let drained = RealServer::masquerade("10.244.0.1".parse().unwrap(), 8080).weight(0);
    kernel.state().virtual_servers.get_mut(&id).unwrap().1.get_mut(&drained.address).unwrap().config =
        drained;
    kernel.heal();
    let running = Running::on(&kernel);
    running.lists(vec![service("web", "10.96.0.10", Tcp)], vec![slice("web", Tcp, &["10.244.0.1"])]);
    assert_eq!(kernel.writes(), "edit real server TCP 10.96.0.10:80 -> 10.244.0.1:8080 weight 1\n");
}

#[test]
fn changes_that_never_end_do_not_put_off_the_sync() {
    let running = web();
    running.kernel.heal();
    // They come until the first sync, and would come for ten seconds.
    let deadline = Instant::now() + Duration::from_secs(10);
    for address in ["10.244.0.7", "10.244.0.8"].iter().cycle() {
        running.tell(Change::ApplySlice(slice("web", Tcp, &[address])));
        if !running.kernel.state().writes.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "nothing was written while changes came in");
    }
    running.settled();
}
