//! From EndpointSlices to the endpoints of a port.

use crate::common::*;
use ipvs::{Family, Protocol};
use service::{Change, Endpoint, EndpointSlice, Event, Service};

#[test]
fn the_endpoints_of_three_slices_are_merged() {
    let state = state_of(
        &[service("web", "10.96.0.1")],
        &[
            slice("web-1", "web", &[ready("10.1.0.3")]),
            slice("web-2", "web", &[ready("10.1.0.1")]),
            slice("web-3", "web", &[ready("10.1.0.2")]),
        ],
    );
    assert_eq!(real_servers(&state, "10.96.0.1:80"), ["10.1.0.1:8080", "10.1.0.2:8080", "10.1.0.3:8080"]);
}

#[test]
fn removing_a_slice_keeps_the_endpoints_of_the_other() {
    let mut state = state_of(
        &[service("web", "10.96.0.1")],
        &[slice("web-1", "web", &[ready("10.1.0.1")]), slice("web-2", "web", &[ready("10.1.0.2")])],
    );
    let touched = state.apply(Change::Slices(Event::Delete(name("web-1"))));
    assert_eq!(real_servers(&state, "10.96.0.1:80"), ["10.1.0.2:8080"]);
    assert_eq!(touched.virtual_servers, [tcp("10.96.0.1:80")].into());
}

/// The real servers when two slices have a record of one endpoint, which does not depend on the order.
fn with_two_records(one: &Endpoint, other: &Endpoint) -> Vec<String> {
    let used = [[one, other], [other, one]].map(|[first, second]| {
        let first = slice("web-1", "web", std::slice::from_ref(first));
        let second = slice("web-2", "web", std::slice::from_ref(second));
        let used = [[first.clone(), second.clone()], [second, first]]
            .map(|slices| real_servers(&state_of(&[service("web", "10.96.0.1")], &slices), "10.96.0.1:80"));
        assert_eq!(used[0], used[1]);
        used[0].clone()
    });
    assert_eq!(used[0], used[1]);
    used[0].clone()
}

#[test]
fn the_record_that_does_not_terminate_counts_whatever_the_order() {
    let used = with_two_records(&draining("10.1.0.1"), &ready("10.1.0.1"));
    assert_eq!(used, ["10.1.0.1:8080"]);
    // The pod that got the address is not ready yet: no client may be sent there.
    let published = Endpoint { terminating: true, ..ready("10.1.0.1") };
    assert!(with_two_records(&published, &unready("10.1.0.1")).is_empty());
}

#[test]
fn the_ready_one_counts_of_two_records_that_do_not_terminate() {
    let serving = Endpoint { serving: true, ..unready("10.1.0.1") };
    let published = Endpoint { serving: false, ..ready("10.1.0.1") };
    assert_eq!(with_two_records(&serving, &published), ["10.1.0.1:8080"]);
}

#[test]
fn the_serving_one_counts_of_two_records_that_terminate() {
    let gone = Endpoint { serving: false, ..draining("10.1.0.1") };
    assert_eq!(with_two_records(&gone, &draining("10.1.0.1")), ["10.1.0.1:8080"]);
}

#[test]
fn an_endpoint_that_moves_to_another_slice_is_the_same_real_server() {
    let (old, new) = ("web-1", "web-2");
    let endpoint = [ready("10.1.0.1").here()];
    let mut state = state_of(&[service("web", "10.96.0.1")], &[slice(old, "web", &endpoint)]);
    let before = wanted(&state);
    let added = state.apply(Change::Slices(Event::Apply(slice(new, "web", &endpoint))));
    let removed = state.apply(Change::Slices(Event::Apply(slice(old, "web", &[]))));
    assert!(added.is_empty() && removed.is_empty());
    assert_eq!(wanted(&state), before);
}

#[test]
fn two_named_ports_have_their_own_targets_in_each_slice() {
    let web = Service {
        ports: vec![port("http", Protocol::Tcp, 80), port("metrics", Protocol::Tcp, 9090)],
        ..service("web", "10.96.0.1")
    };
    let both = EndpointSlice {
        ports: vec![listening("http", Protocol::Tcp, 8080), listening("metrics", Protocol::Tcp, 9100)],
        ..slice("web-1", "web", &[ready("10.1.0.1")])
    };
    let other_target = EndpointSlice {
        ports: vec![listening("http", Protocol::Tcp, 8888)],
        ..slice("web-2", "web", &[ready("10.1.0.2")])
    };
    let state = state_of(&[web], &[both, other_target]);
    assert_eq!(real_servers(&state, "10.96.0.1:80"), ["10.1.0.1:8080", "10.1.0.2:8888"]);
    assert_eq!(real_servers(&state, "10.96.0.1:9090"), ["10.1.0.1:9100"]);
}

#[test]
fn a_port_of_another_name_or_protocol_does_not_count() {
    let others = EndpointSlice {
        ports: vec![listening("http", Protocol::Tcp, 1), listening("", Protocol::Udp, 2)],
        ..slice("web-1", "web", &[ready("10.1.0.1")])
    };
    let state = state_of(&[service("web", "10.96.0.1")], &[others]);
    assert!(real_servers(&state, "10.96.0.1:80").is_empty());
}

#[test]
fn a_slice_has_no_influence_on_the_other_family() {
    let (v4, v6) = ("10.96.0.1:80", "[fd00::1]:80");
    let dual = Service { cluster_ips: vec![ip("10.96.0.1"), ip("fd00::1")], ..service("web", "10.96.0.1") };
    // The unhinted IPv6 endpoint would switch the hints off, were it counted.
    let slices = [
        slice("web-4", "web", &[ready("10.1.0.1").for_zones(&["a"]), ready("10.1.0.2").for_zones(&["b"])]),
        slice("web-6", "web", &[ready("fd01::1")]),
    ];
    let mut state = state_of(&[dual], &slices[..1]);
    state.apply(in_zone("a"));
    assert!(real_servers(&state, v6).is_empty());
    let touched = state.apply(Change::Slices(Event::Apply(slices[1].clone())));
    assert_eq!(touched.virtual_servers, [tcp(v6)].into());
    assert_eq!(real_servers(&state, v4), ["10.1.0.1:8080"]);
    assert_eq!(real_servers(&state, v6), ["[fd01::1]:8080"]);
}

#[test]
fn an_address_of_another_family_than_its_slice_is_not_used() {
    let dual = Service { cluster_ips: vec![ip("10.96.0.1"), ip("fd00::1")], ..service("web", "10.96.0.1") };
    let mixed =
        EndpointSlice { family: Family::V4, ..slice("web-1", "web", &[ready("10.1.0.1"), ready("fd01::1")]) };
    let state = state_of(&[dual], &[mixed]);
    assert_eq!(real_servers(&state, "10.96.0.1:80"), ["10.1.0.1:8080"]);
    assert!(real_servers(&state, "[fd00::1]:80").is_empty());
}

#[test]
fn slices_may_arrive_before_their_service() {
    let mut state = state();
    let early = state.apply(Change::Slices(Event::Apply(slice("web-1", "web", &[ready("10.1.0.1")]))));
    assert!(early.is_empty());
    state.apply(Change::Services(Event::Apply(service("web", "10.96.0.1"))));
    assert_eq!(real_servers(&state, "10.96.0.1:80"), ["10.1.0.1:8080"]);
}

#[test]
fn slices_outlive_their_service() {
    let mut state = state_of(&[service("web", "10.96.0.1")], &[slice("web-1", "web", &[ready("10.1.0.1")])]);
    state.apply(Change::Services(Event::Delete(name("web"))));
    state.apply(Change::Services(Event::Apply(service("web", "10.96.0.1"))));
    assert_eq!(real_servers(&state, "10.96.0.1:80"), ["10.1.0.1:8080"]);
}

#[test]
fn a_slice_can_move_to_another_service() {
    let mut state = state_of(
        &[service("web", "10.96.0.1"), service("db", "10.96.0.2")],
        &[slice("moving", "web", &[ready("10.1.0.1").here()])],
    );
    let touched =
        state.apply(Change::Slices(Event::Apply(slice("moving", "db", &[ready("10.1.0.1").here()]))));
    assert!(real_servers(&state, "10.96.0.1:80").is_empty());
    assert_eq!(real_servers(&state, "10.96.0.2:80"), ["10.1.0.1:8080"]);
    assert_eq!(touched.virtual_servers, [tcp("10.96.0.1:80"), tcp("10.96.0.2:80")].into());
    assert!(touched.elements.is_empty(), "the pod is still a real server: {touched:?}");
}

#[test]
fn slices_of_one_name_in_two_namespaces_are_two_slices() {
    let state = state_of(
        &[service("one/web", "10.96.0.1"), service("two/web", "10.96.0.2")],
        &[
            slice("one/web-1", "one/web", &[ready("10.1.0.1")]),
            slice("two/web-1", "two/web", &[ready("10.1.0.2")]),
        ],
    );
    assert_eq!(real_servers(&state, "10.96.0.1:80"), ["10.1.0.1:8080"]);
    assert_eq!(real_servers(&state, "10.96.0.2:80"), ["10.1.0.2:8080"]);
}

#[test]
fn a_list_without_a_slice_deletes_it() {
    let keep = slice("web-2", "web", &[ready("10.1.0.2")]);
    let mut state = state_of(
        &[service("web", "10.96.0.1")],
        &[slice("web-1", "web", &[ready("10.1.0.1")]), keep.clone()],
    );
    state.apply(Change::Slices(Event::Replace(vec![keep])));
    assert_eq!(real_servers(&state, "10.96.0.1:80"), ["10.1.0.2:8080"]);
}
