//! Which clients may reach a load balancer's address.

use std::net::IpAddr;

use crate::common::*;
use ipnet::IpNet;
use ipvs::Protocol;
use netfilter::Element;
use proptest::{collection::vec, prelude::*};
use service::{Change, DesiredVirtualServer, Event, Node, Service, ServiceKind, State};

const BALANCED: &str = "203.0.113.1:80";
const BALANCED_V6: &str = "[2001:db8::1]:80";

fn ranges(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// A dual-stack Service with load-balancer addresses for these clients only.
fn restricted(text: &str, source_ranges: &[&str]) -> Service {
    Service {
        kind: ServiceKind::LoadBalancer,
        cluster_ips: ips(&["10.96.0.1", "fd00::1"]),
        load_balancer_ips: ips(&["203.0.113.1", "2001:db8::1"]),
        load_balancer_source_ranges: Some(ranges(source_ranges)),
        ..service(text, "10.96.0.1")
    }
}

fn node_ips(texts: &[&str]) -> Change {
    Change::Node(Some(Node { ips: ips(texts), ..Node::default() }))
}

/// The clients that may reach an address, as text.
fn clients(state: &State, at: &str) -> String {
    let server = state.virtual_server(&tcp(at)).unwrap_or_else(|| panic!("no virtual server at {at}"));
    match server.allowed_sources.as_deref() {
        None => "everybody".to_owned(),
        Some([]) => "no client".to_owned(),
        Some(sources) => {
            let texts = sources.iter().map(|source| format!("{}-{}", source.first, source.last));
            texts.collect::<Vec<_>>().join(", ")
        }
    }
}

/// Those of a Service alone, at its IPv4 and its IPv6 address.
fn both(source_ranges: &[&str]) -> [String; 2] {
    clients_of_both(&state_of(&[restricted("web", source_ranges)], &[]))
}

fn clients_of_both(state: &State) -> [String; 2] {
    [BALANCED, BALANCED_V6].map(|at| clients(state, at))
}

fn lets_in(server: &DesiredVirtualServer, client: IpAddr) -> bool {
    let inside = |all: &[netfilter::AllowedSource]| {
        all.iter().any(|source| source.first <= client && client <= source.last)
    };
    server.allowed_sources.as_deref().is_none_or(inside)
}

#[test]
fn clients_in_a_range_of_the_addresss_family_are_let_in() {
    assert_eq!(
        both(&["198.51.100.0/24", "2001:db8:1::/48", "192.0.2.7/32"]),
        [
            "192.0.2.7-192.0.2.7, 198.51.100.0-198.51.100.255",
            "2001:db8:1::-2001:db8:1:ffff:ffff:ffff:ffff:ffff",
        ]
    );
}

#[test]
fn a_service_without_ranges_lets_everybody_in() {
    let open = Service { load_balancer_source_ranges: None, ..restricted("web", &[]) };
    let state = state_of(&[open], &[]);
    assert_eq!(clients_of_both(&state), ["everybody", "everybody"]);
    assert!(state.elements().all(|element| !matches!(element, Element::Restricted(_))));
}

#[test]
fn unreadable_source_ranges_let_no_client_in() {
    assert_eq!(both(&[]), ["no client", "no client"]);
}

#[test]
fn a_range_of_all_addresses_opens_its_own_family() {
    assert_eq!(
        both(&["0.0.0.0/0", "10.0.0.0/8", "2001:db8::7/128"]),
        ["everybody", "2001:db8::7-2001:db8::7"]
    );
    assert_eq!(both(&["10.0.0.0/8", "::/0"]), ["10.0.0.0-10.255.255.255", "everybody"]);
}

#[test]
fn ranges_of_one_family_leave_the_other_open() {
    assert_eq!(both(&["10.0.0.0/8"]), ["10.0.0.0-10.255.255.255", "everybody"]);
    assert_eq!(both(&["2001:db8::/127"]), ["everybody", "2001:db8::-2001:db8::1"]);
}

#[test]
fn ranges_that_overlap_or_repeat_become_one() {
    assert_eq!(
        both(&["10.1.0.0/16", "10.0.0.0/8", "10.9.9.9/8", "192.0.2.0/24", "192.0.2.0/24", "192.0.2.1/32"])[0],
        "10.0.0.0-10.255.255.255, 192.0.2.0-192.0.2.255"
    );
}

#[test]
fn ranges_with_no_gap_between_them_become_one() {
    assert_eq!(
        both(&[
            "10.0.0.2/32",
            "10.0.0.0/31",
            "10.0.0.3/32",
            "10.0.0.5/32",
            "255.255.255.255/32",
            "255.255.255.254/32",
            "2001:db8:1::/49",
            "2001:db8:1:8000::/49",
            "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128",
        ]),
        [
            "10.0.0.0-10.0.0.3, 10.0.0.5-10.0.0.5, 255.255.255.254-255.255.255.255",
            "2001:db8:1::-2001:db8:1:ffff:ffff:ffff:ffff:ffff, \
             ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        ]
    );
}

#[test]
fn a_node_inside_a_range_reaches_the_address_from_the_address_itself() {
    const OTHERS: &str = "192.0.2.0-192.0.2.255";
    const OTHERS_AND_ITSELF: &str = "192.0.2.0-192.0.2.255, 203.0.113.1-203.0.113.1";
    let mut state = state_of(&[restricted("web", &["192.0.2.0/24", "fd00::/8"])], &[]);
    for (node, expected) in [
        (&["192.0.2.9"][..], OTHERS_AND_ITSELF),
        (&["198.51.100.9", "2001:db8:2::9"], OTHERS),
        // Any of its addresses will do.
        (&["198.51.100.9", "192.0.2.9"], OTHERS_AND_ITSELF),
        // One of the other family will not.
        (&["198.51.100.9", "fd00::9"], OTHERS),
    ] {
        let before = clients(&state, BALANCED);
        let touched = state.apply(node_ips(node));
        assert_eq!(clients(&state, BALANCED), expected, "{node:?}");
        assert_eq!(touched.virtual_servers.contains(&tcp(BALANCED)), before != expected, "{node:?}");
    }
    assert_eq!(
        clients(&state, BALANCED_V6),
        "2001:db8::1-2001:db8::1, fd00::-fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
    );
}

#[test]
fn no_node_reaches_an_address_that_is_closed_to_all() {
    let mut state = state_of(&[restricted("web", &[])], &[]);
    state.apply(node_ips(&["192.0.2.9", "fd00::9"]));
    assert_eq!(clients_of_both(&state), ["no client", "no client"]);
}

#[test]
fn no_other_address_of_the_service_is_restricted() {
    let everything = Service {
        external_ips: ips(&["198.51.100.1"]),
        ports: vec![with_node_port(port("", Protocol::Tcp, 80), 30080)],
        ..restricted("web", &["10.0.0.0/8"])
    };
    let mut state = state_of(&[everything], &[]);
    state.apply(node_addresses(&["192.0.2.1"]));
    for open in ["10.96.0.1:80", "198.51.100.1:80", "192.0.2.1:30080"] {
        assert_eq!(clients(&state, open), "everybody", "{open}");
    }
    assert_eq!(clients(&state, BALANCED), "10.0.0.0-10.255.255.255");
}

#[test]
fn an_external_ip_that_is_the_load_balancers_address_too_is_restricted() {
    let twice = Service { external_ips: ips(&["203.0.113.1"]), ..restricted("web", &["10.0.0.0/8"]) };
    assert_eq!(clients(&state_of(&[twice], &[]), BALANCED), "10.0.0.0-10.255.255.255");
}

#[test]
fn an_older_services_external_ip_does_not_open_a_load_balancers_address() {
    let thief =
        Service { created: None, external_ips: ips(&["203.0.113.1"]), ..service("thief", "10.96.0.2") };
    let state = state_of(&[thief, restricted("web", &["10.0.0.0/8"])], &[]);
    assert_eq!(owner(&state, tcp(BALANCED)), "default/web");
    assert_eq!(clients(&state, BALANCED), "10.0.0.0-10.255.255.255");
}

#[test]
fn two_services_at_one_address_have_each_their_own_ranges() {
    let other = Service {
        cluster_ips: ips(&["10.96.0.2"]),
        ports: vec![port("", Protocol::Tcp, 443)],
        ..restricted("other", &["192.0.2.0/24"])
    };
    let open = Service {
        cluster_ips: ips(&["10.96.0.3"]),
        ports: vec![port("", Protocol::Tcp, 8080)],
        load_balancer_source_ranges: None,
        ..restricted("open", &[])
    };
    let mut state = state_of(&[restricted("web", &["10.0.0.0/8"]), other, open], &[]);
    assert_eq!(clients(&state, "203.0.113.1:443"), "192.0.2.0-192.0.2.255");
    assert_eq!(clients(&state, "203.0.113.1:8080"), "everybody");
    assert_eq!(clients(&state, BALANCED), "10.0.0.0-10.255.255.255");

    let touched = state.apply(Change::Services(Event::Apply(restricted("web", &["10.0.0.0/9"]))));
    assert!(touched.elements.iter().all(|element| element.virtual_server() == Some(&tcp(BALANCED))));
    assert_eq!(clients(&state, BALANCED), "10.0.0.0-10.127.255.255");
    assert_eq!(clients(&state, "203.0.113.1:443"), "192.0.2.0-192.0.2.255");
}

#[test]
fn a_restricted_address_is_in_the_sets_with_its_clients() {
    let web = restricted("web", &["10.0.0.0/8", "192.0.2.1/32"]);
    let mut state = state_of(&[Service { cluster_ips: ips(&["10.96.0.1"]), ..web.clone() }], &[]);
    assert_eq!(
        elements(&state),
        [
            "allowed-sources TCP 203.0.113.1:80 from 10.0.0.0-10.255.255.255",
            "allowed-sources TCP 203.0.113.1:80 from 192.0.2.1-192.0.2.1",
            "cluster-ips TCP 10.96.0.1:80",
            "external TCP 203.0.113.1:80",
            "restricted TCP 203.0.113.1:80",
        ]
    );

    let touched = state.apply(Change::Services(Event::Apply(Service {
        cluster_ips: ips(&["10.96.0.1"]),
        load_balancer_source_ranges: Some(ranges(&["10.0.0.0/8", "192.0.2.0/24"])),
        ..web
    })));
    let changed: Vec<String> = touched.elements.iter().map(ToString::to_string).collect();
    assert_eq!(
        changed,
        [
            "allowed-sources TCP 203.0.113.1:80 from 192.0.2.0-192.0.2.255",
            "allowed-sources TCP 203.0.113.1:80 from 192.0.2.1-192.0.2.1",
        ],
        "what stays is not touched"
    );
    assert_eq!(touched.virtual_servers, [tcp(BALANCED)].into());
    assert!(touched.vips.is_empty());
}

/// A range, of any length, around an address that others are likely to be near.
fn any_range() -> impl Strategy<Value = IpNet> {
    let v4 = (any_near(), 0..=32_u8).prop_map(|(host, bits)| (IpAddr::V4(host.into()), bits));
    let v6 = (any_near(), 0..=128_u8).prop_map(|(host, bits)| (IpAddr::V6(u128::from(host).into()), bits));
    prop_oneof![v4, v6].prop_map(|(ip, bits)| IpNet::new(ip, bits).unwrap())
}

/// At the ends of the range of addresses, and in between.
fn any_near() -> impl Strategy<Value = u32> {
    prop_oneof![0..16_u32, u32::MAX - 16..=u32::MAX, any::<u32>()]
}

fn any_client() -> impl Strategy<Value = IpAddr> {
    let v4 = any_near().prop_map(|host| IpAddr::V4(host.into()));
    let v6 = any_near().prop_map(|host| IpAddr::V6(u128::from(host).into()));
    let last = Just(IpAddr::V6(u128::MAX.into()));
    prop_oneof![4 => v4, 4 => v6, 1 => last]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_client_is_let_in_exactly_if_it_is_in_one_of_the_ranges(
        ranges in vec(any_range(), 1..8), clients in vec(any_client(), 1..32)
    ) {
        let web = Service { load_balancer_source_ranges: Some(ranges.clone()), ..restricted("web", &[]) };
        let state = state_of(&[web], &[]);
        for client in clients {
            let at = if client.is_ipv4() { BALANCED } else { BALANCED_V6 };
            let server = state.virtual_server(&tcp(at)).unwrap();
            let mut of_family = ranges.iter().filter(|range| range.addr().is_ipv4() == client.is_ipv4()).peekable();
            let expected = of_family.peek().is_none() || of_family.any(|range| range.contains(&client));
            prop_assert_eq!(lets_in(server, client), expected, "{} at {}: {:?}", client, at, ranges);
        }
    }
}
