//! A Service that becomes one of another type, or goes.

use std::num::NonZero;

use crate::common::*;
use ipvs::Protocol;
use service::{Change, Dirty, Event, Service, ServiceKind, State, TrafficPolicy};

fn cluster_ip() -> Service {
    service("web", "10.96.0.1")
}

fn node_port() -> Service {
    Service {
        kind: ServiceKind::NodePort,
        ports: vec![with_node_port(port("", Protocol::Tcp, 80), 30080)],
        ..cluster_ip()
    }
}

fn load_balancer() -> Service {
    Service {
        kind: ServiceKind::LoadBalancer,
        load_balancer_ips: ips(&["203.0.113.1"]),
        external_traffic_policy: TrafficPolicy::Local,
        health_check_node_port: NonZero::new(32_000),
        ..node_port()
    }
}

/// As the API server leaves it: without ClusterIP and ports of nodes, but the status may stay.
fn external_name() -> Service {
    Service {
        kind: ServiceKind::ExternalName,
        cluster_ips: Vec::new(),
        load_balancer_ips: ips(&["203.0.113.1"]),
        ..cluster_ip()
    }
}

fn headless() -> Service {
    Service { cluster_ips: Vec::new(), ..cluster_ip() }
}

fn every_type() -> [Service; 5] {
    [cluster_ip(), node_port(), load_balancer(), external_name(), headless()]
}

/// On a node with one of the two endpoints, beside a Service that nothing happens to.
fn before(web: Service) -> State {
    let mut state = state_of(
        &[web, service("other", "10.96.0.2")],
        &[slice("web-1", "web", &[ready("10.1.0.1"), ready("10.1.0.2").here()])],
    );
    state.apply(node_addresses(&["192.0.2.1"]));
    state
}

/// What a change touches that leads from one state to the next, which must be as if it had always been.
fn changed(state: &mut State, change: Change, to: &State) -> Dirty {
    let old = wanted(state);
    let touched = state.apply(change);
    assert_eq!(wanted(state), wanted(to));
    assert_eq!(touched, difference(&old, &wanted(to)));
    touched
}

fn addresses(touched: &Dirty) -> Vec<String> {
    touched.virtual_servers.iter().map(ToString::to_string).collect()
}

#[test]
fn any_type_becomes_any_other_and_leaves_nothing_behind() {
    for from in every_type() {
        for to in every_type() {
            changed(&mut before(from.clone()), Change::Services(Event::Apply(to.clone())), &before(to));
        }
    }
}

#[test]
fn a_deleted_service_of_any_type_leaves_nothing_behind() {
    let mut rest = before(cluster_ip());
    rest.apply(Change::Services(Event::Delete(name("web"))));
    assert_eq!(virtual_servers(&rest), ["TCP 10.96.0.2:80"]);
    assert_eq!(vips(&rest), ["10.96.0.2"]);
    assert_eq!(elements(&rest), ["cluster-ips TCP 10.96.0.2:80"]);
    for web in every_type() {
        changed(&mut before(web), Change::Services(Event::Delete(name("web"))), &rest);
    }
}

#[test]
fn a_cluster_ip_service_that_gets_a_node_port_keeps_what_it_has() {
    let mut state = before(cluster_ip());
    let touched = changed(&mut state, Change::Services(Event::Apply(node_port())), &before(node_port()));
    assert_eq!(addresses(&touched), ["TCP 192.0.2.1:30080"]);
    assert!(touched.vips.is_empty());
    let back = changed(&mut state, Change::Services(Event::Apply(cluster_ip())), &before(cluster_ip()));
    assert_eq!(back, touched);
}

#[test]
fn a_node_port_service_that_gets_a_load_balancer_keeps_cluster_ip_and_node_port() {
    let mut state = before(node_port());
    let balanced = Service { external_traffic_policy: TrafficPolicy::Cluster, ..load_balancer() };
    let touched = changed(&mut state, Change::Services(Event::Apply(balanced.clone())), &before(balanced));
    assert_eq!(addresses(&touched), ["TCP 203.0.113.1:80"]);
    assert_eq!(touched.vips, [ip("203.0.113.1")].into());
    let back = changed(&mut state, Change::Services(Event::Apply(node_port())), &before(node_port()));
    assert_eq!(back, touched);
}

#[test]
fn an_external_name_lets_go_of_the_address_left_over() {
    let mut state = before(load_balancer());
    changed(&mut state, Change::Services(Event::Apply(external_name())), &before(external_name()));
    assert_eq!(virtual_servers(&state), ["TCP 10.96.0.2:80"]);
    assert_eq!(vips(&state), ["10.96.0.2"]);
    assert_eq!(state.reports().health_checks().count(), 0);
}

#[test]
fn a_new_cluster_ip_and_protocol_take_the_old_ones_away() {
    let other = Service {
        cluster_ips: ips(&["10.96.0.9"]),
        ports: vec![with_node_port(port("", Protocol::Udp, 80), 30080)],
        ..load_balancer()
    };
    let mut state = before(load_balancer());
    changed(&mut state, Change::Services(Event::Apply(other.clone())), &before(other));
    assert_eq!(
        virtual_servers(&state),
        ["TCP 10.96.0.2:80", "UDP 10.96.0.9:80", "UDP 192.0.2.1:30080", "UDP 203.0.113.1:80"]
    );
    assert_eq!(vips(&state), ["10.96.0.2", "10.96.0.9", "203.0.113.1"]);
}
