//! Several Services that want the same.

use crate::common::*;
use ipvs::Protocol;
use netfilter::Element;
use service::{Change, Conflict, ConflictLoss, Event, Service, ServiceKind, State, TrafficPolicy};

const AT: &str = "10.96.0.1:80";

fn born(text: &str, created: Option<i64>) -> Service {
    Service { created, ..service(text, "10.96.0.1") }
}

/// A slice whose only endpoint tells the Services apart.
fn backend(of: &str, address: &str) -> service::EndpointSlice {
    slice(&format!("{of}-1"), of, &[ready(address)])
}

#[test]
fn the_oldest_service_holds_an_address_in_whatever_order_they_come() {
    let (old, young) = (born("zz-old", Some(1)), born("aa-young", Some(2)));
    for services in [[old.clone(), young.clone()], [young, old]] {
        let slices = [backend("zz-old", "10.1.0.1"), backend("aa-young", "10.1.0.2")];
        let mut state = state_of(&[], &[]);
        for service in services {
            state.apply(Change::Services(Event::Apply(service)));
        }
        state.apply(Change::Slices(Event::Replace(slices.to_vec())));
        assert_eq!(owner(&state, tcp(AT)), "default/zz-old");
        assert_eq!(real_servers(&state, AT), ["10.1.0.1:8080"]);
    }
}

#[test]
fn the_first_by_name_of_two_services_of_one_age_has_the_address() {
    let state = state_of(&[born("b", Some(1)), born("a", Some(1)), born("c", Some(1))], &[]);
    assert_eq!(owner(&state, tcp(AT)), "default/a");
}

#[test]
fn a_service_without_creation_time_counts_as_the_oldest() {
    let state = state_of(&[born("a", Some(i64::MIN)), born("z", None)], &[]);
    assert_eq!(owner(&state, tcp(AT)), "default/z");
}

#[test]
fn the_next_in_line_takes_over_when_the_holder_goes() {
    let mut state = state_of(
        &[born("first", Some(1)), born("third", Some(3)), born("second", Some(2))],
        &[backend("first", "10.1.0.1"), backend("second", "10.1.0.2"), backend("third", "10.1.0.3")],
    );
    let touched = state.apply(Change::Services(Event::Delete(name("first"))));
    assert_eq!(real_servers(&state, AT), ["10.1.0.2:8080"]);
    assert_eq!(touched.virtual_servers, [tcp(AT)].into());
    assert!(touched.vips.is_empty() && touched.elements.is_empty(), "others still want them: {touched:?}");
    state.apply(Change::Services(Event::Delete(name("second"))));
    assert_eq!(real_servers(&state, AT), ["10.1.0.3:8080"]);
    let last = state.apply(Change::Services(Event::Delete(name("third"))));
    assert_eq!(state.virtual_server(&tcp(AT)), None);
    assert_eq!(last.vips, [ip("10.96.0.1")].into());
}

#[test]
fn a_hand_over_between_equals_touches_nothing() {
    let mut state = state_of(&[born("first", Some(1)), born("second", Some(2))], &[]);
    assert!(state.apply(Change::Services(Event::Delete(name("first")))).is_empty());
    assert_eq!(owner(&state, tcp(AT)), "default/second");
}

#[test]
fn the_endpoints_of_a_service_that_waits_touch_nothing() {
    let mut state = state_of(&[born("first", Some(1)), born("second", Some(2))], &[]);
    let touched = state.apply(Change::Slices(Event::Apply(backend("second", "10.1.0.2"))));
    assert!(touched.is_empty(), "{touched:?}");
    assert!(real_servers(&state, AT).is_empty());
    let desired = state.desired(&name("second")).unwrap();
    assert_eq!(desired.virtual_servers[0].real_servers[0].address, real("10.1.0.2:8080"));
}

#[test]
fn a_holder_that_is_made_anew_goes_to_the_end_of_the_line() {
    let mut state = state_of(&[born("first", Some(1)), born("second", Some(2))], &[]);
    state.apply(Change::Services(Event::Apply(born("first", Some(3)))));
    assert_eq!(owner(&state, tcp(AT)), "default/second");
}

#[test]
fn only_the_port_that_two_services_share_is_contested() {
    let other = Service {
        created: Some(2_000),
        ports: vec![
            port("a", Protocol::Tcp, 80),
            port("b", Protocol::Tcp, 443),
            port("c", Protocol::Udp, 80),
        ],
        ..service("other", "10.96.0.1")
    };
    let state = state_of(&[service("web", "10.96.0.1"), other], &[]);
    assert_eq!(owner(&state, tcp("10.96.0.1:80")), "default/web");
    assert_eq!(owner(&state, tcp("10.96.0.1:443")), "default/other");
    assert_eq!(owner(&state, udp("10.96.0.1:80")), "default/other");
}

#[test]
fn a_shared_vip_stays_until_the_last_service_lets_go() {
    let other = Service { ports: vec![port("", Protocol::Tcp, 443)], ..service("other", "10.96.0.1") };
    let mut state = state_of(&[service("web", "10.96.0.1"), other], &[]);
    assert!(state.apply(Change::Services(Event::Delete(name("web")))).vips.is_empty());
    assert!(state.wants_vip(&ip("10.96.0.1")));
    assert_eq!(state.apply(Change::Services(Event::Delete(name("other")))).vips, [ip("10.96.0.1")].into());
    assert!(!state.wants_vip(&ip("10.96.0.1")));
}

#[test]
fn a_hairpin_stays_until_the_last_service_lets_go_of_the_pod() {
    let pod = [ready("10.1.0.1").here()];
    let mut state = state_of(
        &[service("a", "10.96.0.1"), service("b", "10.96.0.2")],
        &[slice("a-1", "a", &pod), slice("b-1", "b", &pod)],
    );
    let hairpin = "hairpin TCP 10.1.0.1:8080";
    state.apply(Change::Slices(Event::Delete(name("a-1"))));
    assert!(elements(&state).iter().any(|element| element == hairpin));
    state.apply(Change::Slices(Event::Delete(name("b-1"))));
    assert!(!elements(&state).iter().any(|element| element == hairpin));
}

#[test]
fn conflicts_tell_the_holder_and_those_who_wait_in_order() {
    let (first, second, third) = (born("c", Some(1)), born("b", Some(2)), born("a", Some(3)));
    let mut state = state_of(&[third, first, second, service("alone", "10.96.0.2")], &[]);
    let (a, b, c) = (name("a"), name("b"), name("c"));
    assert_eq!(
        state.conflicts().collect::<Vec<_>>(),
        [Conflict { address: tcp(AT), owner: &c, waiting: vec![&b, &a] }]
    );
    state.apply(Change::Services(Event::Delete(b)));
    state.apply(Change::Services(Event::Delete(a)));
    assert_eq!(state.conflicts().count(), 0);
    assert_eq!(owner(&state, tcp(AT)), "default/c");
}

/// What each Service has lost, as text.
fn lost(state: &State) -> Vec<String> {
    let text = |(service, lost): (_, ConflictLoss<'_>)| {
        let named = lost.named.iter().map(|(address, holder)| format!("{} {}", address.port, holder.name()));
        format!("{service} {:?} and {}", named.collect::<Vec<_>>(), lost.more)
    };
    state.conflict_losses().map(text).collect()
}

#[test]
fn the_first_few_losses_of_a_service_are_named_and_the_others_counted() {
    let with_ports = |count, service| Service {
        ports: (1..=count).map(|number| port(&number.to_string(), Protocol::Tcp, number)).collect(),
        ..service
    };
    let mut state = state_of(&[born("old", Some(1)), with_ports(400, born("young", Some(3)))], &[]);
    assert_eq!(lost(&state), [r#"default/young ["80 old"] and 0"#]);

    state.apply(Change::Services(Event::Apply(with_ports(300, born("middle", Some(2))))));
    let of_young = r#"default/young ["1 middle", "2 middle", "3 middle", "4 middle", "5 middle"] and 295"#;
    assert_eq!(lost(&state), [r#"default/middle ["80 old"] and 0"#, of_young]);

    // The next holder is named with the losses that are left.
    state.apply(Change::Services(Event::Apply(with_ports(2, born("old", Some(1))))));
    assert_eq!(
        lost(&state),
        [
            r#"default/middle ["1 old", "2 old"] and 0"#,
            r#"default/young ["1 old", "2 old", "3 middle", "4 middle", "5 middle"] and 295"#,
        ]
    );
    state.apply(Change::Services(Event::Delete(name("middle"))));
    assert_eq!(lost(&state), [r#"default/young ["1 old", "2 old"] and 0"#]);
    state.apply(Change::Services(Event::Delete(name("old"))));
    assert_eq!(lost(&state), [""; 0]);
}

#[test]
fn external_ip_waits_behind_the_service_with_that_cluster_ip_at_any_age() {
    for created in [None, Some(1), Some(2_000)] {
        let thief = Service { created, external_ips: ips(&["10.96.0.1"]), ..service("thief", "10.96.0.2") };
        let mut state = state_of(&[thief, service("web", "10.96.0.1")], &[backend("thief", "10.1.0.2")]);
        assert_eq!(owner(&state, tcp(AT)), "default/web");
        assert!(real_servers(&state, AT).is_empty());
        state.apply(Change::Services(Event::Delete(name("web"))));
        assert_eq!(real_servers(&state, AT), ["10.1.0.2:8080"]);
        state.apply(Change::Services(Event::Apply(service("web", "10.96.0.1"))));
        assert_eq!(owner(&state, tcp(AT)), "default/web");
    }
}

#[test]
fn who_is_masqueraded_at_an_address_is_decided_by_the_service_that_holds_it() {
    let exposed = |text: &str, created, external_traffic_policy| Service {
        created: Some(created),
        external_ips: ips(&["198.51.100.1"]),
        external_traffic_policy,
        ..service(text, if created == 1 { "10.96.0.1" } else { "10.96.0.2" })
    };
    let at = tcp("198.51.100.1:80");
    let (masqueraded, not_masqueraded) = (Element::External(at), Element::ExternalLocal(at));
    let mut state = state_of(
        &[exposed("old", 1, TrafficPolicy::Local), exposed("young", 2, TrafficPolicy::Cluster)],
        &[],
    );
    let wants = |state: &State, element| {
        assert_eq!(state.wants_element(&element), state.elements().any(|it| it == element));
        state.wants_element(&element)
    };
    assert!(!wants(&state, masqueraded) && wants(&state, not_masqueraded));
    let touched = state.apply(Change::Services(Event::Delete(name("old"))));
    assert!(wants(&state, masqueraded) && !wants(&state, not_masqueraded));
    assert!(touched.elements.is_superset(&[masqueraded, not_masqueraded].into()));
    assert!(touched.virtual_servers.contains(&at));
}

#[test]
fn an_external_ip_waits_behind_the_load_balancers_address_however_old_it_is() {
    let balanced = Service { load_balancer_ips: ips(&["203.0.113.1"]), ..service("balanced", "10.96.0.1") };
    let external = Service { external_ips: ips(&["203.0.113.1"]), ..service("external", "10.96.0.2") };
    for created in [None, Some(1), Some(2_000)] {
        let external = Service { created, ..external.clone() };
        let mut state = state_of(&[external, balanced.clone()], &[]);
        assert_eq!(owner(&state, tcp("203.0.113.1:80")), "default/balanced");
        state.apply(Change::Services(Event::Delete(name("balanced"))));
        assert_eq!(owner(&state, tcp("203.0.113.1:80")), "default/external");
    }
}

#[test]
fn one_node_port_of_two_services_is_held_by_the_older_at_every_address() {
    let node_port = |text: &str, created, cluster_ip| Service {
        created: Some(created),
        kind: ServiceKind::NodePort,
        ports: vec![with_node_port(port("", Protocol::Tcp, 80), 30080)],
        ..service(text, cluster_ip)
    };
    let mut state = state_of(&[node_port("b", 1, "10.96.0.1"), node_port("a", 2, "10.96.0.2")], &[]);
    state.apply(node_addresses(&["192.0.2.1", "192.0.2.2"]));
    let shared = [tcp("192.0.2.1:30080"), tcp("192.0.2.2:30080")];
    assert_eq!(shared.map(|at| owner(&state, at)), ["default/b", "default/b"]);
    assert_eq!(state.conflicts().map(|conflict| conflict.address).collect::<Vec<_>>(), shared);
    state.apply(Change::Services(Event::Delete(name("b"))));
    assert_eq!(shared.map(|at| owner(&state, at)), ["default/a", "default/a"]);
}

#[test]
fn an_external_ip_waits_behind_a_younger_services_node_port() {
    let node_port = Service {
        kind: ServiceKind::NodePort,
        ports: vec![with_node_port(port("", Protocol::Tcp, 80), 30080)],
        ..service("node-port", "10.96.0.1")
    };
    let external = Service {
        external_ips: ips(&["192.0.2.1"]),
        ports: vec![port("", Protocol::Tcp, 30080)],
        ..service("external", "10.96.0.2")
    };
    for created in [1, 2_000] {
        let external = Service { created: Some(created), ..external.clone() };
        let mut state = state_of(&[node_port.clone(), external], &[]);
        state.apply(node_addresses(&["192.0.2.1"]));
        assert_eq!(owner(&state, tcp("192.0.2.1:30080")), "default/node-port");
        assert!(!state.wants_vip(&ip("192.0.2.1")));
    }
}
