//! A start over what an earlier daemon has left.

use std::{collections::BTreeMap, net::Ipv4Addr, num::NonZero};

use crate::common::{Running, active_connections, at, real, service, slice};
use ipvs::{
    Forwarding, ObservedRealServer, Protocol::Tcp, RealServer, RealServerAddress, Scheduler, ServiceAddress,
    ServiceFlags, VirtualServer,
};
use netfilter::Element;
use reconciler::Trigger;
use service::{Change, EndpointSlice, Event, Service, ServiceKind, ServicePort};
use testkit::{
    FakeKernel,
    fake_kernel::{Fault, State},
};

/// A daemon for one Service with these endpoints.
fn start(kernel: &FakeKernel, endpoints: &[&str]) -> Running {
    let running = Running::on(kernel);
    running.lists(vec![service("web", "10.96.0.10", Tcp)], vec![slice("web", Tcp, endpoints)]);
    running
}

/// The kernel as left by a daemon that served two endpoints.
fn left() -> FakeKernel {
    let kernel = FakeKernel::new();
    drop(start(&kernel, &["10.244.0.1", "10.244.0.2"]));
    kernel.heal();
    kernel
}

/// The writes of the next daemon that serves the same, if something was changed in between.
fn written(change: impl FnOnce(&mut State)) -> String {
    let kernel = left();
    change(&mut kernel.state());
    drop(start(&kernel, &["10.244.0.1", "10.244.0.2"]));
    kernel.writes()
}

#[test]
fn start_with_an_unchanged_kernel_writes_nothing_and_reads_no_real_servers() {
    let kernel = left();
    drop(start(&kernel, &["10.244.0.1", "10.244.0.2"]));
    assert_eq!(kernel.writes(), "");
    let state = kernel.state();
    assert_eq!((state.summary_reads, state.real_server_reads), (1, 0));
}

#[test]
fn a_real_server_that_leaves_meanwhile_is_drained_if_it_has_connections() {
    let kernel = left();
    active_connections(&kernel, at("10.96.0.10", Tcp).into(), "10.244.0.2", 3);
    drop(start(&kernel, &["10.244.0.1"]));
    assert_eq!(
        kernel.writes(),
        "edit real server TCP 10.96.0.10:80 -> 10.244.0.2:8080 weight 0\n\
         delete element hairpin TCP 10.244.0.2:8080\n"
    );
}

#[test]
fn one_that_drains_already_stays_as_long_as_it_has_connections() {
    let kernel = left();
    active_connections(&kernel, at("10.96.0.10", Tcp).into(), "10.244.0.2", 3);
    drop(start(&kernel, &["10.244.0.1"]));
    kernel.heal();
    drop(start(&kernel, &["10.244.0.1"]));
    assert_eq!(kernel.writes(), "", "it is read by netlink, which has its connections");
    active_connections(&kernel, at("10.96.0.10", Tcp).into(), "10.244.0.2", 0);
    drop(start(&kernel, &["10.244.0.1"]));
    assert_eq!(kernel.writes(), "delete real server TCP 10.96.0.10:80 -> 10.244.0.2:8080\n");
}

#[test]
fn real_server_draining_at_a_node_port_stays_over_a_restart() {
    let kernel = FakeKernel::new();
    kernel.state().dummy_interface.node_addresses.insert("192.0.2.1".parse().unwrap());
    let start = |endpoints: &[&str]| {
        let mut web = service("web", "10.96.0.10", Tcp);
        web.kind = ServiceKind::NodePort;
        web.ports[0].node_port = NonZero::new(30_080);
        let running = Running::on(&kernel);
        running.lists(vec![web], vec![slice("web", Tcp, endpoints)]);
    };
    start(&["10.244.0.1", "10.244.0.2"]);
    let node_port = ServiceAddress { port: 30_080, ..at("192.0.2.1", Tcp) };
    active_connections(&kernel, node_port.into(), "10.244.0.2", 3);
    start(&["10.244.0.1"]);
    kernel.heal();
    start(&["10.244.0.1"]);
    assert_eq!(kernel.writes(), "");
    active_connections(&kernel, node_port.into(), "10.244.0.2", 0);
    start(&["10.244.0.1"]);
    assert_eq!(kernel.writes(), "delete real server TCP 192.0.2.1:30080 -> 10.244.0.2:8080\n");
}

#[test]
fn every_change_made_meanwhile_is_repaired() {
    let changes: [fn(&mut RealServer); 3] = [
        |server| server.weight = 7,
        |server| server.forwarding = Forwarding::Route,
        // Of a tunnel little is seen in short.
        |server| server.forwarding = Forwarding::Tunnel,
    ];
    for change in changes {
        let written = written(|state| change(&mut web(state).1.get_mut(&real("10.244.0.1")).unwrap().config));
        assert_eq!(written, "edit real server TCP 10.96.0.10:80 -> 10.244.0.1:8080 weight 1\n");
    }
    let changes: [fn(&mut VirtualServer); 2] =
        [|server| server.scheduler = Scheduler::WLC, |server| server.flags |= ServiceFlags::SCHEDULER_2];
    for change in changes {
        assert_eq!(written(|state| change(&mut web(state).0)), "edit virtual server TCP 10.96.0.10:80 rr\n");
    }
}

#[test]
fn what_a_summary_lacks_is_corrected_soon_and_does_not_count_as_a_repair() {
    let changes: [fn(&mut RealServer); 2] = [
        |server| (server.upper_threshold, server.lower_threshold) = (1, 1),
        |server| server.forwarding = Forwarding::Bypass,
    ];
    for change in changes {
        let kernel = left();
        change(&mut web(&mut kernel.state()).1.get_mut(&real("10.244.0.1")).unwrap().config);
        let running = start(&kernel, &["10.244.0.1", "10.244.0.2"]);
        assert_eq!(kernel.writes(), "", "the first sync does not wait for it");
        let edit = "edit real server TCP 10.96.0.10:80 -> 10.244.0.1:8080 weight 1\n";
        running.kernel_where(|state| !state.writes.is_empty());
        assert_eq!(kernel.writes(), edit);
        let report = running.status_where(|it| it.last_change.is_some()).last_change.unwrap().report;
        assert_eq!((report.trigger, report.done, report.repairs.len()), (Trigger::Continue, 1, 0));
    }
}

#[test]
fn all_that_was_adopted_is_verified_after_the_first_sync_and_once() {
    let (kernel, (services, slices)) = (FakeKernel::new(), many());
    let start = || {
        let running = Running::on(&kernel);
        running.lists(services.clone(), slices.clone());
        running
    };
    drop(start());
    kernel.heal();
    let running = start();
    // The one without endpoints is read as well.
    running.kernel_where(|state| state.real_server_reads == 3_001);
    let last = running.status_where(|it| it.last_sync.as_ref().is_some_and(|it| !it.report.full));
    assert_eq!(last.last_sync.unwrap().report.trigger, Trigger::Continue);
    // A change that comes afterwards is synced after all that is left.
    running.tell(Change::Services(Event::Apply(service("later", "10.96.0.2", Tcp))));
    running.kernel_where(|state| state.writes.iter().any(|write| write == "bind 10.96.0.2"));
    let writes = kernel.writes();
    assert!(writes.lines().all(|line| line.contains("10.96.0.2")), "{writes}");
    assert_eq!(kernel.state().real_server_reads, 3_001);
}

fn web(state: &mut State) -> &mut (VirtualServer, BTreeMap<RealServerAddress, ObservedRealServer>) {
    state.virtual_servers.get_mut(&at("10.96.0.10", Tcp).into()).unwrap()
}

/// More Services than are written at once, each with two ports and an endpoint.
fn many() -> (Vec<Service>, Vec<EndpointSlice>) {
    let name = |number: u32| format!("service-{number:04}");
    let web = |number: u32| {
        let ip = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 100, 0, 1)) + number).to_string();
        let mut web = service(&name(number), &ip, Tcp);
        let tls = ServicePort { name: "tls".into(), port: 443, ..web.ports[0].clone() };
        web.ports.push(tls);
        web
    };
    let first = service("kubernetes", "10.96.0.1", Tcp);
    let services = [first].into_iter().chain((0..1_500).map(web)).collect();
    let slices = (0..1_500).map(|number| slice(&name(number), Tcp, &["10.244.0.1"])).collect();
    (services, slices)
}

#[test]
fn each_vip_is_bound_after_its_virtual_servers_and_the_urgent_one_first() {
    let (kernel, (services, slices)) = (FakeKernel::new(), many());
    let running = Running::on(&kernel);
    running.lists(services, slices);
    let status = running.status_where(|it| it.last_sync.as_ref().is_some_and(|it| it.report.left == 0));
    let report = status.last_sync.unwrap().report;
    assert_eq!((report.failed, kernel.state().virtual_servers.len()), (0, 3_001));
    let writes = kernel.writes();
    let place = |line: &str| writes.lines().position(|it| it == line).unwrap_or_else(|| panic!("no {line}"));
    assert!(place("bind 10.96.0.1") < place("bind 10.100.0.1"));
    for number in 0..1_500_u32 {
        let ip = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 100, 0, 1)) + number);
        let bound = place(&format!("bind {ip}"));
        for before in [
            format!("add element cluster-ips TCP {ip}:443"),
            format!("add virtual server TCP {ip}:80 rr"),
            format!("add virtual server TCP {ip}:443 rr"),
            format!("add real server TCP {ip}:80 -> 10.244.0.1:8080 weight 1"),
        ] {
            assert!(place(&before) < bound, "{before}");
        }
    }
    assert!(place("bind 10.100.5.220") < place("install table IPv4"));
}

#[test]
fn one_failure_among_many_stops_nothing_else_and_is_reported_once() {
    let (kernel, (services, slices)) = (FakeKernel::new(), many());
    let refused = at("10.100.0.9", Tcp);
    kernel.state().refused_elements.insert(Element::ClusterIp(refused));
    let running = Running::on(&kernel);
    running.tell(Change::Services(Event::Replace(services)));
    running.tell(Change::Slices(Event::Replace(slices)));
    let status =
        running.status_where(|status| status.last_sync.as_ref().is_some_and(|it| it.report.left == 0));
    let report = status.last_sync.unwrap().report;
    let state = kernel.state();
    assert!(!state.virtual_servers.contains_key(&refused.into()));
    assert_eq!((state.virtual_servers.len(), state.dummy_interface.bound.len()), (3_000, 1_501));
    // The element, the two servers that need it, and the rules of the table.
    assert_eq!(report.failed, 4, "{report:?}");
}

#[test]
fn an_answer_that_is_lost_among_many_is_made_good_by_the_retry() {
    for fault in [Fault::Unheard, Fault::BrokenOff] {
        let (kernel, (services, slices)) = (FakeKernel::new(), many());
        kernel.inject(6_000, fault);
        let running = Running::on(&kernel);
        running.tell(Change::Services(Event::Replace(services)));
        running.tell(Change::Slices(Event::Replace(slices)));
        running.settled();
        assert_eq!(running.handle.status().unwrap().repaired, 0, "{fault:?}");
        let state = kernel.state();
        assert!(state.calls > 6_000, "{fault:?}: no answer was lost");
        assert_eq!((state.virtual_servers.len(), state.dummy_interface.bound.len()), (3_001, 1_501));
    }
}
