//! What one Service may cost every node: what fits is served, and its owner is problems what does not.

use std::{collections::BTreeSet, net::IpAddr};

use crate::common::*;
use ipnet::IpNet;
use ipvs::{Family, Protocol, Scheduler};
use proptest::{prelude::*, sample::select};
use service::{
    AddressKind, Balancing, Change, DesiredService, Endpoint, EndpointReason, EndpointSlice,
    MAX_ALLOWED_SOURCES, MAX_REAL_SERVERS, MAX_REAL_SERVERS_MH, MAX_REAL_SERVERS_PER_VIRTUAL_SERVER,
    MAX_VIRTUAL_SERVERS, Service, ServicePort, State,
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
        state.problems_by_service().flat_map(|(_, problems)| problems.to_vec()).collect();
    let explained = state.explain(&name("web")).problems;
    assert_eq!(explained, problems.iter().map(|it| format!("default/web: {it}")).collect::<Vec<_>>());
    problems
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
            "spec.externalIPs: of 400000 addresses with a port (IPv4) 15984 are served: a Service has at most 16384 virtual \
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
            "spec.externalIPs: of 400 addresses with a port (IPv4) 22 are served: a Service has at most 131072 real servers \
          with the scheduler rr, and here each has 5000"
        ]
    );
}

#[test]
fn a_scheduler_that_makes_each_real_server_costly_has_room_for_fewer() {
    let ports = ports(10);
    let balancing = Balancing { scheduler: Some(Scheduler::MH), ..Balancing::default() };
    let web =
        Service { ports: ports.clone(), balancing: Some(Box::new(balancing)), ..service("web", "10.96.0.1") };
    let state = state_of(std::slice::from_ref(&web), &slices(2_000, &ports));
    assert_eq!(real_servers_of_all(desired(&state)), MAX_REAL_SERVERS_MH / 2_000 * 2_000);
    assert_eq!(
        problems(&state),
        [
            "spec.clusterIPs: of 10 addresses with a port (IPv4) 8 are served: a Service has at most 16384 real servers with \
          the scheduler mh, and here each has 2000"
        ]
    );
    let usual = Service { balancing: None, ..web };
    assert_eq!(problems(&state_of(&[usual], &slices(2_000, &ports))), [""; 0]);
}

#[test]
fn what_fits_does_not_depend_on_which_endpoints_are_ready() {
    let ports = ports(20);
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
            "endpoints: of 10002 (IPv4) the first 10000 by address that can be used are: no virtual server has more"
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
fn too_many_source_ranges_let_no_client_in_and_the_rest_is_served() {
    let most = u32::try_from(MAX_ALLOWED_SOURCES).unwrap();
    let mut state = state_of(&[balanced(apart(most / 2), ports(2))], &[]);
    assert_eq!(let_in(&state), [MAX_ALLOWED_SOURCES / 2; 2]);
    assert_eq!(problems(&state), [""; 0]);

    state.apply(Change::ApplyService(balanced(apart(most / 2 + 1), ports(2))));
    assert_eq!(let_in(&state), [0; 2], "closed to all, and not open");
    assert_eq!(
        problems(&state),
        [
            "spec.loadBalancerSourceRanges: nobody is let in: once for each load-balancer address and port, and merged where \
          they touch, they are 4098, and a Service has at most 4096"
        ]
    );
    for at in ["10.96.0.1:1000", "203.0.113.2:1001"] {
        assert_eq!(state.virtual_server(&tcp(at)).unwrap().allowed_sources, None, "{at}");
    }
    // Not even the node itself, which would be let in if it were in a range.
    state.apply(Change::ApplyNode(service::Node { ips: ips(&["10.0.0.0"]), ..service::Node::default() }));
    assert_eq!(let_in(&state), [0; 2]);

    state.apply(Change::ApplyService(balanced(apart(10), ports(2))));
    assert_eq!(let_in(&state), [11; 2], "and the node");
}

#[test]
fn ranges_that_touch_count_once() {
    let neighbours = (0..100_000).map(|number| v4(0x0a00_0000, number).into()).collect();
    assert_eq!(let_in(&state_of(&[balanced(neighbours, ports(1))], &[])), [1]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_service_asks_for_it_has_no_more_than_it_may(
        addresses in select(&[0, 1, 3, 60, 20_000][..]),
        port_count in select(&[1_u16, 2, 40, 20_000][..]),
        endpoints in select(&[0_u32, 1, 700, 12_000][..]),
        ranges in select(&[0_u32, 1, 50, 5_000][..]),
        scheduler in select(&[None, Some(Scheduler::WRR), Some(Scheduler::MH)][..]),
    ) {
        let ports = ports(port_count);
        let web = Service {
            external_ips: external_ips(addresses),
            balancing: Some(Box::new(Balancing { scheduler, ..Balancing::default() })),
            ..balanced(apart(ranges), ports.clone())
        };
        // More than the first ports have no endpoints: with them, this test would take minutes.
        let state = state_of(&[web], &slices(endpoints, &ports[..ports.len().min(40)]));
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
        prop_assert!(served[1] == 0 || served[0] == asked);
        prop_assert!(served[2] == 0 || served[1] == asked);

        // There is a problem exactly where a Service lacks anything.
        let external = asked * usize::try_from(addresses).unwrap();
        let closed = ranges > 0 && served[1] > 0 && let_in(&state).iter().all(|it| *it == 0);
        let lacks = served != [asked, asked, external] || closed || endpoints > 10_000;
        prop_assert_eq!(!problems(&state).is_empty(), lacks, "{:?}", problems(&state));

        // What is explained is what is served.
        let explained: BTreeSet<_> =
            state.explain(&name("web")).parts.into_iter().flat_map(|part| part.addresses).map(|it| it.address).collect();
        prop_assert!(explained.into_iter().eq(desired.virtual_servers.iter().map(|it| it.address)));
        prop_assert!(state.virtual_servers().all(|it| Family::from(it.address.ip) == Family::V4));
    }
}
