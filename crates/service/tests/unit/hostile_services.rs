//! Services that ask for what is not theirs: they get the rest, and no other Service loses anything.

use std::{collections::BTreeSet, net::IpAddr, num::NonZero, sync::Arc};

use crate::common::*;
use ipnet::IpNet;
use ipvs::{Family, Protocol, Scheduler, ServiceFlags};
use netfilter::AllowedSource;
use proptest::{collection::vec, option, prelude::*, sample::select};
use rustc_hash::FxHashSet;
use service::{
    AddressKind, Balancing, Change, Endpoint, EndpointSlice, Event, ExternalIps, Node, ObjectName, Options,
    Service, ServiceKind, ServicePort, SpecialAddress, State, TrafficPolicy, Weight, Weights,
};

const NODE_IPS: [&str; 2] = ["192.0.2.1", "2001:db8:2::1"];

/// The victims: what the node needs, and any other.
fn honest() -> Vec<Service> {
    let kubernetes = Service { ports: vec![port("https", Protocol::Tcp, 443)], ..dual("kubernetes", 1) };
    let dns = Service { ports: vec![port("dns", Protocol::Udp, 53)], ..dual("kube-system/dns", 2) };
    let web = Service {
        kind: ServiceKind::LoadBalancer,
        external_ips: ips(&["203.0.113.3"]),
        load_balancer_ips: ips(&["198.51.100.3"]),
        ports: vec![with_node_port(port("", Protocol::Tcp, 80), 30_003)],
        ..dual("web", 3)
    };
    vec![kubernetes, dns, web]
}

fn dual(text: &str, number: u8) -> Service {
    Service {
        cluster_ips: ips(&[&format!("10.96.0.{number}"), &format!("fd00::{number}")]),
        ..service(text, "10.96.0.1")
    }
}

/// One that asks for these external IPs, in both families and at a port of their own.
fn asking_for(external_ips: &[&str]) -> Service {
    Service {
        external_ips: ips(external_ips),
        ports: vec![port("", Protocol::Tcp, 9443)],
        ..dual("thief", 9)
    }
}

/// The same of a load balancer's addresses.
fn balanced_at(load_balancer_ips: &[&str]) -> Service {
    Service { external_ips: Vec::new(), load_balancer_ips: ips(load_balancer_ips), ..asking_for(&[]) }
}

fn this_node() -> Change {
    Change::Node(Some(Node { ips: ips(&NODE_IPS), ..Node::default() }))
}

/// The hostile changes, in this order, after the victims are there.
fn state_after(options: Options, changes: impl IntoIterator<Item = Change>) -> State {
    let mut state = state_with(options, &honest(), &[]);
    state.apply(this_node());
    state.apply(node_addresses(&NODE_IPS));
    for change in changes {
        state.apply(change);
    }
    state
}

fn with(service: Service) -> State {
    state_after(options(), [Change::Services(Event::Apply(service))])
}

/// What is refused, as text.
fn refused(state: &State) -> Vec<String> {
    let of_service = |(service, all): (_, &[service::RefusedAddress])| {
        all.iter().map(|refused| format!("{service}: {refused}")).collect::<Vec<_>>()
    };
    state.reports().refused().flat_map(of_service).collect()
}

/// Where the Service that asks is served.
fn served(state: &State) -> Vec<String> {
    let thief = name("thief");
    let addresses = state.desired(&thief).unwrap().virtual_servers.iter().map(|server| server.address);
    addresses.filter(|at| state.owner(at) == Some(&thief)).map(|at| at.to_string()).collect()
}

#[test]
fn special_addresses_are_refused_in_every_field_and_the_rest_is_served() {
    let special = [
        "0.0.0.0",
        "127.0.0.1",
        "169.254.169.254",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "ff02::1",
    ];
    let all = [&special[..], &["203.0.113.9"]].concat();
    for (service, field) in
        [(asking_for(&all), "spec.externalIPs"), (balanced_at(&all), "status.loadBalancer.ingress")]
    {
        let state = with(service);
        assert_eq!(served(&state), ["TCP 10.96.0.9:9443", "TCP 203.0.113.9:9443", "TCP [fd00::9]:9443"]);
        assert!(special.iter().all(|address| !state.wants_vip(&ip(address))));
        let reported = refused(&state);
        assert_eq!(reported.len(), special.len(), "{reported:?}");
        let metadata = "169.254.169.254 is not served: it is a link-local address";
        assert!(reported.contains(&format!("default/thief: {field}: {metadata}")), "{reported:?}");
    }
}

#[test]
fn no_range_allows_a_special_address_or_a_cluster_ip() {
    let thief = asking_for(&["127.0.0.1", "10.96.0.1", "ff02::1", "fd00::2"]);
    let state = state_after(allowing(&["0.0.0.0/0", "::/0"]), [Change::Services(Event::Apply(thief))]);
    assert_eq!(served(&state), ["TCP 10.96.0.9:9443", "TCP [fd00::9]:9443"]);
    assert_eq!(refused(&state).len(), 4);
}

#[test]
fn another_services_cluster_ip_is_refused_at_every_port_in_every_field() {
    for (service, field) in [
        (asking_for(&["10.96.0.1", "fd00::1"]), "spec.externalIPs"),
        (balanced_at(&["10.96.0.1", "fd00::1"]), "status.loadBalancer.ingress"),
    ] {
        let state = with(service);
        assert_eq!(served(&state), ["TCP 10.96.0.9:9443", "TCP [fd00::9]:9443"]);
        assert_eq!(
            refused(&state),
            [
                format!("default/thief: {field}: 10.96.0.1 is not served: it is another Service's ClusterIP"),
                format!("default/thief: {field}: fd00::1 is not served: it is another Service's ClusterIP"),
            ]
        );
    }
}

#[test]
fn an_address_is_refused_from_when_it_becomes_a_cluster_ip_until_it_is_none() {
    let mut state = with(asking_for(&["10.96.0.77"]));
    let at = tcp("10.96.0.77:9443");
    for (change, is_served) in [
        (Change::Services(Event::Apply(service("new", "10.96.0.77"))), false),
        (Change::Services(Event::Apply(service("another", "10.96.0.77"))), false),
        (Change::Services(Event::Delete(name("new"))), false),
        (Change::Services(Event::Apply(service("another", "10.96.0.78"))), true),
    ] {
        state.apply(change);
        assert_eq!(state.virtual_server(&at).is_some(), is_served);
        assert_eq!(refused(&state).is_empty(), is_served);
    }
}

#[test]
fn a_services_own_cluster_ip_is_not_refused() {
    let state = with(asking_for(&["10.96.0.9"]));
    assert_eq!(served(&state), ["TCP 10.96.0.9:9443", "TCP [fd00::9]:9443"]);
    assert_eq!(refused(&state), [""; 0]);
}

#[test]
fn a_nodes_ip_is_refused_as_external_ip_unless_a_range_allows_it() {
    let change = Change::Services(Event::Apply(asking_for(&NODE_IPS)));
    let state = state_after(options(), [change.clone()]);
    assert_eq!(served(&state), ["TCP 10.96.0.9:9443", "TCP [fd00::9]:9443"]);
    assert_eq!(
        refused(&state)[0],
        "default/thief: spec.externalIPs: 192.0.2.1 is not served: \
         it is a node's IP, which --external-ip-policy does not allow"
    );

    let state = state_after(allowing(&["192.0.2.0/24", "2001:db8:2::/64"]), [change]);
    assert_eq!(
        served(&state),
        ["TCP 10.96.0.9:9443", "TCP 192.0.2.1:9443", "TCP [2001:db8:2::1]:9443", "TCP [fd00::9]:9443"]
    );
    assert!(!state.wants_vip(&ip("192.0.2.1")), "the node has it");
}

#[test]
fn a_load_balancer_that_has_the_nodes_ip_is_served_there() {
    let state = with(balanced_at(&["192.0.2.1"]));
    assert_eq!(served(&state), ["TCP 10.96.0.9:9443", "TCP 192.0.2.1:9443", "TCP [fd00::9]:9443"]);
    assert_eq!(refused(&state), [""; 0]);
}

#[test]
fn an_address_that_floats_between_nodes_is_served_though_an_interface_has_it() {
    let state = state_after(
        options(),
        [
            node_addresses(&["192.0.2.1", "203.0.113.9"]),
            Change::Services(Event::Apply(asking_for(&["203.0.113.9"]))),
        ],
    );
    assert_eq!(served(&state), ["TCP 10.96.0.9:9443", "TCP 203.0.113.9:9443", "TCP [fd00::9]:9443"]);
}

#[test]
fn a_new_node_ip_is_refused_from_then_on_and_one_that_the_node_had_is_not() {
    let mut state = with(asking_for(&["192.0.2.1", "192.0.2.2"]));
    let served_at = |state: &State| {
        ["192.0.2.1:9443", "192.0.2.2:9443"].map(|at| state.virtual_server(&tcp(at)).is_some())
    };
    assert_eq!(served_at(&state), [false, true]);
    let touched = state.apply(Change::Node(Some(Node { ips: ips(&["192.0.2.2"]), ..Node::default() })));
    assert_eq!(served_at(&state), [true, false]);
    assert_eq!(touched.virtual_servers, [tcp("192.0.2.1:9443"), tcp("192.0.2.2:9443")].into());
    assert!(touched.reports);
}

#[test]
fn allowed_ranges_limit_external_ips_and_not_load_balancer_addresses() {
    let thief =
        Service { load_balancer_ips: ips(&["198.51.100.9"]), ..asking_for(&["203.0.113.9", "198.18.0.9"]) };
    let state = state_after(allowing(&["203.0.113.0/24"]), [Change::Services(Event::Apply(thief))]);
    assert_eq!(
        served(&state),
        ["TCP 10.96.0.9:9443", "TCP 198.51.100.9:9443", "TCP 203.0.113.9:9443", "TCP [fd00::9]:9443"]
    );
    assert_eq!(
        refused(&state),
        ["default/thief: spec.externalIPs: 198.18.0.9 is not served: it is not in --external-ip-policy"]
    );
}

#[test]
fn addresses_of_an_unserved_family_or_service_are_not_reported() {
    let single = Service { cluster_ips: ips(&["10.96.0.9"]), ..asking_for(&["::1"]) };
    let others = Service { other_proxy: true, ..asking_for(&["127.0.0.1"]) };
    let headless = Service { cluster_ips: Vec::new(), ..asking_for(&["127.0.0.1"]) };
    for service in [single, others, headless] {
        assert_eq!(refused(&with(service)), [""; 0]);
    }
    let off = Options { external_ips: ExternalIps::Off, ..options() };
    let state = state_after(off, [Change::Services(Event::Apply(asking_for(&["127.0.0.1"])))]);
    assert_eq!(refused(&state), [""; 0], "external IPs are switched off");
}

#[test]
fn a_hundred_thousand_source_ranges_are_too_many_and_fewer_cost_what_they_are() {
    // If each were compared with each, in whatever step, this test would take hours.
    const TOO_MANY: u32 = 100_000;
    const MANY: u32 = 4_000;
    // Every other address: nothing can be merged.
    let range = |number: u32| IpNet::from(IpAddr::V4((0x0a00_0000 + 2 * number).into()));
    let hostile = |ranges: u32| Service {
        kind: ServiceKind::LoadBalancer,
        load_balancer_source_ranges: Some((0..ranges).rev().map(range).collect()),
        ..balanced_at(&["203.0.113.9"])
    };
    let at = tcp("203.0.113.9:9443");
    let sources = |state: &State| state.virtual_server(&at).unwrap().allowed_sources.as_ref().unwrap().len();
    let mut state = with(hostile(TOO_MANY));
    assert_eq!(sources(&state), 0);
    let hostile = hostile(MANY);
    state.apply(Change::Services(Event::Apply(hostile.clone())));
    assert_eq!(sources(&state), MANY as usize);

    // One range more is one element more, whatever is there already.
    let ranges = hostile.load_balancer_source_ranges.clone().into_iter().flatten();
    let one_more = Service {
        load_balancer_source_ranges: Some(ranges.chain(["198.18.0.0/24".parse().unwrap()]).collect()),
        ..hostile
    };
    let touched = state.apply(Change::Services(Event::Apply(one_more)));
    let [first, last] = ["198.18.0.0", "198.18.0.255"].map(ip);
    let added = netfilter::Element::AllowedSource(AllowedSource { to: at, first, last });
    assert_eq!(touched.elements, [added].into());
    assert_eq!(sources(&state), MANY as usize + 1);
    assert_eq!(owner(&state, tcp("10.96.0.1:443")), "default/kubernetes");
}

// Every value is possible: the author of a Service chooses these.

fn any_target() -> impl Strategy<Value = IpAddr> {
    let texts = &[
        "0.0.0.0",
        "127.0.0.1",
        "127.9.9.9",
        "169.254.169.254",
        "224.0.0.251",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "ff02::1",
        "192.0.2.1",
        "2001:db8:2::1",
        "10.96.0.1",
        "10.96.0.2",
        "10.96.0.3",
        "fd00::1",
        "fd00::2",
        "203.0.113.3",
        "198.51.100.3",
        "203.0.113.9",
        "2001:db8::9",
    ];
    prop_oneof![9 => select(&texts[..]).prop_map(ip), 1 => any::<IpAddr>()]
}

fn any_targets() -> impl Strategy<Value = Vec<IpAddr>> {
    vec(any_target(), 0..6)
}

fn any_protocol() -> impl Strategy<Value = Protocol> {
    select(&[Protocol::Tcp, Protocol::Udp, Protocol::Sctp][..])
}

/// Never 0: the reader of objects leaves out such a port.
fn any_number() -> impl Strategy<Value = u16> {
    select(&[1, 53, 80, 443, 30_003, 65_535][..])
}

fn any_port() -> impl Strategy<Value = ServicePort> {
    (any_protocol(), any_number(), option::of(any_number())).prop_map(|(protocol, number, node_port)| {
        with_node_port(port("", protocol, number), node_port.unwrap_or_default())
    })
}

/// What of a Service says how its clients are balanced, and who is masqueraded.
#[derive(Clone, Debug)]
struct Manner {
    kind: ServiceKind,
    session_affinity: Option<u32>,
    policies: [TrafficPolicy; 2],
    health_check_node_port: Option<NonZero<u16>>,
    balancing: Option<Balancing>,
}

fn any_manner() -> impl Strategy<Value = Manner> {
    let kind = select(&[ServiceKind::ClusterIp, ServiceKind::NodePort, ServiceKind::LoadBalancer][..]);
    let policy = || select(&[TrafficPolicy::Cluster, TrafficPolicy::Local][..]);
    let health_check = option::of(any_number().prop_map(|number| NonZero::new(number).unwrap()));
    (kind, option::of(any::<u32>()), [policy(), policy()], health_check, option::of(any_balancing()))
        .prop_map(|(kind, session_affinity, policies, health_check_node_port, balancing)| Manner {
            kind,
            session_affinity,
            policies,
            health_check_node_port,
            balancing,
        })
}

fn any_balancing() -> impl Strategy<Value = Balancing> {
    let scheduler = option::of(select(&[Scheduler::RR, Scheduler::MH, Scheduler::SH, Scheduler::LBLC][..]));
    let flags = option::of(any::<u32>().prop_map(ServiceFlags::from_bits_retain));
    let weights = || {
        vec((select(&[NODE, "node-b", ""][..]).prop_map(Arc::from), any::<Weight>()), 0..3)
            .prop_map(Weights::from_iter)
    };
    let limit = || option::of(any::<NonZero<u32>>());
    (scheduler, flags, weights(), weights(), limit(), limit()).prop_map(
        |(scheduler, scheduler_flags, node_weights, zone_weights, max_connections, resume_below)| Balancing {
            scheduler,
            scheduler_flags,
            node_weights,
            zone_weights,
            max_connections,
            resume_below,
            ..Balancing::default()
        },
    )
}

const HOSTILE: [&str; 3] = ["thief", "mallory", "kube-system/evil"];

/// One of a few, so that they meet each other as well.
fn any_hostile_service() -> impl Strategy<Value = Service> {
    let identity = (select(&HOSTILE[..]), 7..10_u8);
    let source_ranges = option::of(vec(any_target().prop_map(IpNet::from), 0..6));
    (identity, any_targets(), any_targets(), source_ranges, vec(any_port(), 0..6), any_manner()).prop_map(
        |((text, number), external_ips, load_balancer_ips, load_balancer_source_ranges, ports, manner)| {
            let Manner { kind, session_affinity, policies, health_check_node_port, balancing } = manner;
            let [internal_traffic_policy, external_traffic_policy] = policies;
            Service {
                // The API server says when: they cannot pass for older ones.
                created: Some(2_000),
                kind,
                external_ips,
                load_balancer_ips,
                load_balancer_source_ranges,
                ports,
                session_affinity,
                internal_traffic_policy,
                external_traffic_policy,
                health_check_node_port,
                balancing: balancing.map(Box::new),
                ..dual(text, number)
            }
        },
    )
}

/// An endpoint anywhere, and on whatever node it says.
fn any_hostile_endpoint() -> impl Strategy<Value = Endpoint> {
    let name = || option::of(select(&[NODE, "node-b", ""][..]).prop_map(Arc::from));
    let hints = || vec(select(&[NODE, "node-b", "zone-a"][..]).prop_map(Arc::from), 0..2);
    (any_target(), any::<[bool; 3]>(), name(), name(), hints(), hints()).prop_map(
        |(address, [ready, serving, terminating], node, zone, zone_hints, node_hints)| Endpoint {
            address,
            ready,
            serving,
            terminating,
            node,
            zone,
            zone_hints: zone_hints.into(),
            node_hints: node_hints.into(),
        },
    )
}

/// A slice of one of the hostile Services: who may write slices in a namespace may write those of its Services.
fn any_hostile_slice() -> impl Strategy<Value = EndpointSlice> {
    let family = select(&Family::BOTH[..]);
    let port = (any_protocol(), any_number()).prop_map(|(protocol, number)| listening("", protocol, number));
    let endpoints = vec(any_hostile_endpoint(), 0..6);
    let weight = option::of(any::<Weight>());
    (select(&HOSTILE[..]), 1..3_u8, family, vec(port, 0..4), endpoints, weight).prop_map(
        |(of, number, family, ports, endpoints, weight)| EndpointSlice {
            family,
            ports,
            weight,
            ..slice(&format!("{of}-{number}"), of, &endpoints)
        },
    )
}

fn any_hostile_change() -> impl Strategy<Value = Change> {
    prop_oneof![
        2 => any_hostile_service().prop_map(|service| Change::Services(Event::Apply(service))),
        1 => any_hostile_slice().prop_map(|slice| Change::Slices(Event::Apply(slice))),
    ]
}

/// What a change is of: the last one of the same counts.
fn object(change: &Change) -> ObjectName {
    match change {
        Change::Services(Event::Apply(service)) => service.name.clone(),
        Change::Slices(Event::Apply(slice)) => slice.name.clone(),
        _ => ObjectName::new("", ""),
    }
}

fn any_policy() -> impl Strategy<Value = Options> {
    select(vec![options(), allowing(&["0.0.0.0/0", "::/0"]), allowing(&["203.0.113.0/24"])])
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_they_ask_for_nothing_is_served_or_bound_that_is_refused(
        options in any_policy(), hostile in vec(any_hostile_change(), 1..9)
    ) {
        let allows_node_ips = options.external_ips == allowing(&["0.0.0.0/0", "::/0"]).external_ips;
        let allowed: Option<BTreeSet<IpNet>> = match &options.external_ips {
            ExternalIps::In(ranges) => Some(ranges.iter().copied().collect()),
            _ => None,
        };
        let state = state_after(options, hostile);
        let cluster_ips: BTreeSet<IpAddr> = honest().into_iter().flat_map(|service| service.cluster_ips).collect();
        let own: BTreeSet<IpAddr> = NODE_IPS.map(ip).into();
        for server in state.virtual_servers() {
            let at = server.address;
            prop_assert_eq!(SpecialAddress::from_ip(at.ip), None, "{}", at);
            if server.kind != AddressKind::ClusterIp {
                prop_assert!(!cluster_ips.contains(&at.ip), "{}", at);
            }
            if server.kind == AddressKind::ExternalIp {
                prop_assert!(allows_node_ips || !own.contains(&at.ip), "{}", at);
                let is_allowed = |ranges: &BTreeSet<IpNet>| ranges.iter().any(|range| range.contains(&at.ip));
                prop_assert!(allowed.as_ref().is_none_or(is_allowed), "{} is in none of {:?}", at, allowed);
            }
        }
        for vip in state.vips() {
            prop_assert_eq!(SpecialAddress::from_ip(*vip), None, "{}", vip);
        }
    }

    #[test]
    fn whatever_they_ask_for_others_are_served_as_if_they_were_not_there(
        hostile in vec(any_hostile_change(), 1..9)
    ) {
        let alone = state_after(options(), []);
        let together = state_after(options(), hostile);
        for server in alone.virtual_servers() {
            // A load balancer's address goes before an external IP, and theirs can be any.
            if server.kind != AddressKind::ExternalIp {
                prop_assert_eq!(together.virtual_server(&server.address), Some(server));
                prop_assert_eq!(together.owner(&server.address), alone.owner(&server.address));
            }
        }
        let is_external = |vip: &&IpAddr| {
            let mut servers = alone.virtual_servers().filter(|server| server.address.ip == **vip);
            servers.all(|server| server.kind == AddressKind::ExternalIp)
        };
        prop_assert!(alone.vips().all(|vip| is_external(&vip) || together.wants_vip(vip)));
    }

    #[test]
    fn every_requested_address_is_served_or_reported(hostile in any_hostile_service()) {
        let state = with(Service { ports: vec![port("", Protocol::Tcp, 9443)], ..hostile.clone() });
        let desired = state.desired(&hostile.name).unwrap();
        let is_refused = |kind, ip| desired.refused().iter().any(|refused| refused.kind == kind && refused.ip == ip);
        let served = |ip| desired.virtual_servers.iter().any(|server| server.address.ip == ip);
        for ip in &hostile.load_balancer_ips {
            prop_assert!(served(*ip) != is_refused(AddressKind::LoadBalancer, *ip), "{}", ip);
        }
        for ip in &hostile.external_ips {
            // A node's IP can be served as a load balancer's.
            let balanced = hostile.load_balancer_ips.contains(ip);
            prop_assert!(balanced || served(*ip) != is_refused(AddressKind::ExternalIp, *ip), "{}", ip);
        }
    }

    #[test]
    fn in_whatever_order_they_come_the_same_is_served_and_refused(
        options in any_policy(),
        (one, other) in vec(any_hostile_change(), 1..9).prop_flat_map(|hostile| {
            // The last of a name counts, so each name comes once.
            let mut names = BTreeSet::new();
            let all = hostile.into_iter().chain(honest().into_iter().map(|service| Change::Services(Event::Apply(service))));
            let once = all.filter(|change| names.insert(object(change)));
            let changes: Vec<_> = once.chain([this_node(), node_addresses(&NODE_IPS)]).collect();
            (Just(changes.clone()), Just(changes).prop_shuffle())
        })
    ) {
        let slices = one.iter().filter(|change| matches!(change, Change::Slices(Event::Apply(_))));
        let changed_slices: FxHashSet<_> = slices.map(object).collect();
        let reported = |changes: Vec<Change>| {
            let mut state = State::new(options.clone());
            for change in changes {
                state.apply(change);
            }
            state.apply(Change::Slices(Event::InitDone(changed_slices.clone())));
            wanted(&state)
        };
        let reported_one = reported(one);
        prop_assert!(!reported_one.virtual_servers.is_empty());
        prop_assert_eq!(reported_one, reported(other));
    }
}
