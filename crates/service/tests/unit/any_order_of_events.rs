//! What holds after any events in any order.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    num::NonZero,
    sync::Arc,
};

use crate::common::*;
use ipnet::IpNet;
use ipvs::{Family, Forwarding, Protocol, Scheduler, ServiceFlags, Tunnel, TunnelKind};
use netfilter::{Element, PodPort};
use proptest::{
    collection::{btree_map, vec},
    option,
    prelude::*,
    sample::{select, subsequence},
};
use rustc_hash::FxHashSet;
use service::{
    Absence, AddressKind, AddressOwner, AddressQuery, Balancing, ByDistance, Change, Dirty, DistanceWeights,
    Endpoint, EndpointReason, EndpointSlice, Event, ExternalForwarding, ExternalIps, ForwardingMethod, Node,
    NodePortAddresses, ObjectName, Options, Service, ServiceKind, ServicePort, State, TrafficPolicy,
    Unpacking, UnpackingPeers, UntrackedServices, Weight,
};

/// The inputs after all events: what a list would say.
#[derive(Clone, Debug, Default)]
struct Inputs {
    services: BTreeMap<ObjectName, Service>,
    slices: BTreeMap<ObjectName, EndpointSlice>,
    node: Node,
    addresses: BTreeSet<IpAddr>,
    lost_addresses: BTreeSet<IpAddr>,
    missing_schedulers: BTreeMap<Scheduler, Absence>,
    api_server: BTreeSet<SocketAddr>,
    gateways: BTreeSet<IpAddr>,
    peers: BTreeMap<Arc<str>, Node>,
    peers_listed: bool,
    peers_unavailable: bool,
    unpacking: UnpackingPeers,
    tunnelled_before: BTreeMap<IpAddr, Tunnel>,
    link_mtu: Option<u32>,
    missing_tunnels: BTreeSet<Family>,
    tunnels_in_use: BTreeSet<Family>,
}

impl Inputs {
    fn after(changes: &[Change]) -> Self {
        let mut inputs = Self::default();
        for change in changes {
            inputs.take(change.clone());
        }
        inputs
    }

    /// Whether a slice comes to another Service with it.
    fn moves_a_slice(&self, change: &Change) -> bool {
        let Change::Slices(Event::Apply(slice)) = change else { return false };
        self.slices.get(&slice.name).is_some_and(|before| before.service != slice.service)
    }

    fn take(&mut self, change: Change) {
        match change {
            Change::Services(Event::Replace(list)) => {
                self.services = list.into_iter().map(|service| (service.name.clone(), service)).collect();
            }
            Change::Services(Event::InitApply(list)) => {
                self.services.extend(list.into_iter().map(|service| (service.name.clone(), service)));
            }
            Change::Services(Event::InitDone(names)) => self.services.retain(|name, _| names.contains(name)),
            Change::Services(Event::Apply(service)) => {
                drop(self.services.insert(service.name.clone(), service));
            }
            Change::Services(Event::Delete(name)) => drop(self.services.remove(&name)),
            Change::Slices(Event::Replace(list)) => {
                self.slices = list.into_iter().map(|slice| (slice.name.clone(), slice)).collect();
            }
            Change::Slices(Event::InitApply(list)) => {
                self.slices.extend(list.into_iter().map(|slice| (slice.name.clone(), slice)));
            }
            Change::Slices(Event::InitDone(names)) => self.slices.retain(|name, _| names.contains(name)),
            Change::Slices(Event::Apply(slice)) => drop(self.slices.insert(slice.name.clone(), slice)),
            Change::Slices(Event::Delete(name)) => drop(self.slices.remove(&name)),
            Change::Node(Some(mut node)) => {
                // A Node without IPs keeps those it had.
                if node.ips.is_empty() {
                    node.ips = std::mem::take(&mut self.node.ips);
                }
                self.node = node;
            }
            Change::Node(None) | Change::Answers(_) | Change::Time(_) => {}
            Change::NodeAddresses { here, lost } => (self.addresses, self.lost_addresses) = (here, lost),
            Change::MissingSchedulers(schedulers) => self.missing_schedulers = schedulers,
            Change::ApiServer(addresses) => self.api_server = addresses,
            Change::Gateways(gateways) => self.gateways = gateways,
            Change::PeersUnavailable => self.peers_unavailable = true,
            Change::Peers(Event::Replace(list)) => {
                self.peers_listed = true;
                self.peers = list.into_iter().map(|peer| (peer.name.clone(), peer)).collect();
            }
            Change::Peers(Event::Apply(peer)) => drop(self.peers.insert(peer.name.clone(), peer)),
            Change::Peers(Event::InitApply(list)) => {
                self.peers.extend(list.into_iter().map(|peer| (peer.name.clone(), peer)));
            }
            Change::Peers(Event::InitDone(names)) => {
                self.peers_listed = true;
                self.peers.retain(|name, _| names.contains(&ObjectName::new("", &**name)));
            }
            Change::Peers(Event::Delete(gone)) => drop(self.peers.remove(gone.name())),
            Change::ForgetPeers => {
                self.peers.clear();
                (self.peers_listed, self.peers_unavailable) = (false, false);
                self.unpacking.clear();
                self.tunnelled_before.clear();
            }
            Change::UnpackingPeers(peers) => self.unpacking = peers,
            Change::TunnelledBefore(endpoints) => self.tunnelled_before = endpoints,
            Change::LinkMtu(mtu) => self.link_mtu = Some(mtu),
            Change::MissingTunnels(families) => self.missing_tunnels = families,
            Change::TunnelsInUse(families) => self.tunnels_in_use = families,
        }
    }

    /// The changes that tell all of it, one by one.
    fn changes(&self) -> Vec<Change> {
        let services = self.services.values().cloned().map(|service| Change::Services(Event::Apply(service)));
        let slices = self.slices.values().cloned().map(|slice| Change::Slices(Event::Apply(slice)));
        let node = [
            Change::Node(Some(self.node.clone())),
            Change::NodeAddresses { here: self.addresses.clone(), lost: self.lost_addresses.clone() },
            Change::MissingSchedulers(self.missing_schedulers.clone()),
            Change::ApiServer(self.api_server.clone()),
            Change::Gateways(self.gateways.clone()),
            Change::UnpackingPeers(self.unpacking.clone()),
            Change::TunnelledBefore(self.tunnelled_before.clone()),
            Change::MissingTunnels(self.missing_tunnels.clone()),
            Change::TunnelsInUse(self.tunnels_in_use.clone()),
        ];
        let peers = self.peers.values().cloned().map(|node| Change::Peers(Event::Apply(node)));
        let mtu = self.link_mtu.map(Change::LinkMtu);
        let names = self.peers.keys().map(|name| ObjectName::new("", &**name)).collect();
        let listed = self.peers_listed.then_some(Change::Peers(Event::InitDone(names)));
        let unavailable = self.peers_unavailable.then_some(Change::PeersUnavailable);
        services.chain(slices).chain(node).chain(peers).chain(mtu).chain(listed).chain(unavailable).collect()
    }
}

/// The state after these changes and the end of both lists: before, nothing is acted on.
fn applied(options: &Options, changes: &[Change]) -> State {
    let inputs = Inputs::after(changes);
    let ends = [
        Change::Services(Event::InitDone(inputs.services.into_keys().collect())),
        Change::Slices(Event::InitDone(inputs.slices.into_keys().collect())),
    ];
    let mut state = State::new(options.clone());
    for change in changes.iter().chain(&ends) {
        state.apply(change.clone());
    }
    state
}

// Few values of each kind, so that they meet often.

fn any_port() -> impl Strategy<Value = ServicePort> {
    (select(&["", "http"][..]), select(&[Protocol::Tcp, Protocol::Udp][..]), 1..3_u16, option::of(1..4_u16))
        .prop_map(|(name, protocol, number, node_port)| ServicePort {
            node_port: node_port.and_then(NonZero::new),
            ..port(name, protocol, number)
        })
}

/// Of the node, of load balancers, of Services: an address can be anything.
fn any_ips(most: usize) -> impl Strategy<Value = Vec<IpAddr>> {
    let texts = &["10.96.0.1", "10.96.0.2", "192.0.2.1", "192.0.2.2", "127.0.0.1", "fd00::1", "2001:db8::1"];
    vec(select(&texts[..]).prop_map(ip), 0..=most)
}

/// Nested, twice, with host bits, of everybody and of one; of both families, and none at all.
fn any_source_ranges() -> impl Strategy<Value = Option<Vec<IpNet>>> {
    let range = prop_oneof![
        1 => select(&["0.0.0.0/0", "::/0"][..]),
        9 => select(&[
            "10.0.0.0/8", "10.1.2.3/8", "10.1.0.0/16", "192.0.2.0/24", "192.0.2.1/32", "203.0.113.0/24",
            "2001:db8::/32", "2001:db8::1/128", "fd00::/8",
        ][..]),
    ];
    option::of(vec(range.prop_map(|text| text.parse().unwrap()), 0..5))
}

fn any_policy() -> impl Strategy<Value = TrafficPolicy> {
    select(&[TrafficPolicy::Cluster, TrafficPolicy::Cluster, TrafficPolicy::Local][..])
}

fn any_kind() -> impl Strategy<Value = ServiceKind> {
    let kinds = &[
        ServiceKind::ClusterIp,
        ServiceKind::NodePort,
        ServiceKind::LoadBalancer,
        ServiceKind::LoadBalancer,
        ServiceKind::ExternalName,
    ];
    select(&kinds[..])
}

fn any_scheduler() -> impl Strategy<Value = Scheduler> {
    select(&[Scheduler::RR, Scheduler::WRR, Scheduler::MH][..])
}

fn any_weight() -> impl Strategy<Value = Weight> {
    0..4_u16
}

fn any_balancing() -> impl Strategy<Value = Balancing> {
    let flags = vec![ServiceFlags::empty(), ServiceFlags::SCHEDULER_2, ServiceFlags::all()];
    let flags = option::of(select(flags));
    let weights = |names: &'static [&str]| {
        vec((select(names).prop_map(Arc::from), any_weight()), 0..3)
            .prop_map(|weights| weights.into_iter().collect())
    };
    let thresholds = (option::of(1..4_u32), option::of(1..4_u32));
    let method = (option::of(any_forwarding_method()), option::of(any::<bool>()));
    (option::of(any_scheduler()), flags, weights(&[NODE, "node-b"]), weights(&["a", "b"]), thresholds, method)
        .prop_map(
            |(
                scheduler,
                scheduler_flags,
                node_weights,
                zone_weights,
                (most, below),
                (forwarding_method, conntrack),
            )| {
                let factor = |number| NonZero::new(number).unwrap();
                let by = DistanceWeights { node: factor(100), zone: factor(10), other: factor(1) };
                let distance_weights =
                    most.map(|most| if most > 2 { ByDistance::By(by) } else { ByDistance::Off });
                Balancing {
                    scheduler,
                    scheduler_flags,
                    node_weights,
                    zone_weights,
                    distance_weights,
                    max_connections: most.and_then(NonZero::new),
                    resume_below: below.and_then(NonZero::new),
                    forwarding_method,
                    conntrack,
                    // A slow start depends on the order: it begins beside others.
                    ..Balancing::default()
                }
            },
        )
}

fn any_external_forwarding() -> impl Strategy<Value = ExternalForwarding> {
    use ExternalForwarding::{ByAnnotation, Masquerade, Tunnel};
    select(&[Masquerade, ByAnnotation, ByAnnotation, Tunnel, Tunnel][..])
}

fn any_forwarding_method() -> impl Strategy<Value = ForwardingMethod> {
    select(&[ForwardingMethod::Masquerade, ForwardingMethod::Tunnel, ForwardingMethod::Tunnel][..])
}

fn any_families() -> impl Strategy<Value = BTreeSet<Family>> {
    subsequence(Family::BOTH.to_vec(), 0..=2).prop_map(|families| families.into_iter().collect())
}

fn any_unpacking() -> impl Strategy<Value = Unpacking> {
    (any_families(), any::<bool>()).prop_map(|(families, gue)| Unpacking { families, gue })
}

fn any_peer() -> impl Strategy<Value = Node> {
    let names = select(&["node-b", "node-c"][..]);
    let pods = vec(select(&["10.1.0.0/24", "198.51.100.0/24"][..]), 0..2);
    (names, any_ips(2), any_ips(1), pods).prop_map(|(name, ips, overlay_ips, pods)| Node {
        name: name.into(),
        ips,
        overlay_ips,
        pod_cidrs: pods.iter().map(|range| range.parse().unwrap()).collect(),
        problems: Vec::new(),
        ..Node::default()
    })
}

/// Names of Services, each with its creation time: a Service that is created again under its name may keep its age.
const AGES: [(&str, Option<i64>); 5] =
    [("a", Some(2)), ("b", Some(1)), ("c", None), ("kube-system/dns", Some(1)), ("kubernetes", Some(0))];

fn any_service() -> impl Strategy<Value = Service> {
    let identity = (select(&AGES[..]), any_kind(), any::<u8>());
    let addresses = (any_ips(2), any_ips(2), any_ips(2), any_source_ranges(), vec(any_port(), 0..3));
    let balancing = option::of(any_balancing());
    let policies = (option::of(1..3_u32), any_policy(), any_policy(), option::of(1..3_u16), balancing);
    (identity, addresses, policies).prop_map(
        |(
            ((text, created), kind, other_proxy),
            (cluster_ips, external_ips, load_balancer_ips, load_balancer_source_ranges, ports),
            (session_affinity, internal_traffic_policy, external_traffic_policy, health_check, balancing),
        )| Service {
            created,
            kind,
            cluster_ips,
            external_ips,
            load_balancer_ips,
            load_balancer_source_ranges,
            ports,
            session_affinity,
            internal_traffic_policy,
            external_traffic_policy,
            health_check_node_port: health_check.and_then(NonZero::new),
            balancing: balancing.map(Box::new),
            other_proxy: other_proxy < 25,
            ..Service::new(name(text))
        },
    )
}

fn any_external_ips() -> impl Strategy<Value = ExternalIps> {
    let only = |ranges: &[&str]| ExternalIps::In(ranges.iter().map(|range| range.parse().unwrap()).collect());
    select(vec![
        ExternalIps::Off,
        ExternalIps::Unowned,
        only(&["192.0.2.1/32"]),
        only(&["0.0.0.0/0", "2001:db8::/64"]),
    ])
}

fn any_options() -> impl Strategy<Value = Options> {
    let node_port_addresses = vec![
        NodePortAddresses::default(),
        NodePortAddresses { primary: true, ranges: Vec::new() },
        NodePortAddresses { primary: true, ..in_ranges(&["192.0.2.1/32"]) },
        in_ranges(&["192.0.2.1/32"]),
        in_ranges(&["192.0.2.0/24", "2001:db8::/64"]),
    ];
    let bind_address = option::of(select(&["192.0.2.2", "2001:db8::2"][..]));
    let direct_return = (
        any_external_forwarding(),
        any_families(),
        any_tunnel(),
        prop_oneof![4 => Just(true), 1 => Just(false)],
        any::<bool>(),
    );
    let of_pods = vec!["10.1.0.0/16".parse().unwrap(), "fd01::/64".parse().unwrap()];
    let untracked = (
        subsequence(UntrackedServices::all().iter().collect::<Vec<_>>(), 0..=2),
        select(vec![Vec::new(), of_pods]),
    );
    (select(node_port_addresses), bind_address, any_external_ips(), direct_return, untracked).prop_map(
        |(node_port_addresses, bind_address, external_ips, direct_return, untracked)| {
            let (external_forwarding, knows_pods, tunnel, answers_peers, watches_nodes) = direct_return;
            Options {
                node_port_addresses,
                bind_address: bind_address.map(ip),
                external_ips,
                external_forwarding,
                knows_pods,
                tunnel,
                answers_peers,
                watches_nodes,
                untracked_services: untracked.0.into_iter().collect(),
                untracked_pods: untracked.1,
                ..options()
            }
        },
    )
}

fn any_tunnel() -> impl Strategy<Value = Tunnel> {
    select(vec![Tunnel::default(), Tunnel::new(TunnelKind::Gue).port(6080)])
}

/// Some are the address of a node at times.
const ENDPOINTS: [&str; 5] = ["10.1.0.1", "10.1.0.2", "10.1.0.3", "10.96.0.2", "fd01::1"];

fn any_endpoint() -> impl Strategy<Value = Endpoint> {
    let address = select(&ENDPOINTS[..]);
    let elsewhere = option::of(select(&["node-b", "node-c"][..]));
    let kinds = select(&[ready as fn(&str) -> Endpoint, ready, draining, unready][..]);
    let zones = vec(select(&["a", "b"][..]), 0..2);
    let nodes = vec(select(&[NODE, "node-b"][..]), 0..2);
    let zone = option::of(select(&["a", "b"][..]));
    (address, kinds, any::<bool>(), zone, zones, nodes, elsewhere).prop_map(
        |(address, kind, here, zone, zones, nodes, elsewhere)| {
            let endpoint = kind(address).for_zones(&zones).for_nodes(&nodes);
            let endpoint = Endpoint { zone: zone.map(Arc::from), node: elsewhere.map(Arc::from), ..endpoint };
            if here { endpoint.here() } else { endpoint }
        },
    )
}

fn any_slice() -> impl Strategy<Value = EndpointSlice> {
    let of = select(&["a", "b", "c", "kubernetes"][..]);
    let name = select(&["s1", "s2", "s3", "s4"][..]);
    let weight = option::of(any_weight());
    (name, of, vec(any_port(), 0..3), vec(any_endpoint(), 0..4), weight).prop_map(
        |(text, of, ports, endpoints, weight)| EndpointSlice {
            weight,
            ports: ports.iter().map(|port| listening(&port.name, port.protocol, port.port)).collect(),
            ..slice(text, of, &endpoints)
        },
    )
}

fn names(of: Vec<&'static str>) -> FxHashSet<ObjectName> {
    of.into_iter().map(|name| ObjectName::new("default", name)).collect()
}

fn any_change() -> impl Strategy<Value = Change> {
    prop_oneof![
        1 => vec(any_service(), 0..5).prop_map(|services| Change::Services(Event::Replace(services))),
        1 => vec(any_service(), 0..5).prop_map(|services| Change::Services(Event::InitApply(services))),
        1 => subsequence(vec!["a", "b", "c", "kubernetes"], 0..=4).prop_map(|kept| Change::Services(Event::InitDone(names(kept)))),
        5 => any_service().prop_map(|service| Change::Services(Event::Apply(service))),
        2 => any_service().prop_map(|service| Change::Services(Event::Delete(service.name))),
        1 => vec(any_slice(), 0..5).prop_map(|slices| Change::Slices(Event::Replace(slices))),
        1 => vec(any_slice(), 0..5).prop_map(|slices| Change::Slices(Event::InitApply(slices))),
        1 => subsequence(vec!["s1", "s2", "s3", "s4"], 0..=4).prop_map(|kept| Change::Slices(Event::InitDone(names(kept)))),
        5 => any_slice().prop_map(|slice| Change::Slices(Event::Apply(slice))),
        2 => any_slice().prop_map(|slice| Change::Slices(Event::Delete(slice.name))),
        2 => (option::of(select(&["a", "b"][..])), any_ips(2), any::<bool>()).prop_map(|(zone, ips, has_pods)| {
            let pod_cidrs = has_pods.then(|| "10.1.0.0/24".parse().unwrap()).into_iter().collect();
            Change::Node(Some(Node { zone: zone.map(Into::into), ips, pod_cidrs, ..Node::default() }))
        }),
        1 => Just(Change::Node(None)),
        3 => (any_ips(4), any_ips(4)).prop_map(|(here, lost)| Change::NodeAddresses {
            here: here.into_iter().collect(),
            lost: lost.into_iter().collect(),
        }),
        1 => vec(any_peer(), 0..3).prop_map(|nodes| Change::Peers(Event::Replace(nodes))),
        1 => Just(Change::ForgetPeers),
        1 => Just(Change::PeersUnavailable),
        1 => any_ips(1).prop_map(|ips| {
            Change::ApiServer(ips.into_iter().map(|ip| SocketAddr::new(ip, 6443)).collect())
        }),
        1 => any_ips(1).prop_map(|ips| Change::Gateways(ips.into_iter().collect())),
        2 => any_peer().prop_map(|node| Change::Peers(Event::Apply(node))),
        1 => vec(any_peer(), 0..3).prop_map(|nodes| Change::Peers(Event::InitApply(nodes))),
        1 => subsequence(vec!["node-b", "node-c"], 0..=2).prop_map(|kept| {
            Change::Peers(Event::InitDone(kept.into_iter().map(|name| ObjectName::new("", name)).collect()))
        }),
        1 => any_peer().prop_map(|peer| Change::Peers(Event::Delete(ObjectName::new("", &*peer.name)))),
        1 => btree_map(select(&["node-b", "node-c"][..]).prop_map(Arc::from), any_unpacking(), 0..3)
            .prop_map(Change::UnpackingPeers),
        1 => btree_map(select(&ENDPOINTS[..]).prop_map(ip), any_tunnel(), 0..3)
            .prop_map(Change::TunnelledBefore),
        2 => select(&[1_400, 1_500][..]).prop_map(Change::LinkMtu),
        1 => any_families().prop_map(Change::MissingTunnels),
        1 => any_families().prop_map(Change::TunnelsInUse),
        1 => btree_map(any_scheduler(), select(&[Absence::Lacking, Absence::NotLoaded][..]), 0..2).prop_map(Change::MissingSchedulers),
    ]
}

/// Whether something else than a Service has the address, so that it is not bound.
fn is_elsewhere(state: &State, ip: IpAddr) -> bool {
    let owner =
        state.explain_address(&AddressQuery { ip: Some(ip), port: None, protocol: None }).owner.unwrap();
    matches!(
        owner,
        AddressOwner::Special(_)
            | AddressOwner::OtherNode
            | AddressOwner::ApiServer
            | AddressOwner::Gateway
            | AddressOwner::PodRange
    )
}

fn includes(touched: &Dirty, keys: &Dirty) -> bool {
    keys.virtual_servers.is_subset(&touched.virtual_servers)
        && keys.vips.is_subset(&touched.vips)
        && keys.elements.is_subset(&touched.elements)
        && keys.tunnels.is_subset(&touched.tunnels)
        && (touched.reports || !keys.reports)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_order_of_events_does_not_matter(
        options in any_options(),
        (one, other) in vec(any_change(), 0..20)
            .prop_map(|changes| Inputs::after(&changes).changes())
            .prop_flat_map(|changes| (Just(changes.clone()), Just(changes).prop_shuffle()))
    ) {
        prop_assert_eq!(wanted(&applied(&options, &one)), wanted(&applied(&options, &other)));
    }

    #[test]
    fn history_leaves_no_trace(options in any_options(), changes in vec(any_change(), 0..40)) {
        let fresh = applied(&options, &Inputs::after(&changes).changes());
        let lived = applied(&options, &changes);
        prop_assert_eq!(wanted(&lived), wanted(&fresh));
        prop_assert_eq!(lived.conflicts().collect::<Vec<_>>(), fresh.conflicts().collect::<Vec<_>>());
        prop_assert_eq!(lived.node_port_addresses(), fresh.node_port_addresses());
        for server in fresh.virtual_servers() {
            prop_assert_eq!(lived.urgency(&server.address.ip), fresh.urgency(&server.address.ip));
        }
    }

    #[test]
    fn what_differs_afterwards_is_touched(options in any_options(), changes in vec(any_change(), 0..40)) {
        let (mut state, mut inputs) = (State::new(options), Inputs::default());
        for change in changes {
            let before = wanted(&state);
            let moves = inputs.moves_a_slice(&change);
            inputs.take(change.clone());
            let touched = state.apply(change.clone());
            let different = difference(&before, &wanted(&state));
            prop_assert!(includes(&touched, &different), "{:?}: {:?} lacks of {:?}", change, touched, different);
            // What concerns several Services can hand an address from one to the next; nothing else touches
            // in vain.
            let several = moves || matches!(
                change,
                Change::Services(Event::Replace(_) | Event::InitApply(_) | Event::InitDone(_))
                    | Change::Slices(Event::Replace(_) | Event::InitApply(_) | Event::InitDone(_))
                    | Change::NodeAddresses { .. }
                    | Change::MissingSchedulers(_)
                    | Change::Node(Some(_))
                    | Change::Peers(_)
                    | Change::ForgetPeers
                    | Change::PeersUnavailable
                    | Change::ApiServer(_)
                    | Change::Gateways(_)
                    | Change::UnpackingPeers(_)
                    | Change::TunnelledBefore(_)
                    | Change::LinkMtu(_)
                    | Change::MissingTunnels(_)
                    | Change::TunnelsInUse(_)
            );
            if several {
                prop_assert_eq!((&touched.vips, &touched.elements), (&different.vips, &different.elements));
            } else {
                prop_assert_eq!(touched, different);
            }
        }
    }

    #[test]
    fn the_same_change_twice_touches_nothing_the_second_time(
        options in any_options(), changes in vec(any_change(), 0..40)
    ) {
        let mut state = State::new(options);
        for change in changes {
            state.apply(change.clone());
            let again = state.apply(change);
            prop_assert!(again.is_empty(), "{:?}", again);
        }
    }

    #[test]
    fn everything_wanted_belongs_together(options in any_options(), changes in vec(any_change(), 0..40)) {
        let (state, inputs) = (applied(&options, &changes), Inputs::after(&changes));
        let wanted = wanted(&state);
        for (at, server) in &wanted.virtual_servers {
            let went = server.kind == AddressKind::NodePort && inputs.lost_addresses.contains(&at.ip);
            let is_elsewhere = server.kind != AddressKind::NodePort && is_elsewhere(&state, at.ip)
                || options.watches_nodes && !(inputs.peers_listed || inputs.peers_unavailable);
            let is_local =
                state.wants_vip(&at.ip) || inputs.addresses.contains(&at.ip) || is_elsewhere;
            prop_assert!(is_local || went, "{} is not local", at);
            let addresses: Vec<_> = server.real_servers.iter().map(|real| real.address).collect();
            prop_assert!(addresses.is_sorted_by(|a, b| a < b), "{:?}", addresses);
            prop_assert!(addresses.iter().all(|real| real.ip.is_ipv4() == at.ip.is_ipv4()));
            let own: BTreeSet<Element> = server.elements().collect();
            let unpacks = state.unpacks(Family::from(at.ip));
            let is_wanted = |it: &Element| state.wants_element(it) == (unpacks || !it.is_for_unpacking());
            prop_assert!(own.iter().all(is_wanted), "{:?}", own);
            prop_assert!(own.iter().all(|element| element.virtual_server() == Some(at)), "{:?}", own);
            let masquerading = [
                Element::ClusterIp(*at),
                Element::External(*at),
                Element::ExternalLocal(*at),
                Element::DirectReturn(*at),
            ];
            prop_assert_eq!(masquerading.iter().filter(|element| state.wants_element(element)).count(), 1);
            let is_direct = server.is_answered_directly();
            prop_assert_eq!(state.wants_element(&Element::DirectReturn(*at)), is_direct);
            prop_assert!(!is_direct || unpacks);
            let tunnelled = server.real_servers.iter().any(|it| it.forwarding == Forwarding::Tunnel);
            prop_assert!(is_direct || !tunnelled, "{:?}", server);
            let local_clients_only = state.wants_element(&Element::LocalClientsOnly(*at));
            prop_assert_eq!(local_clients_only, server.stands_in);
            prop_assert!(!local_clients_only || state.wants_element(&Element::ExternalLocal(*at)));
            let untracked = state.wants_element(&Element::Untracked(*at));
            prop_assert_eq!(untracked, server.untracked);
            prop_assert!(!untracked || server.kind == AddressKind::ClusterIp, "{:?} needs conntrack", server);
            for real in server.real_servers.iter().filter(|_| untracked) {
                let pod = PodPort { protocol: at.protocol, pod: real.address };
                prop_assert!(state.wants_element(&Element::UntrackedEndpoint(pod)), "{:?}", server);
                prop_assert!(state.wants_element(&Element::TrackedClient(real.address.ip)), "{:?}", server);
            }
            let restricted = server.allowed_sources.is_some();
            prop_assert_eq!(state.wants_element(&Element::Restricted(*at)), restricted);
            prop_assert!(!restricted || server.kind == AddressKind::LoadBalancer, "{:?}", server);
            let sources = server.allowed_sources.as_deref().unwrap_or_default();
            prop_assert!(sources.is_sorted_by(|one, next| one.last < next.first), "{:?}", sources);
            for source in sources {
                prop_assert!(source.first <= source.last && source.first.is_ipv4() == at.ip.is_ipv4());
            }
        }
        for vip in &wanted.vips {
            prop_assert!(wanted.virtual_servers.keys().any(|at| at.ip == *vip));
            prop_assert!(wanted.elements.contains(&Element::Vip(*vip)), "{} is bound and in no set", vip);
        }
        for element in &wanted.elements {
            let belongs = match (element, element.virtual_server()) {
                (_, Some(at)) => wanted.virtual_servers[at].elements().any(|own| own == *element),
                (Element::Vip(vip), None) => wanted.vips.contains(vip),
                (Element::HealthCheckPort(at), None) => {
                    wanted.health_checks.iter().any(|(_, check)| check.port.get() == at.port)
                }
                (_, None) => true,
            };
            prop_assert!(belongs, "{}", element);
        }
        prop_assert!(wanted.elements.is_sorted_by(|a, b| a < b), "{:?}", wanted.elements);
    }

    #[test]
    fn what_is_counted_is_what_there_is(options in any_options(), changes in vec(any_change(), 0..40)) {
        let mut state = State::new(options);
        for change in changes {
            state.apply(change);
            for family in Family::BOTH {
                let servers = state.virtual_servers().filter(|server| Family::from(server.address.ip) == family);
                prop_assert_eq!(state.virtual_server_count(family), servers.count());
            }
            let refused: usize = state.reports().refused().map(|(_, addresses)| addresses.len()).sum();
            prop_assert_eq!(state.reports().refused_count(), refused);
            prop_assert_eq!(state.conflict_count(), state.conflicts().count());
            prop_assert_eq!(state.reports().problem_count(), state.problems().count());
        }
    }

    #[test]
    fn one_list_of_real_servers_is_kept_once(options in any_options(), changes in vec(any_change(), 0..40)) {
        let state = applied(&options, &changes);
        for service in Inputs::after(&changes).services.values() {
            let Some(desired) = state.desired(&service.name) else { continue };
            // With one port, all virtual servers of a family have the same endpoints to choose from.
            let [_] = service.ports[..] else { continue };
            let pairs = desired.virtual_servers.iter().flat_map(|one| {
                desired.virtual_servers.iter().map(move |other| (one, other))
            });
            for (one, other) in pairs.filter(|(one, other)| one.address.ip.is_ipv4() == other.address.ip.is_ipv4()) {
                let (one, other) = (&one.real_servers, &other.real_servers);
                prop_assert_eq!(one == other, Arc::ptr_eq(one, other));
            }
        }
    }

    #[test]
    fn every_wanted_virtual_server_is_explained_with_its_real_servers(options in any_options(), changes in vec(any_change(), 0..40)) {
        let state = applied(&options, &changes);
        for name in Inputs::after(&changes).services.keys() {
            let explanation = state.explain(name);
            let Some(desired) = state.desired(name) else {
                prop_assert!(explanation.not_served.is_some() && explanation.parts.is_empty());
                continue;
            };
            prop_assert_eq!(explanation.not_served, None);
            prop_assert_eq!(&explanation.refused[..], desired.refused());
            let mut explained = BTreeMap::new();
            for part in &explanation.parts {
                let used: Vec<_> = part.endpoints.iter().filter(|it| it.reason == EndpointReason::Used).collect();
                for at in &part.addresses {
                    let real_servers: Vec<_> = used.iter().map(|it| (it.address, it.weight.into())).collect();
                    prop_assert!(explained.insert(at.address, real_servers).is_none(), "{} twice", at.address);
                    let elsewhere = state.owner(&at.address).filter(|holder| *holder != name);
                    prop_assert_eq!(at.held_by.as_ref(), elsewhere);
                    prop_assert_eq!(at.vip, desired.vips().any(|vip| vip == at.address.ip));
                }
            }
            let wanted: BTreeMap<_, Vec<_>> = desired.virtual_servers.iter().map(|server| {
                (server.address, server.real_servers.iter().map(|real| (real.address, real.weight)).collect())
            }).collect();
            prop_assert_eq!(explained, wanted);
        }
    }
}
