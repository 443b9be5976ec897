//! External IPs and load balancers' addresses.

use crate::common::*;
use ipvs::{Protocol, ServiceFlags};
use netfilter::Element;
use service::{Change, Event, ExternalIps, Options, Service, ServiceKind, State, TrafficPolicy, Urgency};

const CLUSTER_IP: &str = "10.96.0.1:80";
const EXTERNAL: &str = "198.51.100.1:80";
const BALANCED: &str = "203.0.113.1:80";

/// With an external IP and a load balancer's address.
fn exposed(text: &str) -> Service {
    Service {
        kind: ServiceKind::LoadBalancer,
        external_ips: ips(&["198.51.100.1"]),
        load_balancer_ips: ips(&["203.0.113.1"]),
        ..service(text, "10.96.0.1")
    }
}

fn state_of_one(service: Service) -> State {
    state_of(&[service], &[slice("web-1", "web", &[ready("10.1.0.1"), ready("10.1.0.2").here()])])
}

#[test]
fn external_ips_and_load_balancer_addresses_have_virtual_servers_and_are_bound() {
    let state = state_of_one(exposed("web"));
    assert_eq!(virtual_servers(&state), ["TCP 10.96.0.1:80", "TCP 198.51.100.1:80", "TCP 203.0.113.1:80"]);
    assert_eq!(vips(&state), ["10.96.0.1", "198.51.100.1", "203.0.113.1"]);
    for at in [CLUSTER_IP, EXTERNAL, BALANCED] {
        assert_eq!(real_servers(&state, at), ["10.1.0.1:8080", "10.1.0.2:8080"]);
    }
}

#[test]
fn every_port_and_protocol_is_served_at_every_address() {
    let dns = Service {
        ports: vec![port("dns", Protocol::Udp, 53), port("sctp", Protocol::Sctp, 99)],
        ..exposed("dns")
    };
    assert_eq!(
        virtual_servers(&state_of(&[dns], &[])),
        [
            "SCTP 10.96.0.1:99",
            "SCTP 198.51.100.1:99",
            "SCTP 203.0.113.1:99",
            "UDP 10.96.0.1:53",
            "UDP 198.51.100.1:53",
            "UDP 203.0.113.1:53",
        ]
    );
}

#[test]
fn what_comes_in_there_is_masqueraded_whatever_its_source() {
    assert_eq!(
        elements(&state_of_one(exposed("web"))),
        [
            "cluster-ips TCP 10.96.0.1:80",
            "external TCP 198.51.100.1:80",
            "external TCP 203.0.113.1:80",
            "hairpin TCP 10.1.0.2:8080",
        ]
    );
}

#[test]
fn session_affinity_holds_there_too() {
    let state = state_of_one(Service { session_affinity: Some(60), ..exposed("web") });
    for at in [CLUSTER_IP, EXTERNAL, BALANCED] {
        let config = config(&state, at);
        assert_eq!((config.flags, config.timeout), (ServiceFlags::PERSISTENT, 60), "{at}");
    }
}

#[test]
fn an_address_of_a_family_without_cluster_ip_is_not_served() {
    let single = Service {
        external_ips: ips(&["2001:db8::1", "198.51.100.1"]),
        load_balancer_ips: ips(&["2001:db8::2"]),
        ..service("web", "10.96.0.1")
    };
    let mut state =
        state_of(std::slice::from_ref(&single), &[slice("web-6", "web", &[ready("fd01::1").here()])]);
    assert_eq!(virtual_servers(&state), ["TCP 10.96.0.1:80", "TCP 198.51.100.1:80"]);
    assert_eq!(vips(&state), ["10.96.0.1", "198.51.100.1"]);
    assert_eq!(elements(&state), ["cluster-ips TCP 10.96.0.1:80", "external TCP 198.51.100.1:80"]);

    state.apply(Change::Services(Event::Apply(Service {
        cluster_ips: ips(&["10.96.0.1", "fd00::1"]),
        ..single
    })));
    for at in ["[2001:db8::1]:80", "[2001:db8::2]:80", "[fd00::1]:80"] {
        assert_eq!(real_servers(&state, at), ["[fd01::1]:8080"], "{at}");
    }
    assert!(real_servers(&state, EXTERNAL).is_empty());
}

#[test]
fn an_address_that_the_node_itself_has_is_served_and_not_bound() {
    let mut state = state_of(&[], &[]);
    state.apply(node_addresses(&["192.0.2.1", "198.51.100.1", "203.0.113.1"]));
    state.apply(Change::Services(Event::Apply(exposed("web"))));
    assert_eq!(virtual_servers(&state), ["TCP 10.96.0.1:80", "TCP 198.51.100.1:80", "TCP 203.0.113.1:80"]);
    assert_eq!(vips(&state), ["10.96.0.1"]);
}

#[test]
fn an_address_that_the_node_loses_is_bound_and_one_that_it_gets_is_unbound() {
    let mut state = state_of(&[exposed("web"), service("other", "10.96.0.2")], &[]);
    for (addresses, bound) in [(&["192.0.2.1", "198.51.100.1"][..], false), (&["192.0.2.1"], true)] {
        let touched = state.apply(node_addresses(addresses));
        assert_eq!(state.wants_vip(&ip("198.51.100.1")), bound);
        assert_eq!(touched.vips, [ip("198.51.100.1")].into());
        assert_eq!(touched.elements, vip_elements(&["198.51.100.1"]));
        assert!(touched.virtual_servers.is_empty(), "{touched:?}");
    }
}

#[test]
fn a_cluster_ip_is_bound_even_if_the_node_has_the_address() {
    let mut state = state_of(&[], &[]);
    state.apply(node_addresses(&["10.96.0.1"]));
    state.apply(Change::Services(Event::Apply(service("web", "10.96.0.1"))));
    assert_eq!(vips(&state), ["10.96.0.1"]);
}

#[test]
fn an_address_is_bound_while_it_is_the_cluster_ip_of_any_service() {
    // Another Service names the ClusterIP as external IP; the node has the address too.
    let other = Service {
        external_ips: ips(&["10.96.0.1"]),
        ports: vec![port("", Protocol::Tcp, 443)],
        ..service("other", "10.96.0.2")
    };
    let mut state = state_of(&[service("web", "10.96.0.1"), other], &[]);
    assert!(state.apply(node_addresses(&["10.96.0.1"])).vips.is_empty());
    assert_eq!(state.apply(Change::Services(Event::Delete(name("web")))).vips, [ip("10.96.0.1")].into());
    assert_eq!(vips(&state), ["10.96.0.2"]);
    assert_eq!(state.apply(node_addresses(&[])).vips, [ip("10.96.0.1")].into());
    assert_eq!(vips(&state), ["10.96.0.1", "10.96.0.2"]);
}

#[test]
fn switched_off_external_ips_leave_the_rest_served() {
    let options = Options { external_ips: ExternalIps::Off, ..options() };
    let state = state_with(options, &[exposed("web")], &[]);
    assert_eq!(virtual_servers(&state), ["TCP 10.96.0.1:80", "TCP 203.0.113.1:80"]);
    assert_eq!(vips(&state), ["10.96.0.1", "203.0.113.1"]);
}

#[test]
fn a_load_balancer_address_left_over_at_a_cluster_ip_service_is_served() {
    let state = state_of_one(Service {
        load_balancer_ips: ips(&["203.0.113.1"]),
        external_traffic_policy: TrafficPolicy::Local,
        ..service("web", "10.96.0.1")
    });
    // The Service is not exposed by its type: the policy means nothing.
    assert_eq!(real_servers(&state, BALANCED), ["10.1.0.1:8080", "10.1.0.2:8080"]);
    assert!(state.wants_vip(&ip("203.0.113.1")));
    assert!(state.wants_element(&Element::External(tcp(BALANCED))));
}

#[test]
fn an_address_that_is_listed_twice_is_served_once() {
    let twice = Service {
        external_ips: ips(&["198.51.100.1", "198.51.100.1"]),
        load_balancer_ips: ips(&["198.51.100.1"]),
        ..exposed("web")
    };
    let state = state_of_one(twice);
    assert_eq!(virtual_servers(&state), ["TCP 10.96.0.1:80", "TCP 198.51.100.1:80"]);
    assert_eq!(state.conflicts().count(), 0);
}

#[test]
fn an_external_ip_that_is_the_service_s_own_cluster_ip_counts_as_cluster_ip() {
    let state = state_of_one(Service {
        external_ips: ips(&["10.96.0.1"]),
        external_traffic_policy: TrafficPolicy::Local,
        ..service("web", "10.96.0.1")
    });
    assert_eq!(real_servers(&state, CLUSTER_IP), ["10.1.0.1:8080", "10.1.0.2:8080"]);
    assert!(state.wants_element(&Element::ClusterIp(tcp(CLUSTER_IP))));
    assert!(!state.wants_element(&Element::External(tcp(CLUSTER_IP))));
    assert!(state.wants_vip(&ip("10.96.0.1")));
}

#[test]
fn an_address_that_comes_or_goes_touches_its_own_keys() {
    let web = exposed("web");
    let mut state = state_of_one(web.clone());
    let touched =
        state.apply(Change::Services(Event::Apply(Service { load_balancer_ips: Vec::new(), ..web.clone() })));
    assert_eq!(touched.virtual_servers, [tcp(BALANCED)].into());
    assert_eq!(touched.vips, [ip("203.0.113.1")].into());
    assert_eq!(touched.elements, [Element::Vip(ip("203.0.113.1")), Element::External(tcp(BALANCED))].into());
    assert_eq!(state.apply(Change::Services(Event::Apply(web))), touched);
}

#[test]
fn everything_about_an_urgent_service_is_urgent() {
    let dns = Service {
        ports: vec![with_node_port(port("dns", Protocol::Udp, 53), 30053)],
        ..exposed("kube-system/dns")
    };
    let mut state = state_of(&[dns], &[]);
    state.apply(node_addresses(&["192.0.2.1"]));
    for at in ["10.96.0.1:53", "198.51.100.1:53", "203.0.113.1:53", "192.0.2.1:30053"] {
        // The element of a NodePort, which no VIP keeps shut, must not come after its virtual server.
        let at = udp(at);
        assert_eq!(state.urgency(&at.ip), Urgency::First, "{at}");
    }
}
