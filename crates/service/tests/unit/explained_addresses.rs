//! Whose an address or a NodePort is, and what becomes of a client there.

use crate::common::*;
use ipvs::Protocol;
use netfilter::{LocalTraffic, Policy};
use service::{
    AddressOwner, AddressQuery, Admission, Change, Client, EndpointReason, Event, ExplainedClient,
    ExternalIps, NodePortAddresses, NotServed, Options, Service, ServiceKind, SourceAddress, State,
    TrafficPolicy,
};

const NODE_IP: &str = "192.0.2.1";
const BALANCED: &str = "203.0.113.7";
const NODE_PORT: u16 = 30_080;

/// A load balancer's Service with a NodePort, restricted to a range, and its one pod on this node.
fn exposed() -> Service {
    Service {
        kind: ServiceKind::LoadBalancer,
        ports: vec![with_node_port(port("", Protocol::Tcp, 80), NODE_PORT)],
        load_balancer_ips: ips(&[BALANCED]),
        load_balancer_source_ranges: Some(vec!["198.51.100.7/24".parse().unwrap()]),
        ..service("web", "10.96.0.1")
    }
}

fn with(options: Options, services: &[Service]) -> State {
    let slices = [slice("web-1", "web", &[ready("10.1.0.1").here(), ready("10.1.0.2")])];
    let mut state = state_with(options, services, &slices);
    state.apply(node_addresses(&[NODE_IP, "192.0.2.2"]));
    state
}

fn node_port(number: u16) -> AddressQuery {
    AddressQuery { ip: None, port: Some(number), protocol: None }
}

#[test]
fn an_address_with_a_port_is_explained_with_the_service_there_alone() {
    let state = with(options(), &[exposed()]);
    for (query, addresses) in [
        (about("10.96.0.1", Some(80)), vec![tcp("10.96.0.1:80")]),
        (about(BALANCED, Some(80)), vec![tcp(&format!("{BALANCED}:80"))]),
        (about(NODE_IP, Some(NODE_PORT)), vec![tcp("192.0.2.1:30080")]),
        (node_port(NODE_PORT), vec![tcp("192.0.2.1:30080"), tcp("192.0.2.2:30080")]),
        (
            AddressQuery { protocol: Some(Protocol::Tcp), ..node_port(NODE_PORT) },
            vec![tcp("192.0.2.1:30080"), tcp("192.0.2.2:30080")],
        ),
    ] {
        let explained = state.explain_address(&query);
        let [web] = &explained.served[..] else { unreachable!("{query:?}: {explained:?}") };
        assert_eq!(web.served_addresses().collect::<Vec<_>>(), addresses, "{query:?}");
        assert_eq!(web.parts[0].endpoints.len(), 2);
        assert!(explained.node_port_of.is_empty() && explained.asked_by.is_empty(), "{explained:?}");
        let json = serde_json::to_string(&explained).unwrap();
        assert_eq!(serde_json::from_str::<service::AddressExplanation>(&json).unwrap(), explained);
    }
    let alone = state.explain_address(&about("10.96.0.1", None));
    assert!(alone.served.is_empty() && alone.uses.len() == 1, "{alone:?}");
}

#[test]
fn a_port_or_protocol_of_no_service_is_explained_by_those_that_there_are() {
    let state = with(options(), &[exposed()]);
    let other_protocol = AddressQuery { protocol: Some(Protocol::Udp), ..about("10.96.0.1", Some(80)) };
    for query in [about("10.96.0.1", Some(81)), other_protocol] {
        let explained = state.explain_address(&query);
        assert!(explained.served.is_empty() && explained.vip, "{explained:?}");
        assert_eq!(explained.uses[0].address, tcp("10.96.0.1:80"));
    }
    let nowhere = state.explain_address(&node_port(30_081));
    assert!(nowhere.served.is_empty() && nowhere.uses.is_empty() && nowhere.node_port_of.is_empty());
    assert_eq!((nowhere.ip, nowhere.owner), (None, None));
}

#[test]
fn a_node_port_that_an_address_does_not_serve_is_named_with_the_addresses_that_do() {
    let one = Options { node_port_addresses: in_ranges(&["192.0.2.2/32"]), ..options() };
    let state = with(one, &[exposed()]);
    for (address, owner) in [(NODE_IP, AddressOwner::Interface), ("198.51.100.1", AddressOwner::Nobody)] {
        let explained = state.explain_address(&about(address, Some(NODE_PORT)));
        assert_eq!(explained.owner, Some(owner));
        assert!(
            explained.served.is_empty() && explained.node_port_of.contains(&name("web")),
            "{explained:?}"
        );
        assert_eq!(explained.node_port_addresses, ips(&["192.0.2.2"]));
    }
    let loopback = NodePortAddresses { primary: false, ranges: vec!["127.0.0.0/8".parse().unwrap()] };
    let nowhere = with(Options { node_port_addresses: loopback, ..options() }, &[exposed()]);
    let explained = nowhere.explain_address(&node_port(NODE_PORT));
    assert!(explained.node_port_of.contains(&name("web")) && explained.node_port_addresses.is_empty());
}

#[test]
fn a_pods_address_names_the_services_of_which_it_is_an_endpoint() {
    let headless = Service { cluster_ips: Vec::new(), ..service("peers", "10.96.0.2") };
    let mut state = with(options(), &[exposed(), headless]);
    state.apply(Change::Slices(Event::Apply(slice("peers-1", "peers", &[ready("10.1.0.1")]))));
    state.apply(Change::Slices(Event::Apply(slice("gone-1", "gone", &[ready("10.1.0.9")]))));
    let endpoint_of = |address: &str| {
        let uses = state.explain_address(&about(address, None)).endpoint_of;
        uses.into_iter()
            .map(|it| (it.service.name().to_owned(), it.verdict, it.not_served))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        endpoint_of("10.1.0.1"),
        [
            ("peers".to_owned(), None, Some(NotServed::NoClusterIp)),
            ("web".to_owned(), Some(EndpointReason::Used), None),
        ]
    );
    assert_eq!(endpoint_of("10.1.0.9"), [("gone".to_owned(), None, Some(NotServed::Unknown))]);
    assert_eq!(endpoint_of("10.1.0.3"), []);
}

#[test]
fn an_address_that_a_service_has_without_being_served_there_names_the_service() {
    let off = Options { external_ips: ExternalIps::Off, ..options() };
    let asking = Service { external_ips: ips(&["203.0.113.9"]), ..service("web", "10.96.0.1") };
    let explained = with(off, &[asking]).explain_address(&about("203.0.113.9", Some(80)));
    assert!(explained.asked_by.contains(&name("web")) && explained.refused.is_empty(), "{explained:?}");
}

/// How the rules recognise pods of this node.
fn policy(local_traffic: LocalTraffic) -> Policy {
    Policy { mark: 1, ..Policy::new(local_traffic) }
}

fn by_range() -> Policy {
    policy(LocalTraffic::Source { ipv4: Some("10.1.0.0/16".parse().unwrap()), ipv6: None })
}

/// What becomes of a client at each address of the Service, by the kind of the address.
fn clients(state: &State, client: &str, policy: Policy) -> Vec<(Admission, SourceAddress)> {
    let mut explanation = state.explain(&name("web"));
    state.explain_client(&mut explanation, &Client { ip: ip(client), policy });
    let mut all: Vec<_> = explanation.parts.iter().flat_map(|part| &part.addresses).collect();
    all.sort_by_key(|at| (at.kind, at.address));
    let clients = all.iter().filter(|at| at.address.ip != ip("192.0.2.2")).map(|at| at.client.unwrap());
    clients.map(|ExplainedClient { admission, source, .. }| (admission, source)).collect()
}

#[test]
fn a_client_is_admitted_by_the_source_range_as_the_service_writes_it() {
    let state = with(options(), &[exposed()]);
    let range = Admission::SourceRange("198.51.100.7/24".parse().unwrap());
    let outside = Admission::OutsideSourceRanges;
    for (client, balanced) in [("198.51.100.200", range), ("198.51.101.1", outside), (NODE_IP, outside)] {
        let [_, _, (admission, _)] = clients(&state, client, by_range())[..] else { unreachable!() };
        assert_eq!(admission, balanced, "{client}");
    }
    // A range with the node's own address lets the node in.
    let mut state = state;
    state.apply(Change::Node(Some(service::Node { ips: ips(&["198.51.100.1"]), ..Default::default() })));
    assert_eq!(clients(&state, NODE_IP, by_range())[2].0, Admission::ThisNode);
}

#[test]
fn a_client_is_masqueraded_by_its_origin_and_the_policy() {
    let (everyone, open) = (Admission::Everyone, Service { load_balancer_source_ranges: None, ..exposed() });
    let external = |source: SourceAddress| (everyone, source);
    let cluster = SourceAddress::PolicyCluster;
    let local = Service { external_traffic_policy: TrafficPolicy::Local, ..open.clone() };
    let by_bridge = || policy(LocalTraffic::Bridge("cni0".into()));
    let unknown = || policy(LocalTraffic::Source { ipv4: None, ipv6: None });
    let all = || Policy { masquerade_all: true, ..by_range() };
    for (service, client, policy, expected) in [
        (&open, "10.1.0.5", by_range(), [SourceAddress::PodOfThisNode, cluster]),
        (&open, "198.51.100.1", by_range(), [SourceAddress::NotAPodOfThisNode, cluster]),
        (&open, NODE_IP, by_range(), [SourceAddress::ThisNode, cluster]),
        (&open, "10.1.0.5", all(), [SourceAddress::MasqueradeAll, cluster]),
        (&open, "10.1.0.5", by_bridge(), [SourceAddress::ByInterface, cluster]),
        (&open, "10.1.0.5", unknown(), [SourceAddress::PodsUnknown, cluster]),
        (&local, "198.51.100.1", by_range(), [SourceAddress::NotAPodOfThisNode, SourceAddress::PolicyLocal]),
        (&local, NODE_IP, by_range(), [SourceAddress::ThisNode; 2]),
    ] {
        let found = clients(&with(options(), std::slice::from_ref(service)), client, policy);
        let [at_cluster_ip, others] = expected;
        assert_eq!(found, [external(at_cluster_ip), external(others), external(others)], "{client}");
    }
}

#[test]
fn policy_local_without_an_endpoint_here_admits_pods_of_this_node_alone() {
    let local = Service {
        external_traffic_policy: TrafficPolicy::Local,
        load_balancer_source_ranges: None,
        ..exposed()
    };
    let mut state = with(options(), &[local]);
    state.apply(Change::Slices(Event::Apply(slice("web-1", "web", &[ready("10.1.0.2")]))));
    let external = |client, policy| clients(&state, client, policy)[1].0;
    assert_eq!(external("198.51.100.1", by_range()), Admission::NoLocalEndpoint);
    assert_eq!(external("10.1.0.5", by_range()), Admission::Everyone);
    let by_bridge = policy(LocalTraffic::Bridge("cni0".into()));
    assert_eq!(external("10.1.0.5", by_bridge), Admission::OnlyPodsOfThisNode);

    state.apply(Change::Slices(Event::Apply(slice("web-1", "web", &[unready("10.1.0.2")]))));
    assert_eq!(clients(&state, "10.1.0.5", by_range())[0].0, Admission::NoEndpoint);
}

#[test]
fn a_pod_that_may_be_its_own_endpoint_and_a_client_of_the_other_family_are_named() {
    let state = with(options(), &[exposed()]);
    let at_cluster_ip = |client: &str| {
        let mut explanation = state.explain(&name("web"));
        state.explain_client(&mut explanation, &Client { ip: ip(client), policy: by_range() });
        explanation.parts[0].addresses[0].client.unwrap()
    };
    assert!(at_cluster_ip("10.1.0.1").may_reach_itself);
    assert!(!at_cluster_ip("10.1.0.2").may_reach_itself, "it is on another node");
    assert_eq!(at_cluster_ip("fd00::1").admission, Admission::OtherFamily);
}
