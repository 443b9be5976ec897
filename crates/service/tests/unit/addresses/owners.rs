//! Addresses that belong to something else than the Service that asks for them.

use std::net::SocketAddr;

use crate::common::*;
use service::{
    AddressOwner, AddressRefusal, Change, Event, ExternalIps, Node, ObjectName, Options, Service,
    ServiceKind, State,
};

const TAKEN: &str = "198.51.100.1";

/// A Service that asks for an address, created at this time.
fn asking(text: &str, cluster_ip: &str, external_ip: &str, created: i64) -> Service {
    Service { external_ips: ips(&[external_ip]), created: Some(created), ..service(text, cluster_ip) }
}

fn balanced(text: &str, cluster_ip: &str, at: &str, created: i64) -> Service {
    Service {
        kind: ServiceKind::LoadBalancer,
        load_balancer_ips: ips(&[at]),
        created: Some(created),
        ..service(text, cluster_ip)
    }
}

fn peer(name: &str, ip: &str, pods: &[&str]) -> Node {
    Node {
        name: name.into(),
        ips: ips(&[ip]),
        overlay_ips: Vec::new(),
        pod_cidrs: pods.iter().map(|range| range.parse().unwrap()).collect(),
        problems: Vec::new(),
        ..Node::default()
    }
}

fn refusals(state: &State, text: &str) -> Vec<AddressRefusal> {
    state.desired(&name(text)).unwrap().refused().iter().map(|refused| refused.why).collect()
}

fn is_served(state: &State, text: &str) -> bool {
    state.desired(&name(text)).unwrap().virtual_servers.iter().any(|server| server.address.ip == ip(TAKEN))
}

#[test]
fn an_address_with_another_owner_is_refused_as_an_external_ip_unless_allowed() {
    let node = Node { pod_cidrs: vec!["198.51.100.0/25".parse().unwrap()], ..Node::default() };
    let api = SocketAddr::new(ip(TAKEN), 6443);
    for (change, why, owner) in [
        (
            Change::Peers(Event::Replace(vec![peer("node-b", TAKEN, &[])])),
            AddressRefusal::NodeIp,
            AddressOwner::OtherNode,
        ),
        (Change::ApiServer([api].into()), AddressRefusal::ApiServer, AddressOwner::ApiServer),
        (
            Change::Gateways(ips(&[TAKEN]).into_iter().collect()),
            AddressRefusal::Gateway,
            AddressOwner::Gateway,
        ),
        (Change::Node(Some(node)), AddressRefusal::PodRange, AddressOwner::PodRange),
        (
            Change::Peers(Event::Replace(vec![peer("node-b", "192.0.2.2", &["198.51.100.0/24"])])),
            AddressRefusal::PodRange,
            AddressOwner::PodRange,
        ),
    ] {
        for (options, allowed) in [(options(), false), (allowing(&["198.51.100.0/24"]), true)] {
            let mut state = state_with(options, &[asking("web", "10.96.0.1", TAKEN, 1)], &[]);
            assert!(state.wants_vip(&ip(TAKEN)), "nothing else has it");
            state.apply(change.clone());
            assert_eq!(is_served(&state, "web"), allowed, "{change:?}");
            assert_eq!(refusals(&state, "web"), if allowed { vec![] } else { vec![why] });
            assert_eq!(state.explain_address(&about(TAKEN, None)).owner, Some(owner));
            let is_pods = owner == AddressOwner::PodRange;
            assert_eq!(state.wants_vip(&ip(TAKEN)), allowed && is_pods, "{change:?}: no pod has it yet");
        }
    }
}

#[test]
fn an_external_ip_of_an_endpoint_of_an_older_service_is_refused() {
    let dns = Service { created: Some(1), ..service("kube-system/dns", "10.96.0.10") };
    let thief = asking("thief", "10.96.0.66", TAKEN, 2);
    let slices = [slice("dns-1", "kube-system/dns", &[ready(TAKEN)])];
    for services in [[dns.clone(), thief.clone()], [thief.clone(), dns.clone()]] {
        let mut state = state_of(&services, &slices);
        assert_eq!(refusals(&state, "thief"), [AddressRefusal::Endpoint]);
        state.apply(Change::Slices(Event::Delete(name("dns-1"))));
        assert_eq!(refusals(&state, "thief"), []);
        state.apply(Change::Slices(Event::Apply(slices[0].clone())));
        assert_eq!(refusals(&state, "thief"), [AddressRefusal::Endpoint]);
    }
    // Who may write slices takes no address from an older Service with them.
    let own = [slice("thief-1", "thief", &[ready("203.0.113.7")])];
    let victim = asking("kube-system/victim", "10.96.0.11", "203.0.113.7", 1);
    let state = state_of(&[victim, Service { created: Some(2), ..service("thief", "10.96.0.66") }], &own);
    assert!(state.wants_vip(&ip("203.0.113.7")));
}

#[test]
fn an_external_ip_of_another_namespace_is_refused_whatever_the_port() {
    let victim = asking("a/victim", "10.96.0.1", TAKEN, 1);
    let thief = Service {
        ports: vec![port("", ipvs::Protocol::Udp, 443)],
        ..asking("b/thief", "10.96.0.66", TAKEN, 2)
    };
    let beside =
        Service { ports: vec![port("", ipvs::Protocol::Tcp, 25)], ..asking("a/mail", "10.96.0.3", TAKEN, 3) };
    let mut state = state_of(&[thief.clone(), victim.clone(), beside], &[]);
    assert_eq!(refusals(&state, "b/thief"), [AddressRefusal::OtherNamespace]);
    assert!(is_served(&state, "a/victim") && is_served(&state, "a/mail"), "a namespace shares with itself");
    for gone in ["a/victim", "a/mail"] {
        state.apply(Change::Services(Event::Delete(name(gone))));
    }
    assert_eq!(refusals(&state, "b/thief"), []);
    // A controller's word goes before an older Service's.
    state.apply(Change::Services(Event::Apply(balanced("a/ingress", "10.96.0.1", TAKEN, 9))));
    assert_eq!(refusals(&state, "b/thief"), [AddressRefusal::OtherNamespace]);
    let shared = state_with(allowing(&["0.0.0.0/0"]), &[victim, thief], &[]);
    assert!(is_served(&shared, "b/thief") && is_served(&shared, "a/victim"));
}

#[test]
fn a_service_that_is_created_again_has_its_external_ip_back_from_one_that_waited() {
    let victim = |created| asking("a/victim", "10.96.0.1", TAKEN, created);
    let mut state = state_of(&[victim(1), asking("b/waiting", "10.96.0.66", TAKEN, 2)], &[]);
    let relisted = |created| {
        Change::Services(Event::Replace(vec![victim(created), asking("b/waiting", "10.96.0.66", TAKEN, 2)]))
    };
    let again = [
        vec![Change::Services(Event::Delete(name("a/victim"))), Change::Services(Event::Apply(victim(3)))],
        // Both happened while the watch was away.
        vec![relisted(4)],
        vec![
            Change::Services(Event::Replace(vec![asking("b/waiting", "10.96.0.66", TAKEN, 2)])),
            relisted(5),
        ],
    ];
    for changes in again {
        for change in changes {
            state.apply(change);
        }
        assert_eq!(refusals(&state, "b/waiting"), [AddressRefusal::OtherNamespace]);
        assert!(is_served(&state, "a/victim"));
    }
    // The endpoints of an older Service are a claim too.
    let slices = [slice("waiting-1", "b/waiting", &[ready(TAKEN)])];
    let waiting = Service { created: Some(2), ..service("b/waiting", "10.96.0.66") };
    let mut state = state_of(&[victim(1), waiting], &slices);
    for change in
        [Change::Services(Event::Delete(name("a/victim"))), Change::Services(Event::Apply(victim(3)))]
    {
        state.apply(change);
    }
    assert_eq!(refusals(&state, "a/victim"), []);
}

#[test]
fn a_load_balancer_at_another_node_s_address_is_served_and_not_bound() {
    let mut state = state_of(&[balanced("web", "10.96.0.1", TAKEN, 1)], &[]);
    for (peers, bound) in
        [(vec![peer("node-b", TAKEN, &[])], false), (vec![peer("node-b", "192.0.2.2", &[])], true)]
    {
        let touched = state.apply(Change::Peers(Event::Replace(peers)));
        assert!(is_served(&state, "web"));
        assert_eq!(state.wants_vip(&ip(TAKEN)), bound);
        assert_eq!(touched.vips, [ip(TAKEN)].into());
    }
}

#[test]
fn a_load_balancer_may_be_the_way_to_the_api_server() {
    let at = |port| Change::ApiServer([SocketAddr::new(ip(TAKEN), port)].into());
    let mut state = state_of(&[balanced("api", "10.96.0.1", TAKEN, 1)], &[]);
    state.apply(at(80));
    assert!(state.wants_vip(&ip(TAKEN)), "this Service's port is the API server's");
    state.apply(at(6443));
    assert!(!state.wants_vip(&ip(TAKEN)));
}

#[test]
fn the_port_of_an_api_server_is_served_for_no_service() {
    let kubernetes = service("default/kubernetes", "10.96.0.1");
    let slices = [slice("api", "default/kubernetes", &[ready(TAKEN)])];
    let number = slices[0].ports[0].port;
    let ports = vec![port("a", ipvs::Protocol::Tcp, number), port("b", ipvs::Protocol::Tcp, 9)];
    let web = Service { ports, ..balanced("web", "10.96.0.2", TAKEN, 1) };
    let state = state_of(&[kubernetes, web], &slices);
    let at: Vec<_> = virtual_servers(&state).into_iter().filter(|at| at.contains(TAKEN)).collect();
    assert_eq!(at, [format!("TCP {TAKEN}:9")]);
    let [problem] = state.desired(&name("web")).unwrap().problems() else { panic!("one problem") };
    assert_eq!(
        problem,
        &format!(
            "status.loadBalancer.ingress: TCP {TAKEN}:{number} is not served: the API server listens there"
        )
    );
    assert!(!state.wants_vip(&ip(TAKEN)));
}

#[test]
fn nothing_is_synced_before_the_nodes_are_known_if_an_external_address_needs_them() {
    let watching = || Options { watches_nodes: true, ..options() };
    let plain = state_with(watching(), &[service("web", "10.96.0.1")], &[]);
    assert!(plain.synced() && !plain.needs_nodes());
    for change in [
        Change::Peers(Event::Replace(vec![])),
        Change::PeersUnavailable,
        Change::Peers(Event::InitDone([].into_iter().collect())),
    ] {
        let mut state = state_with(watching(), &[balanced("web", "10.96.0.1", TAKEN, 1)], &[]);
        assert!(state.listed() && !state.synced() && state.needs_nodes());
        assert!(!state.wants_vip(&ip(TAKEN)));
        state.apply(change);
        assert!(state.synced() && state.wants_vip(&ip(TAKEN)));
        // Later it goes on without waiting: what comes new is not bound before.
        state.apply(Change::ForgetPeers);
        assert!(state.synced() && !state.wants_vip(&ip(TAKEN)));
    }
}

#[test]
fn external_ips_that_are_switched_off_need_no_addresses_of_other_nodes() {
    let off = || Options { watches_nodes: true, external_ips: ExternalIps::Off, ..options() };
    let listed = asking("a/web", "10.96.0.1", TAKEN, 1);
    assert!(listed.has_external_addresses(&options()) && !listed.has_external_addresses(&off()));
    let state = state_with(off(), &[listed], &[]);
    assert!(state.synced() && !state.needs_nodes());
    let balanced = balanced("web", "10.96.0.1", TAKEN, 1);
    assert!(balanced.has_external_addresses(&off()));
    assert!(state_with(off(), &[balanced], &[]).needs_nodes());
}

#[test]
fn an_explained_address_names_its_services_and_those_that_are_refused() {
    let state =
        state_of(&[asking("a/web", "10.96.0.1", TAKEN, 1), asking("b/thief", "10.96.0.66", TAKEN, 2)], &[]);
    let explained = state.explain_address(&about(TAKEN, None));
    assert_eq!((explained.owner, explained.vip), (Some(AddressOwner::Nobody), true));
    let uses: Vec<_> = explained.uses.iter().map(|it| it.service.to_string()).collect();
    assert_eq!(uses, ["a/web"]);
    assert_eq!(explained.refused[0].0, ObjectName::new("b", "thief"));
    let cluster_ip = state.explain_address(&about("10.96.0.1", None));
    assert_eq!((cluster_ip.owner, cluster_ip.vip), (Some(AddressOwner::ClusterIp), true));
}

#[test]
fn an_address_listed_by_two_nodes_is_the_others_unless_an_interface_here_has_it() {
    let mut state = state_of(&[balanced("web", "10.96.0.1", TAKEN, 1)], &[]);
    state.apply(Change::Node(Some(Node { ips: ips(&[TAKEN]), ..Node::default() })));
    assert_eq!(state.explain_address(&about(TAKEN, None)).owner, Some(AddressOwner::ThisNode));
    assert!(state.wants_vip(&ip(TAKEN)), "behind NAT no interface has it");
    state.apply(Change::Peers(Event::Replace(vec![peer("node-b", TAKEN, &[])])));
    assert_eq!(state.explain_address(&about(TAKEN, None)).owner, Some(AddressOwner::OtherNode));
    assert!(!state.wants_vip(&ip(TAKEN)));
    state.apply(node_addresses(&[TAKEN]));
    assert_eq!(state.explain_address(&about(TAKEN, None)).owner, Some(AddressOwner::ThisNode));
}

#[test]
fn a_node_port_gives_way_to_an_api_server_on_this_node_and_returns_when_it_ends() {
    const NODE: &str = "192.0.2.1";
    let api = slice("api", "default/kubernetes", &[ready(NODE)]);
    let number = api.ports[0].port;
    let ports = vec![with_node_port(port("", ipvs::Protocol::Tcp, 80), number)];
    let web = Service { ports, ..service("web", "10.96.0.2") };
    let mut state = state_of(&[service("default/kubernetes", "10.96.0.1"), web], &[]);
    state.apply(node_addresses(&[NODE]));
    let at = tcp(&format!("{NODE}:{number}"));
    assert!(state.virtual_server(&at).is_some());
    let touched = state.apply(Change::Slices(Event::Apply(api.clone())));
    assert!(state.virtual_server(&at).is_none() && touched.virtual_servers.contains(&at));
    state.apply(Change::Slices(Event::Delete(api.name)));
    assert!(state.virtual_server(&at).is_some());
}

#[test]
fn vips_that_another_proxy_s_device_had_are_no_lost_addresses_of_the_node() {
    let ports = vec![with_node_port(port("", ipvs::Protocol::Tcp, 80), 30_080)];
    let web = Service { ports, ..service("web", "10.96.0.2") };
    let mut state = state_of(&[web], &[]);
    let addresses = |here: &[&str], lost: &[&str]| Change::NodeAddresses {
        here: ips(here).into_iter().collect(),
        lost: ips(lost).into_iter().collect(),
    };
    for change in [
        addresses(&["192.0.2.1", "10.96.0.2"], &[]),
        addresses(&["192.0.2.1"], &["10.96.0.2"]),
        addresses(&["192.0.2.1"], &[]),
    ] {
        state.apply(change);
        assert_eq!(virtual_servers(&state), ["TCP 10.96.0.2:80", "TCP 192.0.2.1:30080"]);
    }
}

#[test]
fn a_range_of_pods_within_another_one_hides_nothing_of_it() {
    let pods = ["10.244.0.0/16", "10.244.1.0/24"];
    for pods in [pods, [pods[1], pods[0]]] {
        let mut state = state_of(&[], &[]);
        state.apply(Change::Peers(Event::Replace(vec![
            peer("node-b", "192.0.2.2", &pods[..1]),
            peer("node-c", "192.0.2.3", &pods[1..]),
        ])));
        for pod in ["10.244.0.5", "10.244.1.5", "10.244.2.5"] {
            assert_eq!(state.explain_address(&about(pod, None)).owner, Some(AddressOwner::PodRange), "{pod}");
        }
        assert_eq!(state.explain_address(&about("10.245.0.5", None)).owner, Some(AddressOwner::Nobody));
    }
}
