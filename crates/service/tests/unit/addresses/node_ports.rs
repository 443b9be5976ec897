//! NodePorts, and at which of the node's addresses they are served.

use std::net::SocketAddr;

use crate::common::*;
use ipvs::{Protocol, ServiceFlags};
use netfilter::Element;
use service::{
    Change, EndpointSlice, Event, Node, NodePortAddresses, Options, Service, ServiceKind, State,
    TrafficPolicy,
};

const ADDRESSES: [&str; 4] = ["10.0.0.1", "192.0.2.1", "2001:db8::1", "fd99::1"];

fn node_port_service(text: &str, cluster_ips: &[&str], number: u16) -> Service {
    Service {
        kind: ServiceKind::NodePort,
        cluster_ips: ips(cluster_ips),
        ports: vec![with_node_port(port("", Protocol::Tcp, 80), number)],
        ..service(text, "10.96.0.1")
    }
}

/// A NodePort Service of one family, on a node with two addresses of it.
fn single_stack() -> State {
    let web = node_port_service("web", &["10.96.0.1"], 30080);
    let mut state =
        state_of(&[web], &[slice("web-1", "web", &[ready("10.1.0.1"), ready("10.1.0.2").here()])]);
    state.apply(node_addresses(&ADDRESSES));
    state
}

/// Where the NodePort of a dual-stack Service is served with these options, on a node with these IPs.
fn served(options: Options, node_ips: &[&str]) -> Vec<String> {
    let web = node_port_service("web", &["10.96.0.1", "fd00::1"], 30080);
    let mut state = state_with(options, &[web], &[]);
    state.apply(Change::Node(Some(Node { ips: ips(node_ips), ..Node::default() })));
    state.apply(node_addresses(&ADDRESSES));
    let servers = virtual_servers(&state);
    let node_ports: Vec<String> = servers.iter().filter(|at| at.ends_with(":30080")).cloned().collect();
    let expected: Vec<String> =
        state.node_port_addresses().iter().map(|ip| format!("TCP {}", SocketAddr::new(*ip, 30080))).collect();
    assert_eq!(node_ports, expected, "State::node_port_addresses");
    node_ports
}

fn ranges(ranges: &[&str]) -> Options {
    Options { node_port_addresses: in_ranges(ranges), ..options() }
}

fn primary(bind_address: Option<&str>) -> Options {
    Options {
        node_port_addresses: NodePortAddresses { primary: true, ranges: Vec::new() },
        bind_address: bind_address.map(ip),
        ..options()
    }
}

const ALL_V6: [&str; 2] = ["TCP [2001:db8::1]:30080", "TCP [fd99::1]:30080"];

#[test]
fn a_node_port_is_served_at_every_address_of_the_node() {
    let state = single_stack();
    assert_eq!(virtual_servers(&state), ["TCP 10.0.0.1:30080", "TCP 10.96.0.1:80", "TCP 192.0.2.1:30080"]);
    for at in ["10.0.0.1:30080", "192.0.2.1:30080"] {
        assert_eq!(real_servers(&state, at), ["10.1.0.1:8080", "10.1.0.2:8080"]);
    }
}

#[test]
fn the_node_s_own_addresses_are_never_bound() {
    assert_eq!(vips(&single_stack()), ["10.96.0.1"]);
}

#[test]
fn what_comes_in_there_is_masqueraded_whatever_its_source() {
    assert_eq!(
        elements(&single_stack()),
        [
            "cluster-ips TCP 10.96.0.1:80",
            "external TCP 10.0.0.1:30080",
            "external TCP 192.0.2.1:30080",
            "hairpin TCP 10.1.0.2:8080",
        ]
    );
}

#[test]
fn every_protocol_has_node_ports() {
    let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let web = Service {
        ports: protocols.map(|protocol| with_node_port(port("", protocol, 80), 30080)).into(),
        ..node_port_service("web", &["10.96.0.1"], 1)
    };
    let serves = EndpointSlice {
        ports: protocols.map(|protocol| listening("", protocol, 8080)).into(),
        ..slice("web-1", "web", &[ready("10.1.0.1")])
    };
    let mut state = state_of(&[web], &[serves]);
    state.apply(node_addresses(&["192.0.2.1"]));
    for protocol in protocols {
        assert_eq!(real_servers_of(&state, address(protocol, "192.0.2.1:30080")), ["10.1.0.1:8080"]);
    }
}

#[test]
fn session_affinity_holds_at_node_ports_too() {
    let mut state = single_stack();
    let web = node_port_service("web", &["10.96.0.1"], 30080);
    state.apply(Change::Services(Event::Apply(Service { session_affinity: Some(60), ..web })));
    let config = config(&state, "192.0.2.1:30080");
    assert_eq!((config.flags, config.timeout), (ServiceFlags::PERSISTENT, 60));
}

#[test]
fn a_node_whose_addresses_are_not_known_serves_no_node_port() {
    let state = state_of(&[node_port_service("web", &["10.96.0.1"], 30080)], &[]);
    assert_eq!(virtual_servers(&state), ["TCP 10.96.0.1:80"]);
}

#[test]
fn a_new_address_of_the_node_is_served_and_a_lost_one_is_not() {
    let mut state = single_stack();
    let touched = state.apply(node_addresses(&["10.0.0.1", "192.0.2.2"]));
    assert_eq!(virtual_servers(&state), ["TCP 10.0.0.1:30080", "TCP 10.96.0.1:80", "TCP 192.0.2.2:30080"]);
    let (lost, new) = (tcp("192.0.2.1:30080"), tcp("192.0.2.2:30080"));
    assert_eq!(touched.virtual_servers, [lost, new].into());
    assert_eq!(touched.elements, [Element::External(lost), Element::External(new)].into());
    assert!(touched.vips.is_empty());
}

#[test]
fn an_address_that_went_a_moment_ago_is_served_until_it_is_lost_for_good() {
    let mut state = single_stack();
    let both = virtual_servers(&state);
    let rest: Vec<_> = ADDRESSES.into_iter().filter(|address| *address != "192.0.2.1").collect();
    let went =
        Change::NodeAddresses { here: ips(&rest).into_iter().collect(), lost: [ip("192.0.2.1")].into() };
    assert!(state.apply(went.clone()).is_empty());
    assert_eq!(virtual_servers(&state), both);
    assert!(!state.node_port_addresses().contains(&ip("192.0.2.1")), "it is the node's no more");
    assert!(state.apply(node_addresses(&ADDRESSES)).is_empty(), "it is back");

    assert!(state.apply(went).is_empty());
    let touched = state.apply(node_addresses(&rest));
    assert_eq!(virtual_servers(&state), ["TCP 10.0.0.1:30080", "TCP 10.96.0.1:80"]);
    assert_eq!(touched.virtual_servers, [tcp("192.0.2.1:30080")].into());
}

#[test]
fn an_address_lost_a_moment_ago_is_not_bound_to_kube_ipvs0_by_other_changes() {
    let mut state = single_stack();
    let rest = ips(&["10.0.0.1"]).into_iter().collect();
    state.apply(Change::NodeAddresses { here: rest, lost: [ip("192.0.2.1")].into() });
    // The Service is looked at anew. Another node may have the address by now.
    let touched = state.apply(Change::Slices(Event::Apply(slice("web-1", "web", &[ready("10.1.0.1")]))));
    assert!(touched.virtual_servers.contains(&tcp("192.0.2.1:30080")));
    assert!(touched.vips.is_empty());
    assert!(!state.wants_vip(&ip("192.0.2.1")));
}

#[test]
fn by_default_all_addresses_are_served() {
    let all = ["TCP 10.0.0.1:30080", "TCP 192.0.2.1:30080", ALL_V6[0], ALL_V6[1]];
    assert_eq!(served(options(), &[]), all);
}

#[test]
fn ranges_narrow_the_addresses() {
    assert_eq!(
        served(ranges(&["10.0.0.0/8", "172.16.0.0/12", "2001:db8::/64"]), &[]),
        ["TCP 10.0.0.1:30080", ALL_V6[0]]
    );
}

#[test]
fn a_family_without_a_range_is_served_at_all_its_addresses() {
    assert_eq!(served(ranges(&["10.0.0.0/8"]), &[]), ["TCP 10.0.0.1:30080", ALL_V6[0], ALL_V6[1]]);
}

#[test]
fn a_range_of_everything_is_every_address_of_its_family() {
    assert_eq!(
        served(ranges(&["10.0.0.0/8", "0.0.0.0/0", "2001:db8::/64"]), &[]),
        ["TCP 10.0.0.1:30080", "TCP 192.0.2.1:30080", ALL_V6[0]]
    );
}

#[test]
fn a_range_in_which_the_node_has_no_address_leaves_the_family_out() {
    assert_eq!(served(ranges(&["172.16.0.0/12", "2001:db8::/64"]), &[]), [ALL_V6[0]]);
}

#[test]
fn primary_is_the_first_node_ip_of_each_family() {
    assert_eq!(
        served(primary(None), &["192.0.2.1", "10.0.0.1", "2001:db8::1", "fd99::1"]),
        ["TCP 192.0.2.1:30080", ALL_V6[0]]
    );
}

#[test]
fn a_family_without_a_primary_address_has_no_node_ports() {
    assert_eq!(served(primary(None), &["192.0.2.1"]), ["TCP 192.0.2.1:30080"]);
    assert!(served(primary(None), &[]).is_empty());
}

#[test]
fn a_node_that_loses_its_ips_keeps_its_primary_addresses() {
    let mut state = State::new(primary(None));
    state.apply(node_addresses(&["192.0.2.1", "192.0.2.2"]));
    state.apply(Change::Node(Some(Node { ips: ips(&["192.0.2.2"]), ..Node::default() })));
    state.apply(Change::Node(Some(Node::default())));
    assert_eq!(state.node_port_addresses(), ips(&["192.0.2.2"]));
}

#[test]
fn the_bind_address_goes_before_the_node_ips_of_its_family() {
    let node_ips = &["192.0.2.1", "2001:db8::1"];
    assert_eq!(served(primary(Some("10.0.0.1")), node_ips), ["TCP 10.0.0.1:30080", ALL_V6[0]]);
    assert_eq!(served(primary(Some("fd99::1")), node_ips), ["TCP 192.0.2.1:30080", ALL_V6[1]]);
    // It means nothing where all addresses are asked for.
    let all = Options { bind_address: Some(ip("10.0.0.1")), ..options() };
    assert_eq!(served(all, node_ips).len(), 4);
}

#[test]
fn a_primary_address_that_no_interface_has_is_not_served() {
    assert_eq!(served(primary(None), &["198.51.100.1", "10.0.0.1", "2001:db8::1"]), [ALL_V6[0]]);
    assert_eq!(served(primary(Some("127.0.0.1")), &["10.0.0.1", "2001:db8::1"]), [ALL_V6[0]]);
}

#[test]
fn primary_beside_ranges_adds_the_node_ips_and_limits_a_family_without_a_range() {
    let options = |asked_for: &[&str]| Options {
        node_port_addresses: NodePortAddresses { primary: true, ..in_ranges(asked_for) },
        ..options()
    };
    let node_ips = &["192.0.2.1", "2001:db8::1"];
    assert_eq!(
        served(options(&["10.0.0.0/8"]), node_ips),
        ["TCP 10.0.0.1:30080", "TCP 192.0.2.1:30080", ALL_V6[0]]
    );
    assert_eq!(served(options(&["fd99::/64"]), &["192.0.2.1"]), ["TCP 192.0.2.1:30080", ALL_V6[1]]);
    assert_eq!(
        served(options(&["10.0.0.0/8"]), &["192.0.2.1"]),
        ["TCP 10.0.0.1:30080", "TCP 192.0.2.1:30080"],
        "without a node IP of the family, none of its addresses"
    );
    assert_eq!(served(options(&["::/0"]), &["192.0.2.1"]), ["TCP 192.0.2.1:30080", ALL_V6[0], ALL_V6[1]]);
}

#[test]
fn loopback_ranges_add_nothing_and_limit_both_families() {
    const LOOPBACK: [&str; 2] = ["127.0.0.0/8", "::1/128"];
    assert!(served(ranges(&LOOPBACK), &["192.0.2.1", "2001:db8::1"]).is_empty());
    let both = Options {
        node_port_addresses: NodePortAddresses { primary: true, ..in_ranges(&LOOPBACK) },
        ..options()
    };
    assert_eq!(served(both, &["192.0.2.1"]), ["TCP 192.0.2.1:30080"]);
    assert_eq!(served(ranges(&["127.0.0.0/8", "::1/128", "10.0.0.0/8"]), &[]), ["TCP 10.0.0.1:30080"]);
}

#[test]
fn that_no_node_port_is_served_is_a_problem_unless_loopback_alone_is_asked_for() {
    let nowhere = |asked_for: &[&str]| {
        let web = node_port_service("web", &["10.96.0.1"], 30080);
        let mut state = state_with(ranges(asked_for), &[web], &[]);
        state.apply(node_addresses(&ADDRESSES));
        state.has_unserved_node_ports()
    };
    assert!(nowhere(&["172.16.0.0/12", "fd77::/64"]));
    assert!(nowhere(&["172.16.0.0/12", "::1/128"]));
    assert!(!nowhere(&["127.0.0.0/8", "::1/128"]));
    assert!(!nowhere(&["127.0.0.1/32"]), "IPv6 is open");
    assert!(!nowhere(&[]));
}

#[test]
fn a_new_primary_address_of_the_node_is_served_instead() {
    let options = primary(None);
    let mut state = state_with(options, &[node_port_service("web", &["10.96.0.1"], 30080)], &[]);
    state.apply(node_addresses(&ADDRESSES));
    state.apply(Change::Node(Some(Node { ips: ips(&["10.0.0.1"]), ..Node::default() })));
    assert_eq!(virtual_servers(&state), ["TCP 10.0.0.1:30080", "TCP 10.96.0.1:80"]);
    state.apply(Change::Node(Some(Node { ips: ips(&["192.0.2.1"]), ..Node::default() })));
    assert_eq!(virtual_servers(&state), ["TCP 10.96.0.1:80", "TCP 192.0.2.1:30080"]);
}

#[test]
fn a_family_without_cluster_ip_has_no_node_ports() {
    let mut state = state_of(&[node_port_service("web", &["fd00::1"], 30080)], &[]);
    state.apply(node_addresses(&ADDRESSES));
    assert_eq!(virtual_servers(&state), [ALL_V6[0], "TCP [fd00::1]:80", ALL_V6[1]]);
}

#[test]
fn a_load_balancer_may_go_without_node_ports() {
    let without = Service {
        kind: ServiceKind::LoadBalancer,
        load_balancer_ips: ips(&["203.0.113.1"]),
        ..service("web", "10.96.0.1")
    };
    let mut state = state_of(&[without], &[]);
    state.apply(node_addresses(&ADDRESSES));
    assert_eq!(virtual_servers(&state), ["TCP 10.96.0.1:80", "TCP 203.0.113.1:80"]);
}

#[test]
fn a_node_port_is_served_whatever_the_type() {
    let odd = Service { kind: ServiceKind::ClusterIp, ..node_port_service("web", &["10.96.0.1"], 30080) };
    let mut state = state_of(&[odd], &[]);
    state.apply(node_addresses(&["192.0.2.1"]));
    assert_eq!(virtual_servers(&state), ["TCP 10.96.0.1:80", "TCP 192.0.2.1:30080"]);
}

#[test]
fn a_new_node_port_replaces_the_old_one() {
    let mut state = single_stack();
    let touched =
        state.apply(Change::Services(Event::Apply(node_port_service("web", &["10.96.0.1"], 30081))));
    assert_eq!(virtual_servers(&state), ["TCP 10.0.0.1:30081", "TCP 10.96.0.1:80", "TCP 192.0.2.1:30081"]);
    assert_eq!(touched.virtual_servers.len(), 4);
    assert!(!touched.virtual_servers.contains(&tcp("10.96.0.1:80")));
}

#[test]
fn the_first_of_two_ports_with_one_node_port_is_served_there() {
    let twice = Service {
        ports: vec![
            with_node_port(port("a", Protocol::Tcp, 80), 30080),
            with_node_port(port("b", Protocol::Tcp, 443), 30080),
        ],
        ..node_port_service("web", &["10.96.0.1"], 1)
    };
    let serves = EndpointSlice {
        ports: vec![listening("b", Protocol::Tcp, 2), listening("a", Protocol::Tcp, 1)],
        ..slice("web-1", "web", &[ready("10.1.0.1").here()])
    };
    let mut state = state_of(&[twice], &[serves]);
    state.apply(node_addresses(&["192.0.2.1"]));
    assert_eq!(real_servers(&state, "192.0.2.1:30080"), ["10.1.0.1:1"]);
    assert_eq!(real_servers(&state, "10.96.0.1:443"), ["10.1.0.1:2"]);
}

#[test]
fn a_node_port_goes_before_the_service_s_own_external_ip() {
    // The node's address is an external IP as well, and the second port has the number of the NodePort.
    let both = Service {
        external_ips: ips(&["192.0.2.1"]),
        ports: vec![with_node_port(port("a", Protocol::Tcp, 80), 30080), port("b", Protocol::Tcp, 30080)],
        ..node_port_service("web", &["10.96.0.1"], 1)
    };
    let serves = EndpointSlice {
        ports: vec![listening("a", Protocol::Tcp, 1), listening("b", Protocol::Tcp, 2)],
        ..slice("web-1", "web", &[ready("10.1.0.1")])
    };
    let mut state = state_of(&[both], &[serves]);
    state.apply(node_addresses(&["192.0.2.1", "192.0.2.2"]));
    assert_eq!(real_servers(&state, "192.0.2.1:30080"), ["10.1.0.1:1"]);
    assert_eq!(real_servers(&state, "192.0.2.1:80"), ["10.1.0.1:1"]);
    assert_eq!(real_servers(&state, "192.0.2.2:30080"), ["10.1.0.1:1"]);
    assert_eq!(vips(&state), ["10.96.0.1"]);
}

#[test]
fn a_cluster_ip_whose_port_is_a_node_port_of_another_service_stays_a_cluster_ip() {
    let other = Service {
        ports: vec![port("", Protocol::Tcp, 30080)],
        internal_traffic_policy: TrafficPolicy::Local,
        ..service("other", "10.96.0.2")
    };
    let mut state = state_of(&[node_port_service("web", &["10.96.0.1"], 30080), other], &[]);
    state.apply(node_addresses(&["192.0.2.1"]));
    let at = tcp("10.96.0.2:30080");
    assert!(state.wants_element(&Element::ClusterIp(at)) && !state.wants_element(&Element::External(at)));
    assert_eq!(owner(&state, at), "default/other");
}
