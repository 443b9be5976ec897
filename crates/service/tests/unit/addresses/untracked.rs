//! Connections of pods that conntrack does not track.

use crate::common::*;
use ipvs::{Family, Protocol};
use service::{
    Balancing, Change, Endpoint, ExternalForwarding, ForwardingMethod, Options, Service, ServiceKind, State,
    TrafficPolicy, UntrackedServices,
};

/// Pods of both families are recognised by ranges, and every Service may be untracked.
fn allowing_all() -> Options {
    let pods = ["10.1.0.0/16", "fd01::/64"].map(|range| range.parse().unwrap());
    Options { untracked_services: UntrackedServices::all(), untracked_pods: pods.into(), ..options() }
}

/// A Service whose annotation asks for that.
fn web() -> Service {
    let balancing = Balancing { conntrack: Some(false), ..Balancing::default() };
    Service { balancing: Some(balancing.into()), ..service("web", "10.96.0.1") }
}

fn dns() -> Service {
    let ports = vec![
        port("dns", Protocol::Udp, 53),
        port("dns-tcp", Protocol::Tcp, 53),
        port("metrics", Protocol::Tcp, 9153),
    ];
    Service { ports, ..service("kube-system/kube-dns", "10.96.0.10") }
}

fn served(options: Options, service: Service, endpoints: &[Endpoint]) -> State {
    let owner = service.name.clone();
    let mut slice = slice("web-1", "web", endpoints);
    slice.ports = service.ports.iter().map(|port| listening(&port.name, port.protocol, 8080)).collect();
    slice.service = owner;
    state_with(options, &[service], &[slice])
}

/// The elements that keep flows from conntrack.
fn untracking(state: &State) -> Vec<String> {
    elements(state).into_iter().filter(|element| element.contains("tracked")).collect()
}

fn problems(state: &State, of: &str) -> Vec<String> {
    let service = state.desired(&name(of)).unwrap();
    service.problems().to_vec()
}

#[test]
fn an_annotated_service_is_untracked_with_its_endpoints_here_and_elsewhere() {
    let state = served(allowing_all(), web(), &[ready("10.1.0.1").here(), unready("10.1.1.1")]);
    assert_eq!(
        untracking(&state),
        [
            "tracked-clients 10.1.0.1",
            "tracked-clients 10.1.1.1",
            "untracked TCP 10.96.0.1:80",
            "untracked-endpoints TCP 10.1.0.1:8080",
            "untracked-endpoints TCP 10.1.1.1:8080",
        ]
    );
    assert_eq!(problems(&state, "web"), [""; 0]);
}

#[test]
fn cluster_dns_is_untracked_without_an_annotation_unless_one_says_otherwise() {
    let only_dns = || Options { untracked_services: UntrackedServices::CLUSTER_DNS, ..allowing_all() };
    let endpoints = [ready("10.1.0.1")];
    assert_eq!(
        untracking(&served(only_dns(), dns(), &endpoints)),
        [
            "tracked-clients 10.1.0.1",
            "untracked TCP 10.96.0.10:53",
            "untracked UDP 10.96.0.10:53",
            "untracked-endpoints TCP 10.1.0.1:8080",
            "untracked-endpoints UDP 10.1.0.1:8080",
        ]
    );
    let on = Balancing { conntrack: Some(true), ..Balancing::default() };
    let tracked = Service { balancing: Some(on.into()), ..dns() };
    assert_eq!(untracking(&served(only_dns(), tracked, &endpoints)), [""; 0]);
    assert_eq!(untracking(&served(options(), dns(), &endpoints)), [""; 0]);
}

#[test]
fn an_annotation_that_the_operator_does_not_allow_is_a_problem() {
    let only_dns = Options { untracked_services: UntrackedServices::CLUSTER_DNS, ..allowing_all() };
    let state = served(only_dns, web(), &[ready("10.1.0.1")]);
    assert_eq!(untracking(&state), [""; 0]);
    assert_eq!(
        problems(&state, "web"),
        [format!(
            "metadata.annotations[kube-ipvs.io/conntrack]: ignored: node {NODE} does not allow annotations to request it \
             (--untracked-services)"
        )]
    );
}

#[test]
fn flows_to_external_addresses_are_tracked() {
    let load_balanced = |external_traffic_policy| Service {
        kind: ServiceKind::LoadBalancer,
        load_balancer_ips: ips(&["203.0.113.20"]),
        external_traffic_policy,
        ..web()
    };
    let untracked = |policy| {
        let state = served(allowing_all(), load_balanced(policy), &[ready("10.1.0.1").here()]);
        let all = state.virtual_servers().filter(|server| server.untracked);
        all.map(|server| server.address.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(untracked(TrafficPolicy::Cluster), ["TCP 10.96.0.1:80"]);
    assert_eq!(
        untracked(TrafficPolicy::Local),
        ["TCP 10.96.0.1:80"],
        "the policy may change while a flow is open"
    );
}

#[test]
fn flows_are_tracked_in_a_family_without_a_range_of_pods() {
    let v4_alone = Options { untracked_pods: vec!["10.1.0.0/16".parse().unwrap()], ..allowing_all() };
    let both = Service { cluster_ips: ips(&["10.96.0.1", "fd96::1"]), ..web() };
    let state = served(v4_alone, both, &[ready("10.1.0.1")]);
    let untracked: Vec<_> =
        state.virtual_servers().map(|it| (Family::from(it.address.ip), it.untracked)).collect();
    assert_eq!(untracked, [(Family::V4, true), (Family::V6, false)]);
    assert_eq!(
        problems(&state, "web"),
        [format!(
            "tracked by conntrack (IPv6): node {NODE} does not know the range of all pods (clusterCIDR), or masquerades \
             them (masqueradeAll), or its kernel cannot leave packets out of conntrack"
        )]
    );
}

#[test]
fn an_endpoint_that_is_not_a_pod_with_an_address_of_its_own_needs_conntrack() {
    let why = |endpoint: &str| {
        format!(
            "tracked by conntrack (IPv4): its endpoint {endpoint} is not the address of a pod in 10.1.0.0/16 \
             (clusterCIDR)"
        )
    };
    // On a node's network, here or elsewhere, or outside of the cluster: the network plugin may masquerade that.
    for other in [ready("192.0.2.1").here(), ready("192.0.2.2"), Endpoint { node: None, ..ready("8.8.8.8") }]
    {
        let address = other.address.to_string();
        let state = served(allowing_all(), web(), &[ready("10.1.1.1"), other]);
        assert_eq!(untracking(&state), [""; 0]);
        assert_eq!(problems(&state, "web"), [why(&address)]);
    }
    let mut state = served(allowing_all(), web(), &[ready("10.1.1.1"), ready("10.1.0.1").here()]);
    assert!(!untracking(&state).is_empty());
    state.apply(node_addresses(&["10.1.0.1"]));
    assert_eq!(untracking(&state), [""; 0]);
    assert_eq!(problems(&state, "web"), [why("10.1.0.1")]);
    state.apply(node_addresses(&["192.0.2.1"]));
    assert!(!untracking(&state).is_empty());
}

#[test]
fn more_endpoints_than_a_virtual_server_has_are_tracked() {
    let pods = |count: u32| {
        let address = |number| std::net::Ipv4Addr::from_bits(0x0a01_0000 + number).to_string();
        (1..=count).map(|number| ready(&address(number))).collect::<Vec<_>>()
    };
    assert!(!untracking(&served(allowing_all(), web(), &pods(10_000))).is_empty());
    let state = served(allowing_all(), web(), &pods(10_001));
    assert_eq!(untracking(&state), [""; 0]);
    let why = "tracked by conntrack (IPv4): it has more than 10000 endpoints".to_owned();
    assert!(problems(&state, "web").contains(&why));
}

#[test]
fn with_direct_return_pods_are_translated_to_the_cluster_ip() {
    let balancing = Balancing {
        conntrack: Some(false),
        forwarding_method: Some(ForwardingMethod::Tunnel),
        ..Balancing::default()
    };
    let web = Service {
        kind: ServiceKind::LoadBalancer,
        load_balancer_ips: ips(&["203.0.113.20"]),
        balancing: Some(balancing.into()),
        ..web()
    };
    let options = Options {
        external_forwarding: ExternalForwarding::ByAnnotation,
        knows_pods: Family::BOTH.into(),
        ..allowing_all()
    };
    let mut state = served(options, web, &[ready("10.1.0.1")]);
    assert!(!untracking(&state).is_empty(), "direct return does not begin before the MTU is known");
    state.apply(Change::LinkMtu(1500));
    assert_eq!(untracking(&state), [""; 0]);
    assert_eq!(
        problems(&state, "web"),
        ["tracked by conntrack (IPv4): direct return directs pods to the ClusterIP"]
    );
}
