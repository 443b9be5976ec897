//! What one Service may cost every node: what fits is served, and its owner learns what does not.

use std::{collections::BTreeSet, net::IpAddr, num::NonZero};

use crate::common::*;
use ipnet::IpNet;
use ipvs::{Family, Protocol, Scheduler};
use proptest::{prelude::*, sample::select};
use service::{
    AddressKind, Balancing, Change, DesiredService, Endpoint, EndpointReason, EndpointSlice, Event,
    MAX_ALLOWED_SOURCES, MAX_REAL_SERVERS, MAX_REAL_SERVERS_MH, MAX_REAL_SERVERS_PER_VIRTUAL_SERVER,
    MAX_VIRTUAL_SERVERS, Node, Service, ServicePort, State,
};

fn v4(from: u32, number: u32) -> IpAddr {
    IpAddr::V4((from + number).into())
}

fn external_ips(count: u32) -> Vec<IpAddr> {
    (0..count).map(|number| v4(0xcb00_0000, number)).collect()
}

/// Ports 1000, 1001 and so on, each with a name.
fn ports(count: u16) -> Vec<ServicePort> {
    (0..count).map(|number| port(&format!("p{number}"), Protocol::Tcp, 1_000 + number)).collect()
}

/// So many ready endpoints, in slices of a thousand, for ports with these names.
fn slices(count: u32, ports: &[ServicePort]) -> Vec<EndpointSlice> {
    let endpoints: Vec<Endpoint> =
        (0..count).map(|number| Endpoint { address: v4(0x0b00_0000, number), ..ready("11.0.0.0") }).collect();
    let of_ports = || ports.iter().map(|it| listening(&it.name, Protocol::Tcp, 8080)).collect();
    let slice = |(number, some): (usize, &[Endpoint])| EndpointSlice {
        ports: of_ports(),
        ..slice(&format!("web-{number}"), "web", some)
    };
    endpoints.chunks(1_000).enumerate().map(slice).collect()
}

fn by(scheduler: Scheduler) -> Balancing {
    Balancing { scheduler: Some(scheduler), ..Balancing::default() }
}

/// The ports with NodePorts from 30000.
fn with_node_ports(ports: Vec<ServicePort>) -> Vec<ServicePort> {
    let numbered = (30_000..).zip(ports);
    numbered.map(|(number, port)| ServicePort { node_port: NonZero::new(number), ..port }).collect()
}

/// A node with so many addresses, of which its Node lists the last.
fn node_with(addresses: u32) -> [Change; 2] {
    let here: BTreeSet<_> = (1..=addresses).map(|number| v4(0xc000_0200, number)).collect();
    let ips = here.last().copied().into_iter().collect();
    [
        Change::Node(Some(Node { ips, ..Node::default() })),
        Change::NodeAddresses { here, lost: BTreeSet::new() },
    ]
}

fn on_node_with(addresses: u32, web: &Service, slices: &[EndpointSlice]) -> State {
    let mut state = state_of(std::slice::from_ref(web), slices);
    for change in node_with(addresses) {
        state.apply(change);
    }
    state
}

fn desired(state: &State) -> &DesiredService {
    state.desired(&name("web")).unwrap()
}

fn count(desired: &DesiredService, kind: AddressKind) -> usize {
    desired.virtual_servers.iter().filter(|server| server.kind == kind).count()
}

fn real_servers_of_all(desired: &DesiredService) -> usize {
    desired.virtual_servers.iter().map(|server| server.real_servers.len()).sum()
}

/// What its owner is notified of, which is what `explain` shows.
fn problems(state: &State) -> Vec<String> {
    let problems: Vec<String> =
        state.reports().problems().flat_map(|(_, problems)| problems.to_vec()).collect();
    let explained = state.explain(&name("web")).problems;
    assert_eq!(explained, problems.iter().map(|it| format!("default/web: {it}")).collect::<Vec<_>>());
    problems
}

/// What public reports ask for: kubernetes#23864, #80111 and #129389, community#1738. kube-proxy serves all of it.
#[test]
fn what_reports_ask_for_is_served_whole() {
    let balanced = |count: u16| Service {
        load_balancer_ips: ips(&["203.0.113.1"]),
        ports: with_node_ports(ports(count)),
        ..service("web", "10.96.0.1")
    };
    let by_client = Service { balancing: Some(by(Scheduler::MH).into()), ..balanced(10) };
    let in_ranges = Service { load_balancer_source_ranges: Some(apart(5)), ..balanced(1_001) };
    let in_ten_lans =
        Service { external_ips: external_ips(10), ports: ports(3_000), ..service("web", "10.96.0.1") };
    // Each slice has ten of the ports, as that of a named port whose number is not the same in all pods.
    let ten_of_the_ports = |(number, some): (usize, &[ServicePort])| {
        let listed = slices(10, some).pop().unwrap();
        EndpointSlice { name: name(&format!("web-{number}")), ..listed }
    };
    let by_ten_ports: Vec<_> = ports(100).chunks(10).enumerate().map(ten_of_the_ports).collect();
    for (what, web, slices, addresses) in [
        ("100 ports, 100 pods, 2 addresses", balanced(100), slices(100, &ports(100)), 2),
        ("100 ports, 100 pods, 14 addresses", balanced(100), slices(100, &ports(100)), 14),
        ("3 ports, 5000 pods, 10 addresses", balanced(3), slices(5_000, &ports(3)), 10),
        ("mh, 10 ports, 280 pods, 4 addresses", by_client, slices(280, &ports(10)), 4),
        ("100 ports, 10 pods, slices of 10 ports", balanced(100), by_ten_ports, 14),
        ("1001 ports, 5 source ranges", in_ranges, slices(3, &ports(1_001)), 2),
        ("3000 ports at 10 external IPs", in_ten_lans, slices(5, &ports(3_000)), 2),
    ] {
        let state = on_node_with(addresses, &web, &slices);
        assert_eq!(problems(&state), [""; 0], "{what}");
        let of_the_node = if web.external_ips.is_empty() { usize::try_from(addresses).unwrap() } else { 0 };
        let addresses = 1 + web.load_balancer_ips.len() + web.external_ips.len() + of_the_node;
        assert_eq!(desired(&state).virtual_servers.len(), web.ports.len() * addresses, "{what}");
        let open = web.load_balancer_source_ranges.as_ref().map_or(0, Vec::len);
        assert!(let_in(&state).iter().all(|ranges| *ranges == open), "{what}");
        assert!(desired(&state).virtual_servers.iter().all(|it| !it.real_servers.is_empty()), "{what}");
    }
}

#[test]
fn node_ports_at_addresses_that_the_node_has_besides_come_last() {
    let web = Service {
        load_balancer_ips: ips(&["198.51.100.1"]),
        external_ips: external_ips(2),
        ports: with_node_ports(ports(10)),
        ..service("web", "10.96.0.1")
    };
    // Room for five addresses, of which the node has twenty.
    let state = on_node_with(20, &web, &slices(5_000, &ports(10)));
    let served =
        [AddressKind::ClusterIp, AddressKind::LoadBalancer, AddressKind::ExternalIp, AddressKind::NodePort]
            .map(|kind| count(desired(&state), kind));
    assert_eq!(served, [10, 10, 20, 12]);
    for port in 30_000..30_010 {
        assert!(
            state.virtual_server(&tcp(&format!("192.0.2.20:{port}"))).is_some(),
            "{port} at the Node's IP"
        );
    }
    assert_eq!(
        problems(&state),
        [
            "spec.ports[].nodePort: of 200 addresses with a port (IPv4) 12 are served: a Service has at most 262144 real \
          servers with the scheduler rr, and the next one has 5000"
        ]
    );
}

#[test]
fn ports_have_a_share_by_their_own_endpoints() {
    // Of one port there are more endpoints than fit a second time.
    let web = Service {
        balancing: Some(by(Scheduler::MH).into()),
        external_ips: external_ips(1),
        ports: ports(2),
        ..service("web", "10.96.0.1")
    };
    let mut all = slices(9_000, &ports(1));
    let few = slices(3, &ports(2)[1..]).pop().unwrap();
    all.push(EndpointSlice { name: name("few"), ..few });
    let state = state_of(std::slice::from_ref(&web), &all);
    assert_eq!(problems(&state), [""; 0]);
    let more = Service { external_ips: external_ips(4), ..web };
    let state = state_of(&[more], &all);
    let at = |text: &str| state.virtual_server(&tcp(text)).is_some();
    assert_eq!(
        ["203.0.0.1:1000", "203.0.0.1:1001", "203.0.0.2:1000", "203.0.0.2:1001", "203.0.0.3:1001"].map(at),
        [true, true, false, true, false],
        "address by address, and of the last one what fits"
    );
}

#[test]
fn virtual_servers_at_the_cluster_ip_come_first_when_there_are_too_many() {
    // 21 kB as JSON, and 400,400 virtual servers.
    let web = Service { external_ips: external_ips(1_000), ports: ports(400), ..service("web", "10.96.0.1") };
    let state = state_of(&[web, service("other", "10.96.0.2")], &[]);
    assert_eq!(count(desired(&state), AddressKind::ClusterIp), 400);
    assert_eq!(count(desired(&state), AddressKind::ExternalIp), MAX_VIRTUAL_SERVERS - 400);
    assert_eq!(
        problems(&state),
        [
            "spec.externalIPs: of 400000 addresses with a port (IPv4) 40560 are served: a Service has at most 40960 virtual \
          servers"
        ]
    );
    assert!(state.virtual_server(&tcp("10.96.0.2:80")).is_some());
}

#[test]
fn real_servers_of_the_cluster_ip_come_first_at_the_limit_of_a_service() {
    let (ports, many) = (ports(4), 5_000);
    let web =
        Service { external_ips: external_ips(100), ports: ports.clone(), ..service("web", "10.96.0.1") };
    let state = state_of(&[web], &slices(many, &ports));
    assert_eq!(count(desired(&state), AddressKind::ClusterIp), 4);
    assert_eq!(desired(&state).virtual_servers.len(), MAX_REAL_SERVERS / 5_000);
    assert_eq!(
        problems(&state),
        [
            "spec.externalIPs: of 400 addresses with a port (IPv4) 48 are served: a Service has at most 262144 real servers \
          with the scheduler rr, and the next one has 5000"
        ]
    );
}

#[test]
fn a_scheduler_that_makes_each_real_server_costly_has_room_for_fewer() {
    let ports = ports(20);
    let web = Service {
        ports: ports.clone(),
        balancing: Some(by(Scheduler::MH).into()),
        ..service("web", "10.96.0.1")
    };
    let state = state_of(std::slice::from_ref(&web), &slices(2_000, &ports));
    assert_eq!(real_servers_of_all(desired(&state)), MAX_REAL_SERVERS_MH / 2_000 * 2_000);
    assert_eq!(
        problems(&state),
        [
            "spec.clusterIPs: of 20 addresses with a port (IPv4) 16 are served: a Service has at most 32768 real servers with \
          the scheduler mh, and the next one has 2000"
        ]
    );
    let usual = Service { balancing: None, ..web };
    assert_eq!(problems(&state_of(&[usual], &slices(2_000, &ports))), [""; 0]);
}

#[test]
fn what_fits_does_not_depend_on_which_endpoints_are_ready() {
    let ports = ports(40);
    let web = Service { ports: ports.clone(), ..service("web", "10.96.0.1") };
    let mut all = slices(9_000, &ports);
    let served = |slices: &[EndpointSlice]| virtual_servers(&state_of(std::slice::from_ref(&web), slices));
    let with_ready = served(&all);
    assert_eq!(with_ready.len(), MAX_REAL_SERVERS / 9_000);
    for endpoint in all.iter_mut().flat_map(|slice| &mut slice.endpoints) {
        endpoint.ready = false;
    }
    assert_eq!(served(&all), with_ready);
}

#[test]
fn a_virtual_server_has_ten_thousand_endpoints_and_explain_names_the_others() {
    let web = || Service { ports: ports(1), ..service("web", "10.96.0.1") };
    let full = state_of(&[web()], &slices(10_000, &ports(1)));
    assert_eq!(desired(&full).virtual_servers[0].real_servers.len(), MAX_REAL_SERVERS_PER_VIRTUAL_SERVER);
    assert_eq!(problems(&full), [""; 0]);

    let state = state_of(&[web()], &slices(10_002, &ports(1)));
    assert_eq!(
        desired(&state).virtual_servers[0].real_servers,
        desired(&full).virtual_servers[0].real_servers
    );
    assert_eq!(
        problems(&state),
        [
            "endpoints: of 10002 (IPv4) only the first 10000 usable ones by address are used: the limit of a virtual server"
        ]
    );
    let explanation = state.explain(&name("web"));
    let beyond = explanation.parts[0].endpoints.iter().filter(|it| it.reason != EndpointReason::Used);
    assert_eq!(
        beyond.map(|it| (it.address.to_string(), it.reason)).collect::<Vec<_>>(),
        [
            ("11.0.39.16:8080".into(), EndpointReason::BeyondLimit),
            ("11.0.39.17:8080".into(), EndpointReason::BeyondLimit)
        ]
    );
}

/// Every other address: nothing can be merged.
fn apart(count: u32) -> Vec<IpNet> {
    (0..count).map(|number| v4(0x0a00_0000, 2 * number).into()).collect()
}

fn balanced(ranges: Vec<IpNet>, ports: Vec<ServicePort>) -> Service {
    Service {
        load_balancer_ips: ips(&["203.0.113.1"]),
        load_balancer_source_ranges: Some(ranges),
        external_ips: ips(&["203.0.113.2"]),
        ports,
        ..service("web", "10.96.0.1")
    }
}

/// How many ranges are let in at each port of the load balancer's address.
fn let_in(state: &State) -> Vec<usize> {
    let servers = desired(state).virtual_servers.iter();
    servers.filter_map(|server| Some(server.allowed_sources.as_ref()?.len())).collect()
}

#[test]
fn source_ranges_that_do_not_fit_let_no_client_in_and_the_rest_is_served() {
    let most = u32::try_from(MAX_ALLOWED_SOURCES).unwrap();
    // One more for the node, which may be a client of itself.
    let mut state = state_of(&[balanced(apart(most / 2 - 1), ports(2))], &[]);
    assert_eq!(let_in(&state), [MAX_ALLOWED_SOURCES / 2 - 1; 2]);
    assert_eq!(problems(&state), [""; 0]);

    state.apply(Change::Services(Event::Apply(balanced(apart(most / 2), ports(2)))));
    assert_eq!(let_in(&state), [MAX_ALLOWED_SOURCES / 2, 0], "the second is closed to all, and not open");
    assert_eq!(
        problems(&state),
        [
            "spec.loadBalancerSourceRanges: no client is let in at 1 of 2 load-balancer addresses with a port (IPv4): merged where \
          they touch, the ranges take 3073 elements at each, and a Service has at most 6144"
        ]
    );
    for at in ["10.96.0.1:1000", "203.0.113.2:1001"] {
        assert_eq!(state.virtual_server(&tcp(at)).unwrap().allowed_sources, None, "{at}");
    }

    state.apply(Change::Services(Event::Apply(balanced(apart(most), ports(2)))));
    assert_eq!(let_in(&state), [0; 2]);
    // Not even the node itself, which would be let in if it were in a range.
    state.apply(Change::Node(Some(Node { ips: ips(&["10.0.0.0"]), ..Node::default() })));
    assert_eq!(let_in(&state), [0; 2]);

    state.apply(Change::Services(Event::Apply(balanced(apart(10), ports(2)))));
    assert_eq!(let_in(&state), [11; 2], "and the node");
}

#[test]
fn ranges_that_touch_count_once() {
    let neighbours = (0..100_000).map(|number| v4(0x0a00_0000, number).into()).collect();
    assert_eq!(let_in(&state_of(&[balanced(neighbours, ports(1))], &[])), [1]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_service_asks_for_it_has_no_more_than_it_may(
        addresses in select(&[0, 1, 3, 60, 20_000][..]),
        port_count in select(&[1_u16, 2, 40, 20_000][..]),
        of_the_node in select(&[1_u32, 2, 30][..]),
        endpoints in select(&[0_u32, 1, 700, 12_000][..]),
        ranges in select(&[0_u32, 1, 50, 5_000][..]),
        scheduler in select(&[None, Some(Scheduler::WRR), Some(Scheduler::MH)][..]),
    ) {
        let ports = ports(port_count);
        let web = Service {
            external_ips: external_ips(addresses),
            balancing: Some(Box::new(Balancing { scheduler, ..Balancing::default() })),
            ..balanced(apart(ranges), with_node_ports(ports.clone()))
        };
        // More than the first ports have no endpoints: with them, this test would take minutes.
        let slices = slices(endpoints, &ports[..ports.len().min(40)]);
        let state = on_node_with(of_the_node, &web, &slices);
        let desired = desired(&state);
        let most_real_servers =
            if scheduler == Some(Scheduler::MH) { MAX_REAL_SERVERS_MH } else { MAX_REAL_SERVERS };
        prop_assert!(desired.virtual_servers.len() <= MAX_VIRTUAL_SERVERS);
        prop_assert!(real_servers_of_all(desired) <= most_real_servers);
        prop_assert!(desired.virtual_servers.iter().all(|it| it.real_servers.len() <= MAX_REAL_SERVERS_PER_VIRTUAL_SERVER));
        prop_assert!(let_in(&state).iter().sum::<usize>() <= MAX_ALLOWED_SOURCES);
        // A load balancer's address is restricted all the same.
        let of_load_balancer = desired.virtual_servers.iter().filter(|it| it.kind == AddressKind::LoadBalancer);
        prop_assert!(of_load_balancer.clone().all(|it| it.allowed_sources.is_some()));

        // Something is served, and what comes later only where all that comes before it is.
        let asked = usize::from(port_count);
        let served = [AddressKind::ClusterIp, AddressKind::LoadBalancer, AddressKind::ExternalIp].map(|kind| count(desired, kind));
        prop_assert!(served[0] > 0);
        let node_ports = count(desired, AddressKind::NodePort);
        let external = asked * usize::try_from(addresses).unwrap();
        let of_the_node = usize::try_from(of_the_node).unwrap();
        prop_assert!(node_ports <= asked || served == [asked, asked, external]);

        // Another node serves the same, whatever addresses it has.
        let other = on_node_with(0, &web, &slices);
        for kind in [AddressKind::ClusterIp, AddressKind::LoadBalancer, AddressKind::ExternalIp] {
            let of_kind = |state: &State| -> Vec<_> {
                let all = state.desired(&name("web")).unwrap().virtual_servers.iter();
                all.filter(|it| it.kind == kind).map(|it| (it.address, it.allowed_sources.clone())).collect()
            };
            prop_assert_eq!(of_kind(&state), of_kind(&other));
        }

        // There is a problem exactly where a Service lacks anything.
        let closed = ranges > 0 && let_in(&state).contains(&0);
        let lacks = served != [asked, asked, external] || node_ports != asked * of_the_node || closed || endpoints > 10_000;
        prop_assert_eq!(!problems(&state).is_empty(), lacks, "{:?}", problems(&state));

        // What is explained is what is served.
        let explained: BTreeSet<_> =
            state.explain(&name("web")).parts.into_iter().flat_map(|part| part.addresses).map(|it| it.address).collect();
        prop_assert!(explained.into_iter().eq(desired.virtual_servers.iter().map(|it| it.address)));
        prop_assert!(state.virtual_servers().all(|it| Family::from(it.address.ip) == Family::V4));
    }
}
