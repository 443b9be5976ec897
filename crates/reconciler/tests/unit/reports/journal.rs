//! The last changes of each Service, with their causes.

use ipvs::{
    Protocol::{Tcp, Udp},
    Scheduler,
};
use service::{Change, Endpoint, Event, ObjectName};
use testkit::FakeKernel;

use crate::common::{Running, active_connections, at, endpoint, real, service, slice};

/// The lines of a Service after a number, and the number of the last one.
fn lines_after(running: &Running, name: &str, after: u64) -> (Vec<String>, u64) {
    running.handle.resync().unwrap();
    let page = running.handle.journal(Some(ObjectName::new("default", name)), after).unwrap();
    assert!(!page.incomplete);
    (page.entries.iter().map(|entry| entry.change.to_string()).collect(), page.last)
}

fn lines(running: &Running, name: &str) -> Vec<String> {
    lines_after(running, name, 0).0
}

/// Replaces the slice of `web`.
fn endpoints(running: &Running, endpoints: Vec<Endpoint>) {
    running.tell(Change::Slices(Event::Apply(service::EndpointSlice {
        endpoints,
        ..slice("web", Tcp, &["10.244.0.1"])
    })));
    running.settled();
}

#[test]
fn the_first_sync_is_a_line_for_each_service_and_its_vip() {
    let running = Running::serving_web();
    assert_eq!(
        lines(&running, "web"),
        ["virtual server TCP 10.96.0.10:80 added with 2 endpoints", "VIP 10.96.0.10 bound"]
    );
    assert_eq!(lines(&running, "wep"), [""; 0]);
}

#[test]
fn what_a_start_adopts_has_no_lines() {
    let kernel = FakeKernel::new();
    let start = || {
        let running = Running::on(&kernel);
        let web = vec![service("web", "10.96.0.10", Tcp)];
        running.lists(web, vec![slice("web", Tcp, &["10.244.0.1"])]);
        running
    };
    drop(start());
    assert_eq!(lines(&start(), "web"), [""; 0]);
}

#[test]
fn each_change_of_an_endpoint_is_a_line_with_the_reason_of_the_desired_state() {
    let running = Running::serving_web();
    let (_, last) = lines_after(&running, "web", 0);
    let all = || ["10.244.0.1", "10.244.0.2", "10.244.0.3"].map(endpoint);

    endpoints(&running, all().into());
    let (seen, last) = lines_after(&running, "web", last);
    assert_eq!(seen, ["endpoint 10.244.0.3:8080 added to TCP 10.96.0.10:80: ready"]);

    active_connections(&running.kernel, at("10.96.0.10", Tcp).into(), "10.244.0.1", 3);
    let [mut first, second, mut third] = all();
    (first.ready, first.terminating) = (false, true);
    third.ready = false;
    endpoints(&running, vec![first.clone(), second.clone(), third]);
    let (seen, last) = lines_after(&running, "web", last);
    assert_eq!(
        seen,
        [
            "endpoint 10.244.0.1:8080 draining at TCP 10.96.0.10:80: conditions.terminating is true, and others are ready",
            "endpoint 10.244.0.3:8080 removed from TCP 10.96.0.10:80: conditions.ready is false",
        ]
    );

    active_connections(&running.kernel, at("10.96.0.10", Tcp).into(), "10.244.0.1", 0);
    endpoints(&running, vec![second]);
    let (seen, _) = lines_after(&running, "web", last);
    assert_eq!(seen, ["endpoint 10.244.0.1:8080 removed from TCP 10.96.0.10:80: no EndpointSlice lists it"]);
}

#[test]
fn a_repair_is_a_line_and_says_that_another_program_changed_it() {
    let running = Running::serving_web();
    let (_, last) = lines_after(&running, "web", 0);
    {
        let mut kernel = running.kernel.state();
        let (_, servers) = kernel.virtual_servers.get_mut(&at("10.96.0.10", Tcp).into()).unwrap();
        servers.remove(&real("10.244.0.2"));
    }
    let repaired = "repaired: another program had changed it";
    let (seen, last) = lines_after(&running, "web", last);
    assert_eq!(seen, [format!("endpoint 10.244.0.2:8080 added to TCP 10.96.0.10:80: ready; {repaired}")]);

    running.kernel.state().virtual_servers.clear();
    running.kernel.state().dummy_interface.bound.clear();
    let (seen, _) = lines_after(&running, "web", last);
    assert_eq!(
        seen,
        [
            format!("virtual server TCP 10.96.0.10:80 added with 2 endpoints: {repaired}"),
            format!("VIP 10.96.0.10 bound: {repaired}"),
        ]
    );
}

#[test]
fn what_is_deleted_keeps_its_lines_and_says_when_it_went() {
    let running = Running::serving_web();
    let (_, last) = lines_after(&running, "web", 0);
    running.tell(Change::Services(Event::Delete(ObjectName::new("default", "web"))));
    running.settled();
    let (seen, _) = lines_after(&running, "web", last);
    assert_eq!(
        seen,
        [
            "virtual server TCP 10.96.0.10:80 removed: the Service was deleted, or another proxy serves it",
            "VIP 10.96.0.10 removed from this node",
        ]
    );
    assert_eq!(lines(&running, "web").len(), 4);
}

#[test]
fn a_failure_is_one_line_however_often_it_is_tried_again() {
    let running = Running::on(&FakeKernel::new());
    running.kernel.state().missing_schedulers.insert(Scheduler::RR);
    running.tell(Change::Services(Event::Replace(vec![service("dns", "10.96.0.2", Udp)])));
    running.tell(Change::Slices(Event::Replace(vec![slice("dns", Udp, &["10.244.0.1"])])));
    for _ in 0..3 {
        running.handle.resync().unwrap();
    }
    let seen = lines(&running, "dns");
    let [failed] = seen.as_slice() else { panic!("{seen:#?}") };
    assert!(failed.starts_with("cannot add ") && failed.contains("more operation"), "{failed}");
}
