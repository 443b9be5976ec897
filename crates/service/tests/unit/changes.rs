//! What a change touches.

use crate::common::*;
use ipvs::Protocol;
use netfilter::Element;
use service::{Change, Endpoint, Event, Node, Service};

fn inputs() -> (Vec<Service>, Vec<service::EndpointSlice>) {
    (
        vec![service("web", "10.96.0.1"), service("db", "10.96.0.2")],
        vec![
            slice("web-1", "web", &[ready("10.1.0.1").here().for_zones(&["a"])]),
            slice("db-1", "db", &[ready("10.1.0.2")]),
        ],
    )
}

#[test]
fn the_same_again_touches_nothing() {
    let (services, slices) = inputs();
    let mut state = state_of(&services, &slices);
    state.apply(in_zone("a"));
    state.apply(node_addresses(&["192.0.2.1"]));
    for again in [
        Change::Services(Event::Replace(services.clone())),
        Change::Slices(Event::Replace(slices.clone())),
        Change::Services(Event::Apply(services[0].clone())),
        Change::Slices(Event::Apply(slices[0].clone())),
        in_zone("a"),
        node_addresses(&["192.0.2.1"]),
        Change::Services(Event::Delete(name("unknown"))),
        Change::Slices(Event::Delete(name("unknown"))),
    ] {
        let touched = state.apply(again.clone());
        assert!(touched.is_empty(), "{again:?} touched {touched:?}");
    }
}

#[test]
fn a_change_that_the_kernel_cannot_see_touches_nothing() {
    let (services, slices) = inputs();
    let mut state = state_of(&services, &slices);
    let mut service = services[0].clone();
    service.problems = vec!["spec.ports[1]: no port".to_owned()];
    assert!(state.apply(Change::Services(Event::Apply(service))).is_empty());
    let mut slice = slices[1].clone();
    slice.endpoints[0].node = Some("node-c".into());
    slice.endpoints.push(unready("10.1.0.3"));
    assert!(state.apply(Change::Slices(Event::Apply(slice))).is_empty());
}

#[test]
fn a_new_service_touches_its_own_keys_and_no_others() {
    let (services, slices) = inputs();
    let mut state = state_of(&services[..1], &slices);
    let touched = state.apply(Change::Services(Event::Apply(services[1].clone())));
    assert_eq!(touched.virtual_servers, [tcp("10.96.0.2:80")].into());
    assert_eq!(touched.vips, [ip("10.96.0.2")].into());
    let cluster_ip = Element::ClusterIp(tcp("10.96.0.2:80"));
    assert_eq!(touched.elements, [Element::Vip(ip("10.96.0.2")), cluster_ip].into());
}

#[test]
fn an_endpoint_touches_its_virtual_server_only() {
    let (services, slices) = inputs();
    let mut state = state_of(&services, &slices);
    let more: Vec<Endpoint> = [slices[1].endpoints.clone(), vec![ready("10.1.0.3")]].concat();
    let touched = state.apply(Change::Slices(Event::Apply(slice("db-1", "db", &more))));
    assert_eq!(touched.virtual_servers, [tcp("10.96.0.2:80")].into());
    assert!(touched.vips.is_empty() && touched.elements.is_empty());
}

#[test]
fn a_new_zone_touches_nothing_without_hints() {
    let (services, _) = inputs();
    let mut state = state_of(&services, &[slice("db-1", "db", &[ready("10.1.0.2")])]);
    assert!(state.apply(in_zone("b")).is_empty());
    assert!(state.apply(Change::Node(Some(Node::default()))).is_empty());
}

#[test]
fn a_node_that_leaves_or_is_gone_touches_nothing_and_keeps_its_zone() {
    let (services, _) = inputs();
    let hinted =
        slice("db-1", "db", &[ready("10.1.0.2").for_zones(&["a"]), ready("10.1.0.3").for_zones(&["b"])]);
    let mut state = state_of(&services, &[hinted]);
    state.apply(in_zone("a"));
    assert!(
        state
            .apply(Change::Node(Some(Node { zone: Some("a".into()), leaving: true, ..Node::default() })))
            .is_empty()
    );
    assert!(state.apply(Change::Node(None)).is_empty());
}

#[test]
fn a_vip_that_passes_to_another_service_within_one_list_is_not_touched() {
    let (old, new) = (service("old", "10.96.0.1"), service("new", "10.96.0.1"));
    for (first, second) in [(&old, &new), (&new, &old)] {
        let mut state = state_of(std::slice::from_ref(first), &[]);
        let touched = state.apply(Change::Services(Event::Replace(vec![second.clone()])));
        assert!(touched.vips.is_empty() && touched.elements.is_empty(), "{touched:?}");
        assert!(state.wants_vip(&ip("10.96.0.1")));
    }
}

#[test]
fn a_new_address_of_the_node_touches_nothing_without_node_ports() {
    let (mut services, slices) = inputs();
    services[1].external_ips = ips(&["198.51.100.1"]);
    services[1].load_balancer_ips = ips(&["203.0.113.1"]);
    let mut state = state_of(&services, &slices);
    assert!(state.apply(node_addresses(&["192.0.2.1", "10.96.0.1"])).is_empty());
    assert!(state.apply(Change::Node(Some(Node { ips: ips(&["192.0.2.1"]), ..Node::default() }))).is_empty());
}

#[test]
fn a_new_address_of_the_node_touches_what_is_served_there_and_no_others() {
    let (mut services, slices) = inputs();
    services[0].ports = vec![with_node_port(port("", Protocol::Tcp, 80), 30080)];
    services[1].external_ips = ips(&["198.51.100.1"]);
    let mut state = state_of(&services, &slices);
    state.apply(node_addresses(&["192.0.2.1"]));
    let touched = state.apply(node_addresses(&["192.0.2.1", "198.51.100.1"]));
    assert_eq!(touched.virtual_servers, [tcp("198.51.100.1:30080")].into());
    assert_eq!(touched.vips, [ip("198.51.100.1")].into());
    let external = Element::External(tcp("198.51.100.1:30080"));
    assert_eq!(touched.elements, [Element::Vip(ip("198.51.100.1")), external].into());
}
