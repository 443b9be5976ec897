use std::time::{Duration, SystemTime};

use ipvs::{Family, Protocol, Scheduler};
use proptest::{collection::vec, prelude::*, sample::select};
use service::{
    Endpoint, EndpointPort, EndpointSlice, ExternalForwarding, Node, Options, Service, ServicePort, State,
    Unpacking,
};

use super::*;

fn service(name: &str, ip: &str) -> Service {
    Service {
        cluster_ips: vec![ip.parse().unwrap()],
        ports: vec![ServicePort { name: "".into(), protocol: Protocol::Tcp, port: 80, node_port: None }],
        ..Service::new(ObjectName::new("default", name))
    }
}

fn slice(name: &str, of: &str, endpoints: &[&str]) -> EndpointSlice {
    let endpoint = |address: &&str| Endpoint::new(address.parse().unwrap());
    EndpointSlice {
        ports: vec![EndpointPort { name: "".into(), protocol: Protocol::Tcp, port: 8080 }],
        endpoints: endpoints.iter().map(endpoint).collect(),
        ..EndpointSlice::new(ObjectName::new("default", name), ObjectName::new("default", of), Family::V4)
    }
}

fn peer(name: &str, ip: &str) -> Node {
    Node {
        name: name.into(),
        ips: vec![ip.parse().unwrap()],
        overlay_ips: Vec::new(),
        pod_cidrs: Vec::new(),
        problems: Vec::new(),
        ..Node::default()
    }
}

fn unpacking() -> Unpacking {
    Unpacking { families: Family::BOTH.into(), gue: false }
}

// Few of each kind, so that they meet often.

const NAMES: &[&str] = &["a", "b", "c"];

fn any_name() -> impl Strategy<Value = ObjectName> {
    select(NAMES).prop_map(|name| ObjectName::new("default", name))
}

fn any_service() -> impl Strategy<Value = Service> {
    let external = select(&[None, Some("192.0.2.1"), Some("192.0.2.2"), Some("203.0.113.7")][..]);
    (select(NAMES), select(&["10.96.0.1", "10.96.0.2"][..]), external).prop_map(|(name, ip, external)| {
        Service {
            external_ips: external.into_iter().map(|ip: &str| ip.parse().unwrap()).collect(),
            ..service(name, ip)
        }
    })
}

fn any_slice() -> impl Strategy<Value = EndpointSlice> {
    let endpoints = vec(select(&["10.244.0.1", "10.244.0.2"][..]), 0..3);
    (select(NAMES), select(NAMES), endpoints).prop_map(|(name, of, endpoints)| slice(name, of, &endpoints))
}

fn any_node() -> impl Strategy<Value = Node> {
    let ips = vec(select(&["192.0.2.1", "192.0.2.2"][..]), 0..2);
    ips.prop_map(|ips| Node { ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(), ..Node::default() })
}

fn any_peer() -> impl Strategy<Value = Node> {
    (select(NAMES), select(&["192.0.2.7", "192.0.2.8"][..])).prop_map(|(name, ip)| peer(name, ip))
}

fn any_change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => any_service().prop_map(|service| Change::Services(Event::Apply(service))),
        2 => any_name().prop_map(|name| Change::Services(Event::Delete(name))),
        4 => any_slice().prop_map(|slice| Change::Slices(Event::Apply(slice))),
        2 => any_name().prop_map(|name| Change::Slices(Event::Delete(name))),
        1 => vec(any_service(), 0..3).prop_map(|services| Change::Services(Event::Replace(services))),
        1 => vec(any_service(), 0..3).prop_map(|services| Change::Services(Event::InitApply(services))),
        1 => vec(any_name(), 0..3).prop_map(|names| Change::Services(Event::InitDone(names.into_iter().collect()))),
        1 => vec(any_slice(), 0..3).prop_map(|slices| Change::Slices(Event::Replace(slices))),
        1 => vec(any_slice(), 0..3).prop_map(|slices| Change::Slices(Event::InitApply(slices))),
        1 => vec(any_name(), 0..3).prop_map(|names| Change::Slices(Event::InitDone(names.into_iter().collect()))),
        1 => any_node().prop_map(|node| Change::Node(Some(node))),
        1 => Just(Change::Node(None)),
        1 => any_peer().prop_map(|node| Change::Peers(Event::Apply(node))),
        1 => vec(any_peer(), 0..3).prop_map(|nodes| Change::Peers(Event::InitApply(nodes))),
        1 => any_name().prop_map(|name| Change::Peers(Event::InitDone([ObjectName::new("", name.name())].into_iter().collect()))),
        1 => vec(any_peer(), 0..3).prop_map(|nodes| Change::Peers(Event::Replace(nodes))),
        1 => Just(Change::ForgetPeers),
        1 => select(NAMES).prop_map(|name| Change::UnpackingPeers([(name.into(), unpacking())].into())),
    ]
}

fn pending(changes: impl IntoIterator<Item = Change>) -> PendingChanges {
    let mut pending = PendingChanges::default();
    changes.into_iter().for_each(|change| pending.push(change));
    pending
}

/// What is wanted after these changes.
fn wanted(changes: impl IntoIterator<Item = Change>) -> String {
    let mut state = State::new(Options {
        scheduler: Scheduler::RR,
        external_forwarding: ExternalForwarding::Tunnel,
        knows_pods: Family::BOTH.into(),
        answers_peers: true,
        ..Options::new("node")
    });
    state.apply(Change::LinkMtu(1_500));
    changes.into_iter().for_each(|change| drop(state.apply(change)));
    let mut servers: Vec<_> = state.virtual_servers().map(|server| format!("{server:?}")).collect();
    servers.sort();
    let elements: std::collections::BTreeSet<_> = state.elements().collect();
    let health_checks: Vec<_> = state.reports().health_checks().collect();
    let peers = (state.knows_peers(), state.peers_with_endpoints());
    format!("{servers:#?} {elements:?} {health_checks:?} {peers:?} {}", state.synced())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pending_changes_lead_to_the_same_state_as_all_changes(batches in vec(vec(any_change(), 0..20), 0..3)) {
        let received = batches.iter().flatten().cloned();
        let taken = batches.iter().cloned().flat_map(|batch| pending(batch).take()).map(|pending| pending.change);
        prop_assert_eq!(wanted(taken), wanted(received));
    }

    #[test]
    fn every_object_and_every_change_is_counted(changes in vec(any_change(), 0..40)) {
        let objects = changes.iter().map(|change| objects_of(change).1).sum::<usize>();
        let count = changes.len();
        let taken = pending(changes).take();
        prop_assert_eq!(taken.iter().map(|pending| pending.objects).sum::<usize>(), objects);
        prop_assert_eq!(taken.iter().map(|pending| pending.changes).sum::<usize>(), count);
    }
}

#[test]
fn ten_thousand_services_that_change_for_five_minutes_wait_once_each() {
    let mut pending = PendingChanges::default();
    for second in 0..300 {
        for number in 0..10_000 {
            let name = format!("web-{number}");
            pending.push(Change::Slices(Event::Apply(slice(
                &name,
                &name,
                &[["10.244.0.1", "10.244.0.2"][second % 2]],
            ))));
        }
    }
    let taken = pending.take();
    assert_eq!(taken.len(), 10_000);
    let last = |pending: &PendingChange| {
        let Change::Slices(Event::Apply(slice)) = &pending.change else { return false };
        slice.endpoints[0].address == std::net::IpAddr::from([10, 244, 0, 2]) && pending.objects == 300
    };
    assert!(taken.iter().all(last), "of each the last");
    assert!(pending.is_empty());
}

#[test]
fn a_first_list_that_breaks_off_for_hours_waits_once() {
    let mut pending = PendingChanges::default();
    for attempt in 0..100 {
        for part in 0..10 {
            let ip = ["10.96.0.1", "10.96.0.2"][attempt % 2];
            let services = (0..100).map(|number| service(&format!("web-{part}-{number}"), ip));
            pending.push(Change::Services(Event::InitApply(services.collect())));
            let slices = (0..100).map(|number| slice(&format!("web-{part}-{number}"), "web", &[]));
            pending.push(Change::Slices(Event::InitApply(slices.collect())));
        }
    }
    let last: Vec<_> = (0..1_000)
        .map(|number| service(&format!("web-{}-{}", number / 100, number % 100), "10.96.0.9"))
        .collect();
    pending.push(Change::Services(Event::InitApply(last.clone())));
    let taken = pending.take();
    assert_eq!(taken.len(), 2);
    let Change::Services(Event::InitApply(services)) = &taken[0].change else {
        panic!("{:?}", taken[0].kind)
    };
    assert!(services.len() <= 3_000, "{}", services.len());
    assert_eq!(services[services.len() - 1_000..], last);
    assert_eq!((taken[0].objects, taken[0].changes), (101_000, 1_001));
}

#[test]
fn what_changes_about_this_node_and_others_waits_once() {
    let mut pending = PendingChanges::default();
    for number in 0..10_000_u32 {
        let ips = if number == 9_999 { Vec::new() } else { vec![std::net::Ipv4Addr::from(number).into()] };
        pending.push(Change::Node(Some(Node {
            ips,
            zone: Some(format!("{number}").into()),
            ..Node::default()
        })));
        pending.push(Change::Node(None));
        pending.push(Change::Slices(Event::Apply(slice("web", "web", &[]))));
        pending.push(Change::Services(Event::Replace(Vec::new())));
        pending.push(Change::UnpackingPeers([("a".into(), unpacking())].into()));
        pending.push(Change::Peers(Event::InitApply(vec![peer("a", "192.0.2.7")])));
        pending.push(Change::Peers(Event::InitDone([ObjectName::new("", "a")].into_iter().collect())));
        pending.push(Change::ForgetPeers);
    }
    let taken = pending.take();
    assert_eq!(taken.iter().map(|pending| pending.changes).sum::<usize>(), 80_000);
    let changes: Vec<_> = taken.into_iter().map(|pending| pending.change).collect();
    let node = Node {
        ips: vec![std::net::Ipv4Addr::from(9_998).into()],
        zone: Some("9999".into()),
        ..Node::default()
    };
    assert_eq!(
        changes,
        [
            Change::Node(Some(node)),
            Change::Slices(Event::Apply(slice("web", "web", &[]))),
            Change::Services(Event::Replace(Vec::new())),
            Change::ForgetPeers
        ]
    );
}

#[test]
fn a_change_is_as_late_as_the_first_one_that_it_replaced() {
    let at = |seconds| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    let triggered =
        |at| Change::Slices(Event::Apply(EndpointSlice { triggered_at: at, ..slice("a", "a", &[]) }));
    for (received, kept) in [([at(2), at(5)], at(2)), ([None, at(5)], at(5)), ([at(2), None], at(2))] {
        let taken = pending(received.map(triggered)).take();
        assert_eq!(taken.into_iter().map(|pending| pending.change).collect::<Vec<_>>(), [triggered(kept)]);
    }
}
