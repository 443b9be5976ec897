//! Direct return: external traffic keeps the client's address, uses every endpoint, and is answered by the node of the
//! endpoint.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::*;
use ipvs::{Family, Forwarding, Protocol, Scheduler, ServiceFlags, Tunnel, TunnelKind};
use netfilter::Element;
use service::{
    Absence, Balancing, Change, Endpoint, EndpointSlice, Event, ExternalForwarding, ForwardingMethod, Node,
    ObjectName, Options, Service, ServiceKind, State, TrafficPolicy, Unpacking,
};

/// A load balancer's address with its port.
const AT: &str = "203.0.113.20:80";

/// A Service of type LoadBalancer that asks for it.
fn web() -> Service {
    let balancing = Balancing { forwarding_method: Some(ForwardingMethod::Tunnel), ..Balancing::default() };
    Service {
        kind: ServiceKind::LoadBalancer,
        load_balancer_ips: ips(&["203.0.113.20"]),
        ports: vec![with_node_port(port("", Protocol::Tcp, 80), 30080)],
        balancing: Some(balancing.into()),
        ..service("web", "10.96.0.1")
    }
}

/// An endpoint here, one on node-b and one on node-c.
fn endpoints() -> Vec<EndpointSlice> {
    let on_c = Endpoint { node: Some("node-c".into()), ..ready("10.1.2.1") };
    vec![slice("web-1", "web", &[ready("10.1.0.1").here(), ready("10.1.1.1"), on_c])]
}

fn knowing_pods() -> Options {
    Options {
        external_forwarding: ExternalForwarding::ByAnnotation,
        knows_pods: BTreeSet::from(Family::BOTH),
        ..options()
    }
}

/// A node that knows its pods and its links, among two others, of which node-b unpacks.
fn among_peers(options: Options, service: Service) -> State {
    let mut state = state_with(options, &[service], &endpoints());
    state.apply(node_addresses(&["192.0.2.1"]));
    state.apply(Change::LinkMtu(1500));
    let peer = |name: &str, ip: &str| Node {
        name: name.into(),
        ips: ips(&[ip]),
        overlay_ips: Vec::new(),
        pod_cidrs: Vec::new(),
        problems: Vec::new(),
        ..Node::default()
    };
    state
        .apply(Change::Peers(Event::Replace(vec![peer("node-b", "192.0.2.2"), peer("node-c", "192.0.2.3")])));
    state.apply(unpacking(&["node-b"]));
    state
}

fn unpacking(names: &[&str]) -> Change {
    unpacking_as(names, false)
}

fn unpacking_as(names: &[&str], gue: bool) -> Change {
    let entry = |name: &&str| ((*name).into(), Unpacking { families: [Family::V4].into(), gue });
    Change::UnpackingPeers(names.iter().map(entry).collect())
}

/// How each endpoint is reached at an address, in the order of their addresses.
fn methods(state: &State, at: &str) -> Vec<Forwarding> {
    state.virtual_server(&tcp(at)).unwrap().real_servers.iter().map(|real| real.forwarding).collect()
}

fn problems(state: &State) -> Vec<String> {
    state.problems().map(|problem| problem.to_string()).collect()
}

use Forwarding::{Masquerade, Tunnel as Tunnelled};

#[test]
fn nodes_that_unpack_are_reached_through_a_tunnel_and_only_from_external_addresses() {
    let state = among_peers(knowing_pods(), web());
    assert_eq!(methods(&state, AT), [Masquerade, Tunnelled, Masquerade]);
    for masqueraded in ["10.96.0.1:80", "192.0.2.1:30080"] {
        assert_eq!(methods(&state, masqueraded), [Masquerade; 3], "{masqueraded}");
        assert_eq!(config(&state, masqueraded).scheduler, Scheduler::RR);
    }
    assert!(state.unpacks(Family::V4) && !state.unpacks(Family::V6));
    assert_eq!(problems(&state), [""; 0]);
}

#[test]
fn udp_is_used_only_to_nodes_that_take_it() {
    let gue = Tunnel::new(TunnelKind::Gue).port(6080);
    let mut state = among_peers(Options { tunnel: gue, ..knowing_pods() }, web());
    let tunnels = |state: &State| -> Vec<_> {
        let real_servers = state.virtual_server(&tcp(AT)).unwrap().real_servers.clone();
        real_servers.iter().map(|real| (real.forwarding, real.tunnel)).collect()
    };
    let unpacked =
        |tunnel| vec![(Masquerade, Tunnel::default()), (Tunnelled, tunnel), (Masquerade, Tunnel::default())];
    assert_eq!(tunnels(&state), unpacked(Tunnel::default()));
    state.apply(unpacking_as(&["node-b"], true));
    assert_eq!(tunnels(&state), unpacked(gue));
    let mut without = among_peers(knowing_pods(), web());
    without.apply(unpacking_as(&["node-b"], true));
    assert_eq!(tunnels(&without), unpacked(Tunnel::default()));
}

#[test]
fn what_an_earlier_daemon_tunnelled_is_tunnelled_until_its_node_answers() {
    let mut state = among_peers(knowing_pods(), web());
    let before = [(ip("10.1.1.1"), Tunnel::default()), (ip("10.1.2.1"), Tunnel::default())];
    state.apply(Change::TunnelledBefore(before.into()));
    state.apply(unpacking(&[]));
    assert_eq!(methods(&state, AT), [Masquerade, Tunnelled, Tunnelled]);
    let silent = ("node-c".into(), Unpacking::default());
    state.apply(Change::UnpackingPeers([silent].into()));
    assert_eq!(methods(&state, AT), [Masquerade, Tunnelled, Masquerade]);
}

#[test]
fn a_node_is_reached_through_a_tunnel_only_while_it_unpacks() {
    let mut state = among_peers(knowing_pods(), web());
    let touched = state.apply(unpacking(&["node-b", "node-c"]));
    assert_eq!(touched.virtual_servers, [tcp(AT)].into());
    assert_eq!(methods(&state, AT), [Masquerade, Tunnelled, Tunnelled]);
    state.apply(unpacking(&[]));
    assert_eq!(methods(&state, AT), [Masquerade; 3]);
    assert!(state.unpacks(Family::V4), "the client's address stays, as far as it can");
}

#[test]
fn our_tables_get_what_tunnels_need_from_clients_to_exits() {
    let state = among_peers(knowing_pods(), web());
    let all = elements(&state);
    let of_tunnels: Vec<_> =
        all.iter().filter(|it| !it.starts_with("cluster-ips") && !it.starts_with("hairpin")).collect();
    assert_eq!(
        of_tunnels,
        [
            "cluster-ip-for TCP 203.0.113.20:80 is 10.96.0.1:80",
            "direct-return TCP 203.0.113.20:80",
            "endpoints-elsewhere 10.1.1.1",
            "endpoints-elsewhere 10.1.2.1",
            "endpoints-here 10.1.0.1",
            "external TCP 192.0.2.1:30080",
            "max-segment-sizes TCP 203.0.113.20:80 1440 bytes",
            "tunnel-exits TCP 203.0.113.20:80 at 10.1.0.1:8080",
            "tunnel-senders 192.0.2.2",
            "tunnel-senders 192.0.2.3",
        ]
    );
}

#[test]
fn everything_of_it_goes_with_the_last_service_that_asks() {
    let mut state = among_peers(knowing_pods(), web());
    let masqueraded = Service { balancing: None, ..web() };
    let touched = state.apply(Change::Services(Event::Apply(masqueraded)));
    assert_eq!(touched.tunnels, [Family::V4].into());
    assert!(!state.elements().any(|element| element.is_of_direct_return()));
    assert!(touched.elements.contains(&Element::TunnelSender(ip("192.0.2.3"))));
    assert_eq!(config(&state, AT).scheduler, Scheduler::RR);
}

#[test]
fn a_new_node_is_let_in_and_one_that_has_gone_is_not() {
    let mut state = among_peers(knowing_pods(), web());
    let joined = Node {
        name: "node-d".into(),
        ips: ips(&["192.0.2.4", "2001:db8::4"]),
        overlay_ips: Vec::new(),
        pod_cidrs: Vec::new(),
        problems: Vec::new(),
        ..Node::default()
    };
    let touched = state.apply(Change::Peers(Event::Apply(joined)));
    assert_eq!(touched.elements, [Element::TunnelSender(ip("192.0.2.4"))].into(), "IPv6 is not asked for");
    let touched = state.apply(Change::Peers(Event::Delete(ObjectName::new("", "node-b"))));
    assert_eq!(touched.elements, [Element::TunnelSender(ip("192.0.2.2"))].into());
}

#[test]
fn exits_stay_for_endpoints_that_are_no_longer_ready() {
    let mut state = among_peers(knowing_pods(), web());
    let at_rest = slice("web-1", "web", &[draining("10.1.0.1").here(), ready("10.1.1.1")]);
    state.apply(Change::Slices(Event::Apply(at_rest)));
    assert_eq!(real_servers(&state, AT), ["10.1.1.1:8080"]);
    assert!(elements(&state).contains(&"tunnel-exits TCP 203.0.113.20:80 at 10.1.0.1:8080".to_owned()));
}

#[test]
fn every_node_chooses_alike_by_a_hash_of_address_and_port() {
    let flags = |affinity| {
        let state = among_peers(knowing_pods(), Service { session_affinity: affinity, ..web() });
        let config = config(&state, AT);
        assert_eq!(config.scheduler, Scheduler::MH);
        config.flags
    };
    let (fallback, port) = (ServiceFlags::SCHEDULER_1, ServiceFlags::SCHEDULER_2);
    assert_eq!(flags(None), fallback | port);
    assert_eq!(
        flags(Some(10_800)),
        fallback,
        "the hash of the address keeps a client at its endpoint everywhere"
    );
}

#[test]
fn a_scheduler_of_its_own_counts_here_too() {
    let mut service = web();
    service.balancing.as_mut().unwrap().scheduler = Some(Scheduler::SH);
    service.session_affinity = Some(600);
    let config = config(&among_peers(knowing_pods(), service), AT);
    assert_eq!(config.scheduler, Scheduler::SH);
    assert!(config.flags.contains(ServiceFlags::PERSISTENT));
}

#[test]
fn without_the_scheduler_that_chooses_alike_the_usual_one_is_used_and_reported() {
    let mut state = among_peers(knowing_pods(), web());
    state.apply(Change::MissingSchedulers(BTreeMap::from([(Scheduler::MH, Absence::Lacking)])));
    assert_eq!(config(&state, AT).scheduler, Scheduler::RR);
    assert_eq!(methods(&state, AT), [Masquerade, Tunnelled, Masquerade]);
    let problems = problems(&state);
    assert!(problems.len() == 1 && problems[0].ends_with("; nodes choose differently"), "{problems:?}");
}

#[test]
fn hints_do_not_count_where_all_nodes_must_choose_among_the_same_endpoints() {
    let mut state = among_peers(knowing_pods(), web());
    let hinted = [ready("10.1.0.1").here().for_nodes(&[NODE]), ready("10.1.1.1").for_nodes(&["node-b"])];
    state.apply(Change::Slices(Event::Apply(slice("web-1", "web", &hinted))));
    assert_eq!(real_servers(&state, AT), ["10.1.0.1:8080", "10.1.1.1:8080"]);
    assert_eq!(real_servers(&state, "192.0.2.1:30080"), ["10.1.0.1:8080"]);
}

#[test]
fn the_policy_local_stays_what_it_is() {
    let local = Service { external_traffic_policy: TrafficPolicy::Local, ..web() };
    let state = among_peers(knowing_pods(), local);
    assert_eq!(real_servers(&state, AT), ["10.1.0.1:8080"]);
    assert!(!state.unpacks(Family::V4));
    assert_eq!(problems(&state), [""; 0]);
}

#[test]
fn where_direct_return_is_impossible_the_service_is_masqueraded_with_a_reason() {
    let internal_local = Service { internal_traffic_policy: TrafficPolicy::Local, ..web() };
    let cases = [
        (
            among_peers(Options { knows_pods: BTreeSet::new(), ..knowing_pods() }, web()),
            "node node-a does not know its pods (clusterCIDR, detectLocalMode)",
        ),
        (
            among_peers(Options { answers_peers: false, ..knowing_pods() }, web()),
            "other nodes cannot ask node node-a whether it takes part (healthzBindAddress)",
        ),
        (
            among_peers(knowing_pods(), internal_local),
            "spec.internalTrafficPolicy is Local, and nodes and pods would be directed to the ClusterIP",
        ),
    ];
    for (state, why) in cases {
        assert_eq!(problems(&state), [format!("default/web: no direct return (IPv4): {why}")]);
        assert_eq!(methods(&state, AT), [Masquerade; 3], "{why}");
        assert!(elements(&state).contains(&"external TCP 203.0.113.20:80".to_owned()), "{why}");
    }
}

#[test]
fn before_the_links_are_known_the_service_is_masqueraded_without_a_reason() {
    let state = state_with(knowing_pods(), &[web()], &endpoints());
    assert_eq!((methods(&state, AT), problems(&state)), (vec![Masquerade; 3], Vec::new()));
}

/// Nodes do not learn at the same moment what a Service asks for.
#[test]
fn a_tunnel_in_use_is_unpacked_even_for_a_service_that_is_masqueraded_here() {
    let mut state = among_peers(knowing_pods(), web());
    let for_unpacking = |state: &State| {
        let mut all: Vec<_> = state.elements().filter(Element::is_for_unpacking).collect();
        all.sort_unstable();
        all
    };
    let before = for_unpacking(&state);
    assert_eq!(before.len(), 6, "{before:?}");
    state.apply(Change::TunnelsInUse([Family::V4].into()));
    let touched = state.apply(Change::Services(Event::Apply(Service { balancing: None, ..web() })));
    assert_eq!((touched.tunnels, methods(&state, AT)), (BTreeSet::new(), vec![Masquerade; 3]));
    assert_eq!(for_unpacking(&state), before);
    assert_eq!(config(&state, AT).scheduler, Scheduler::RR);
    let touched = state.apply(Change::TunnelsInUse(BTreeSet::new()));
    assert_eq!(touched.tunnels, [Family::V4].into());
    assert_eq!((touched.elements, for_unpacking(&state)), (before.into_iter().collect(), Vec::new()));
}

#[test]
fn a_kernel_without_tunnels_masquerades_until_it_has_them() {
    let mut state = among_peers(knowing_pods(), web());
    let touched = state.apply(Change::MissingTunnels([Family::V4].into()));
    assert_eq!((touched.tunnels, methods(&state, AT)), ([Family::V4].into(), vec![Masquerade; 3]));
    let why = "the kernel of node node-a lacks tunnels (module ipip)";
    assert_eq!(problems(&state), [format!("default/web: no direct return (IPv4): {why}")]);
    state.apply(Change::MissingTunnels(BTreeSet::new()));
    assert_eq!(methods(&state, AT), [Masquerade, Tunnelled, Masquerade]);
}

#[test]
fn it_can_be_asked_for_all_services_and_refused_by_one() {
    let all = || Options { external_forwarding: ExternalForwarding::Tunnel, ..knowing_pods() };
    let silent = Service { balancing: None, ..web() };
    assert_eq!(methods(&among_peers(all(), silent), AT), [Masquerade, Tunnelled, Masquerade]);
    let mut refusing = web();
    refusing.balancing.as_mut().unwrap().forwarding_method = Some(ForwardingMethod::Masquerade);
    assert_eq!(methods(&among_peers(all(), refusing), AT), [Masquerade; 3]);
}

#[test]
fn annotation_asks_in_vain_where_the_operator_allows_none_and_its_owner_learns_why() {
    let refusing = Options { external_forwarding: ExternalForwarding::Masquerade, ..knowing_pods() };
    let mut state = among_peers(refusing, web());
    assert_eq!(methods(&state, AT), [Masquerade; 3]);
    assert!(!state.unpacks(Family::V4) && !state.unpacks(Family::V6));
    let why = "node node-a does not allow annotations to request it (--external-forwarding-method)";
    let problem = format!("default/web: no direct return (IPv4): {why}");
    assert_eq!(problems(&state), [&*problem]);
    state.apply(Change::MissingTunnels([Family::V4].into()));
    assert_eq!(problems(&state), [&*problem]);
    let local = Service { external_traffic_policy: TrafficPolicy::Local, ..web() };
    state.apply(Change::Services(Event::Apply(local)));
    assert_eq!(problems(&state), [""; 0], "it is not asked for there");
}

#[test]
fn external_ips_are_answered_directly_too() {
    let service = Service { load_balancer_ips: Vec::new(), external_ips: ips(&["198.51.100.7"]), ..web() };
    let state = among_peers(knowing_pods(), service);
    assert_eq!(methods(&state, "198.51.100.7:80"), [Masquerade, Tunnelled, Masquerade]);
}

#[test]
fn segments_fit_into_the_smallest_link_with_the_headers_of_the_tunnel() {
    let size = |options: Options, mtu| {
        let mut state = among_peers(options, web());
        state.apply(Change::LinkMtu(mtu));
        let server = state.virtual_server(&tcp(AT)).unwrap();
        server.direct_return.as_ref().unwrap().entrance.unwrap().max_segment_size.unwrap()
    };
    let gue = Options { tunnel: Tunnel::new(TunnelKind::Gue).port(6080), ..knowing_pods() };
    assert_eq!(size(knowing_pods(), 1500), 1440);
    assert_eq!(size(knowing_pods(), 9000), 8940);
    assert_eq!(size(gue, 1500), 1428);
    assert_eq!(size(knowing_pods(), 100), 536, "what every host can take");
    assert_eq!(size(knowing_pods(), 70_000), u16::MAX);
}

/// What comes to an address of the node in packets of IP in IP may be for others, an overlay of pods for example.
#[test]
fn endpoints_on_the_network_of_their_node_are_masqueraded_and_no_exits() {
    let mut state = among_peers(knowing_pods(), web());
    let on_networks = [ready("192.0.2.1").here(), ready("192.0.2.2"), ready("10.1.0.1").here()];
    state.apply(Change::Slices(Event::Apply(slice("web-1", "web", &on_networks))));
    assert_eq!(methods(&state, AT), [Masquerade; 3]);
    let of_tunnels = |state: &State| -> Vec<_> {
        let all = elements(state);
        all.into_iter().filter(|it| it.starts_with("endpoints-") || it.starts_with("tunnel-exits")).collect()
    };
    let exit = "tunnel-exits TCP 203.0.113.20:80 at 10.1.0.1:8080";
    assert_eq!(of_tunnels(&state), ["endpoints-here 10.1.0.1", exit]);
    // It is known by and by which addresses are nodes'.
    let joins = Node {
        name: "node-d".into(),
        ips: ips(&["10.1.0.1"]),
        overlay_ips: Vec::new(),
        pod_cidrs: Vec::new(),
        problems: Vec::new(),
        ..Node::default()
    };
    let touched = state.apply(Change::Peers(Event::Apply(joins)));
    assert!(touched.elements.contains(&Element::EndpointHere(ip("10.1.0.1"))), "{touched:?}");
    assert_eq!(of_tunnels(&state), [""; 0]);
}

#[test]
fn a_load_balancers_address_that_a_node_has_is_answered_by_that_node() {
    let mut state = among_peers(knowing_pods(), web());
    // Wherever kube-vip and keepalived put it.
    state.apply(node_addresses(&["192.0.2.1", "203.0.113.20"]));
    assert_eq!(methods(&state, AT), [Masquerade, Tunnelled, Masquerade]);
    state.apply(Change::Node(Some(Node { ips: ips(&["203.0.113.20"]), ..Node::default() })));
    assert_eq!(methods(&state, AT), [Masquerade; 3]);
    assert!(!state.unpacks(Family::V4));
}

#[test]
fn nodes_are_let_in_by_their_addresses_in_an_overlay_too() {
    let mut state = among_peers(knowing_pods(), web());
    let joins = Node {
        name: "node-d".into(),
        ips: ips(&["192.0.2.4"]),
        overlay_ips: ips(&["10.1.4.0"]),
        pod_cidrs: Vec::new(),
        problems: Vec::new(),
        ..Node::default()
    };
    let touched = state.apply(Change::Peers(Event::Apply(joins)));
    let senders = ["192.0.2.4", "10.1.4.0"].map(|sender| Element::TunnelSender(ip(sender)));
    assert_eq!(touched.elements, senders.into());
    assert!(senders.iter().all(|sender| state.wants_element(sender)));
}

#[test]
fn who_may_send_is_known_once_all_nodes_were_listed() {
    let mut state = state_with(knowing_pods(), &[web()], &endpoints());
    let peer = || Node {
        name: "node-b".into(),
        ips: ips(&["192.0.2.2"]),
        overlay_ips: Vec::new(),
        pod_cidrs: Vec::new(),
        problems: Vec::new(),
        ..Node::default()
    };
    state.apply(Change::Peers(Event::InitApply(vec![peer()])));
    assert!(!state.knows_peers());
    state.apply(Change::Peers(Event::InitDone([ObjectName::new("", "node-b")].into_iter().collect())));
    assert!(state.knows_peers());
    state.apply(Change::ForgetPeers);
    assert!(!state.knows_peers());
}

#[test]
fn nodes_with_endpoints_are_asked_and_their_list_is_kept_until_it_changes() {
    let mut state = among_peers(knowing_pods(), web());
    let asked = state.peers_with_endpoints().clone();
    let names: Vec<_> = asked.keys().map(|name| &**name).collect();
    assert_eq!(names, ["node-b", "node-c"]);
    state.apply(unpacking(&["node-c"]));
    state.apply(Change::Slices(Event::Apply(slice("web-2", "web", &[ready("10.1.1.2")]))));
    assert!(std::sync::Arc::ptr_eq(&asked, state.peers_with_endpoints()));
    state.apply(Change::Peers(Event::Delete(ObjectName::new("", "node-b"))));
    assert_eq!(state.peers_with_endpoints().len(), 1);
    state.apply(Change::Services(Event::Delete(ObjectName::new("default", "web"))));
    assert!(state.peers_with_endpoints().is_empty());
}
