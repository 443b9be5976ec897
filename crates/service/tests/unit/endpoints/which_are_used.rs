//! Conditions, hints and the internal traffic policy.

use crate::common::*;
use service::{Change, Endpoint, Event, Node, Service, State, TrafficPolicy};

const AT: &str = "10.96.0.1:80";

fn with(endpoints: &[Endpoint]) -> State {
    state_of(&[service("web", "10.96.0.1")], &[slice("web-1", "web", endpoints)])
}

/// In zone `a`.
fn in_zone_a(endpoints: &[Endpoint]) -> State {
    let mut state = with(endpoints);
    state.apply(in_zone("a"));
    state
}

fn local_only(endpoints: &[Endpoint]) -> State {
    let web = Service { internal_traffic_policy: TrafficPolicy::Local, ..service("web", "10.96.0.1") };
    let mut state = state_of(&[web], &[slice("web-1", "web", endpoints)]);
    state.apply(in_zone("a"));
    state
}

fn used(state: &State) -> Vec<String> {
    real_servers(state, AT)
}

#[test]
fn all_ready_endpoints_of_the_cluster_are_used() {
    let state = with(&[ready("10.1.0.1"), ready("10.1.0.2").here(), unready("10.1.0.3")]);
    assert_eq!(used(&state), ["10.1.0.1:8080", "10.1.0.2:8080"]);
}

#[test]
fn when_none_is_ready_those_that_terminate_and_serve_are_used() {
    let gone = Endpoint { serving: false, ..draining("10.1.0.2") };
    assert_eq!(used(&with(&[draining("10.1.0.1"), gone, unready("10.1.0.3")])), ["10.1.0.1:8080"]);
}

#[test]
fn one_ready_endpoint_drives_the_terminating_ones_out() {
    let mut state = with(&[draining("10.1.0.1"), unready("10.1.0.2")]);
    state.apply(Change::Slices(Event::Apply(slice(
        "web-1",
        "web",
        &[draining("10.1.0.1"), ready("10.1.0.2")],
    ))));
    assert_eq!(used(&state), ["10.1.0.2:8080"]);
}

#[test]
fn an_endpoint_that_is_neither_ready_nor_serving_is_never_used() {
    assert!(used(&with(&[unready("10.1.0.1")])).is_empty());
}

#[test]
fn an_endpoint_that_serves_but_is_neither_ready_nor_terminating_is_not_used() {
    let starting = Endpoint { serving: true, ..unready("10.1.0.1") };
    assert!(used(&with(&[starting])).is_empty());
}

#[test]
fn ready_decides_alone_when_it_is_set() {
    // As the controller writes them for publishNotReadyAddresses.
    let published = Endpoint { serving: false, terminating: true, ..ready("10.1.0.1") };
    assert_eq!(used(&with(&[published])), ["10.1.0.1:8080"]);
}

#[test]
fn when_all_are_hinted_those_for_our_zone_are_used() {
    let state = in_zone_a(&[
        ready("10.1.0.1").for_zones(&["a"]),
        ready("10.1.0.2").for_zones(&["b"]),
        ready("10.1.0.3").for_zones(&["b", "a"]),
    ]);
    assert_eq!(used(&state), ["10.1.0.1:8080", "10.1.0.3:8080"]);
}

#[test]
fn one_ready_endpoint_without_zone_hint_switches_the_hints_off() {
    let state = in_zone_a(&[
        ready("10.1.0.1").for_zones(&["a"]),
        ready("10.1.0.2").for_zones(&["b"]),
        ready("10.1.0.3"),
    ]);
    assert_eq!(used(&state).len(), 3);
}

#[test]
fn an_endpoint_that_is_not_ready_has_no_say_in_the_hints() {
    let state = in_zone_a(&[
        ready("10.1.0.1").for_zones(&["a"]),
        ready("10.1.0.2").for_zones(&["b"]),
        unready("10.1.0.3"),
        draining("10.1.0.4"),
    ]);
    assert_eq!(used(&state), ["10.1.0.1:8080"]);
}

#[test]
fn hints_that_name_our_zone_nowhere_are_ignored() {
    let state = in_zone_a(&[ready("10.1.0.1").for_zones(&["b"]), ready("10.1.0.2").for_zones(&["c"])]);
    assert_eq!(used(&state).len(), 2);
}

#[test]
fn a_node_without_zone_ignores_zone_hints() {
    let state = with(&[ready("10.1.0.1").for_zones(&["a"]), ready("10.1.0.2").for_zones(&["b"])]);
    assert_eq!(used(&state).len(), 2);
}

#[test]
fn hints_for_our_node_beat_hints_for_our_zone() {
    let state = in_zone_a(&[
        ready("10.1.0.1").for_zones(&["a"]).for_nodes(&["node-b"]),
        ready("10.1.0.2").for_zones(&["a"]).for_nodes(&["node-c", NODE]),
    ]);
    assert_eq!(used(&state), ["10.1.0.2:8080"]);
}

#[test]
fn node_hints_that_are_not_for_us_leave_the_zone_hints_in_force() {
    let state = in_zone_a(&[
        ready("10.1.0.1").for_zones(&["a"]).for_nodes(&["node-b"]),
        ready("10.1.0.2").for_zones(&["b"]).for_nodes(&["node-c"]),
    ]);
    assert_eq!(used(&state), ["10.1.0.1:8080"]);
}

#[test]
fn one_ready_endpoint_without_node_hint_switches_the_node_hints_off() {
    let state = in_zone_a(&[ready("10.1.0.1").for_nodes(&[NODE]), ready("10.1.0.2")]);
    assert_eq!(used(&state).len(), 2);
}

#[test]
fn a_new_zone_of_the_node_selects_again() {
    let mut state = in_zone_a(&[ready("10.1.0.1").for_zones(&["a"]), ready("10.1.0.2").for_zones(&["b"])]);
    state.apply(Change::Services(Event::Apply(service("unhinted", "10.96.0.9"))));
    let touched = state.apply(in_zone("b"));
    assert_eq!(used(&state), ["10.1.0.2:8080"]);
    assert_eq!(touched.virtual_servers, [tcp(AT)].into());
    state.apply(Change::Node(Some(Node::default())));
    assert_eq!(used(&state).len(), 2);
}

#[test]
fn terminating_endpoints_in_our_zone_do_not_keep_ready_ones_elsewhere_out() {
    let ours = draining("10.1.0.1").for_zones(&["a"]);
    assert_eq!(used(&in_zone_a(&[ours.clone(), ready("10.1.0.2").for_zones(&["b"])])), ["10.1.0.2:8080"]);
    // With no ready endpoint anywhere, hints mean nothing.
    assert_eq!(used(&in_zone_a(&[ours, draining("10.1.0.2").for_zones(&["b"])])).len(), 2);
}

#[test]
fn a_local_policy_uses_the_endpoints_of_this_node_only() {
    let state = local_only(&[ready("10.1.0.1"), ready("10.1.0.2").here()]);
    assert_eq!(used(&state), ["10.1.0.2:8080"]);
}

#[test]
fn a_local_policy_without_local_endpoints_uses_none() {
    let state = local_only(&[ready("10.1.0.1"), unready("10.1.0.2").here()]);
    assert!(used(&state).is_empty());
}

#[test]
fn a_local_policy_falls_back_to_local_endpoints_that_terminate() {
    let state = local_only(&[ready("10.1.0.1"), draining("10.1.0.2").here(), draining("10.1.0.3")]);
    assert_eq!(used(&state), ["10.1.0.2:8080"]);
}

#[test]
fn hints_do_not_narrow_a_local_policy() {
    let state = local_only(&[
        ready("10.1.0.1").here().for_zones(&["a"]).for_nodes(&[NODE]),
        ready("10.1.0.2").here().for_zones(&["b"]).for_nodes(&["node-b"]),
    ]);
    assert_eq!(used(&state).len(), 2);
}

#[test]
fn an_endpoint_on_a_node_of_a_similar_name_is_not_local() {
    let elsewhere = |node: Option<&str>| Endpoint { node: node.map(Into::into), ..ready("10.1.0.1") };
    for node in [None, Some(""), Some("Node-A"), Some("node-a.example")] {
        assert!(used(&local_only(&[elsewhere(node)])).is_empty(), "{node:?}");
    }
}
