//! The answers to load balancers about this node.

use std::num::NonZero;

use crate::common::*;
use ipvs::{Family, Protocol};
use netfilter::{Element, HealthCheckPort};
use service::{Change, Dirty, Endpoint, EndpointSlice, Event, Service, ServiceKind, State, TrafficPolicy};

fn balanced() -> Service {
    Service {
        kind: ServiceKind::LoadBalancer,
        load_balancer_ips: ips(&["203.0.113.1"]),
        external_traffic_policy: TrafficPolicy::Local,
        health_check_node_port: NonZero::new(32_000),
        ..service("web", "10.96.0.1")
    }
}

/// `(Service, port, ready IPv4 endpoints, ready IPv6 endpoints)` of every health check.
fn health_checks(state: &State) -> Vec<(String, u16, usize, usize)> {
    let checks = state.reports().health_checks();
    checks.map(|(of, check)| (of.to_string(), check.port.get(), check.ready_v4, check.ready_v6)).collect()
}

fn web(port: u16, ready_v4: usize, ready_v6: usize) -> Vec<(String, u16, usize, usize)> {
    vec![("default/web".to_owned(), port, ready_v4, ready_v6)]
}

fn at(family: Family, port: u16) -> Element {
    Element::HealthCheckPort(HealthCheckPort { family, port })
}

#[test]
fn the_ready_endpoints_on_this_node_are_counted() {
    let endpoints = [
        ready("10.1.0.1").here(),
        ready("10.1.0.2").here().for_zones(&["elsewhere"]),
        ready("10.1.0.3"),
        unready("10.1.0.4").here(),
    ];
    let state = state_of(&[balanced()], &[slice("web-1", "web", &endpoints)]);
    assert_eq!(health_checks(&state), web(32_000, 2, 0));
}

#[test]
fn endpoints_that_terminate_are_used_and_do_not_count() {
    let here: Vec<Endpoint> = vec![ready("10.1.0.1").here()];
    let mut state = state_of(&[balanced()], &[slice("web-1", "web", &here)]);
    assert_eq!(health_checks(&state), web(32_000, 1, 0));
    let touched =
        state.apply(Change::Slices(Event::Apply(slice("web-1", "web", &[draining("10.1.0.1").here()]))));
    // It is still the real server; but the load balancer must know now.
    assert_eq!(touched, Dirty { reports: true, ..Dirty::default() });
    assert_eq!(real_servers(&state, "203.0.113.1:80"), ["10.1.0.1:8080"]);
    assert_eq!(health_checks(&state), web(32_000, 0, 0));
}

#[test]
fn a_pod_with_several_ports_counts_once() {
    let two_ports =
        Service { ports: vec![port("a", Protocol::Tcp, 80), port("b", Protocol::Udp, 53)], ..balanced() };
    let of = |text: &str, address: &str, ports: &[(&str, Protocol)]| EndpointSlice {
        ports: ports.iter().map(|(port, protocol)| listening(port, *protocol, 1)).collect(),
        ..slice(text, "web", &[ready(address).here()])
    };
    let state = state_of(
        &[two_ports],
        &[
            of("web-1", "10.1.0.1", &[("a", Protocol::Tcp), ("b", Protocol::Udp)]),
            of("web-2", "10.1.0.2", &[("b", Protocol::Udp)]),
        ],
    );
    assert_eq!(health_checks(&state), web(32_000, 2, 0));
}

#[test]
fn the_families_are_counted_apart() {
    let dual = Service { cluster_ips: ips(&["10.96.0.1", "fd00::1"]), ..balanced() };
    let slices = [
        slice("web-4", "web", &[ready("10.1.0.1").here()]),
        slice("web-6", "web", &[ready("fd01::1").here(), ready("fd01::2").here()]),
    ];
    assert_eq!(health_checks(&state_of(&[dual], &slices)), web(32_000, 1, 2));
    // A family without ClusterIP is not served.
    assert_eq!(health_checks(&state_of(&[balanced()], &slices)), web(32_000, 1, 0));
}

#[test]
fn a_node_without_endpoints_answers_too() {
    assert_eq!(health_checks(&state_of(&[balanced()], &[])), web(32_000, 0, 0));
}

#[test]
fn a_load_balancer_without_address_yet_is_answered() {
    let pending = Service { load_balancer_ips: Vec::new(), ..balanced() };
    let state = state_of(&[pending], &[slice("web-1", "web", &[ready("10.1.0.1").here()])]);
    assert_eq!(health_checks(&state), web(32_000, 1, 0));
}

#[test]
fn only_a_load_balancer_with_policy_local_and_a_port_is_answered() {
    for other in [
        Service { kind: ServiceKind::NodePort, ..balanced() },
        Service { kind: ServiceKind::ClusterIp, external_ips: ips(&["198.51.100.1"]), ..balanced() },
        Service { kind: ServiceKind::ExternalName, ..balanced() },
        Service { external_traffic_policy: TrafficPolicy::Cluster, ..balanced() },
        Service { health_check_node_port: None, ..balanced() },
        Service { other_proxy: true, ..balanced() },
        Service { cluster_ips: Vec::new(), ..balanced() },
    ] {
        let state =
            state_of(std::slice::from_ref(&other), &[slice("web-1", "web", &[ready("10.1.0.1").here()])]);
        assert!(health_checks(&state).is_empty(), "{other:?}");
    }
}

#[test]
fn a_health_check_moves_with_its_port_and_goes_with_its_service() {
    let mut state = state_of(&[balanced()], &[slice("web-1", "web", &[ready("10.1.0.1").here()])]);
    let moved = Service { health_check_node_port: NonZero::new(32_001), ..balanced() };
    let touched = state.apply(Change::Services(Event::Apply(moved)));
    assert_eq!(touched.elements, [at(Family::V4, 32_000), at(Family::V4, 32_001)].into());
    assert!(touched.virtual_servers.is_empty() && touched.vips.is_empty());
    assert_eq!(health_checks(&state), web(32_001, 1, 0));
    state.apply(Change::Services(Event::Delete(name("web"))));
    assert!(health_checks(&state).is_empty());
    assert_eq!(state.elements().count(), 0);
}

#[test]
fn the_health_check_port_stays_in_each_family_until_the_last_service_drops_it() {
    let dual = Service { cluster_ips: ips(&["10.96.0.1", "fd00::1"]), ..balanced() };
    let other = Service { cluster_ips: ips(&["fd00::2"]), name: name("other"), ..balanced() };
    let mut state = state_of(&[dual.clone(), other], &[]);
    let ports = |state: &State| Family::BOTH.map(|family| state.wants_element(&at(family, 32_000)));
    assert_eq!(ports(&state), [true, true]);
    let without = Service { external_traffic_policy: TrafficPolicy::Cluster, ..dual };
    state.apply(Change::Services(Event::Apply(without)));
    assert_eq!(ports(&state), [false, true]);
    state.apply(Change::Services(Event::Delete(name("other"))));
    assert_eq!(ports(&state), [false, false]);
}

#[test]
fn health_checks_are_sorted_by_service() {
    let names = ["b", "a", "other/a"];
    let services = names.map(|text| Service { name: name(text), ..balanced() });
    let state = state_of(&services, &[]);
    let found: Vec<String> = state.reports().health_checks().map(|(of, _)| of.to_string()).collect();
    assert_eq!(found, ["default/a", "default/b", "other/a"]);
}
