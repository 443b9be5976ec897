//! Any inputs and any kernel, from few values of each kind, so that they meet often.
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    net::IpAddr,
    num::NonZero,
    time::{Duration, Instant},
};

use ipnet::IpNet;
use ipvs::{
    Family, Forwarding, ObservedRealServer, Protocol, RealServer, RealServerAddress, Scheduler,
    ServiceAddress, ServiceFlags, VirtualServer, VirtualServerId,
};
use netfilter::{
    AllowedSource, ClusterIpFor, Element, HairpinFlow, HealthCheckPort, MaxSegmentSize, PodPort, TunnelExit,
};
use proptest::{collection::vec, option, prelude::*, sample::select, sample::subsequence};
use service::{
    Absence, Balancing, Change, Endpoint, EndpointPort, EndpointSlice, Event, ExternalForwarding,
    ForwardingMethod, Node, ObjectName, Options, Service, ServiceKind, ServicePort, State, TrafficPolicy,
    Unpacking, Weight,
};
use testkit::{FakeKernel, fake_kernel};
use watcher::{
    Draining, Foreign, Kernel, Observed, Operation, Ownership, Plan, diff, diff_everything, differing,
};

const CLUSTER_IPS: [&str; 4] = ["10.96.0.10", "192.0.2.7", "fd00:96::1", "fd00:96::10"];
/// External and load-balancer addresses; one is a ClusterIP as well, and others may be the node's own.
const EXTERNAL_IPS: [&str; 4] = ["192.0.2.7", "203.0.113.7", "fd00:96::10", "fd00:203::7"];
const NODE_IPS: [&str; 4] = ["172.18.0.2", "203.0.113.7", "fd00:18::2", "fd00:203::7"];
/// All VIPs, each once.
const VIPS: [&str; 8] = [
    "10.96.0.10",
    "172.18.0.2",
    "192.0.2.7",
    "203.0.113.7",
    "fd00:18::2",
    "fd00:96::1",
    "fd00:96::10",
    "fd00:203::7",
];
const PEER_IPS: [&str; 2] = ["172.18.0.3", "fd00:18::3"];
const PORTS: [u16; 6] = [53, 53, 80, 80, 443, 30080];
const PODS: [&str; 4] = ["10.244.1.2", "10.244.2.2", "fd00:244::2", "fd00:244::3"];
/// Source ranges of everybody, nested ones, and ranges of one address: of pods, of nodes and of others.
const SOURCE_RANGES: [&str; 9] = [
    "0.0.0.0/0",
    "10.0.0.0/8",
    "10.244.0.0/16",
    "10.244.1.2/32",
    "172.16.0.0/12",
    "198.51.100.0/24",
    "::/0",
    "fd00::/12",
    "fd00:244::2/128",
];
const NODE: &str = "node";
const PEER: &str = "peer";

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// An address, as in `address(Tcp, "10.96.0.1:80")`.
pub(crate) fn address(protocol: Protocol, text: &str) -> ServiceAddress {
    let RealServerAddress { ip, port } = real(text);
    ServiceAddress { protocol, ip, port }
}

pub(crate) fn real(text: &str) -> RealServerAddress {
    let socket: std::net::SocketAddr = text.parse().unwrap();
    RealServerAddress { ip: socket.ip(), port: socket.port() }
}

pub(crate) fn kernel(fake: &FakeKernel) -> Kernel {
    let (ipvs, netfilter, dummy_interface) = fake.subsystems();
    Kernel { ipvs, netfilter, dummy_interface }
}

/// A state with both lists complete and these changes applied.
pub(crate) fn state(changes: &[Change]) -> State {
    let knows_pods = BTreeSet::from(Family::BOTH);
    let mut state = State::new(Options {
        external_forwarding: ExternalForwarding::ByAnnotation,
        knows_pods,
        ..Options::new(NODE)
    });
    let lists = [Change::Services(Event::Replace(Vec::new())), Change::Slices(Event::Replace(Vec::new()))];
    for change in lists.iter().chain(changes) {
        state.apply(change.clone());
    }
    state
}

pub(crate) fn full(state: &State, observed: &Observed, ours: &Ownership) -> Plan {
    diff_everything(state, observed, ours)
}

/// The same while real servers drain.
pub(crate) fn full_while(state: &State, observed: &Observed, ours: &Ownership, draining: &Draining) -> Plan {
    diff(state, observed, &differing(state, observed, ours), ours, draining)
}

pub(crate) fn read(fake: &FakeKernel) -> Observed {
    Observed::read(&mut kernel(fake)).unwrap()
}

/// The operations that take effect at once: neighbouring changes of our tables together, all others one
/// by one.
pub(crate) fn steps(plan: &Plan) -> Vec<Vec<Operation>> {
    let of_tables = |operation: &Operation| matches!(operation, Operation::Netfilter(_));
    let operations: Vec<_> = plan.operations().collect();
    operations.chunk_by(|one, next| of_tables(one) && of_tables(next)).map(<[_]>::to_vec).collect()
}

/// Carries out one step, of which nothing may fail.
pub(crate) fn carry_out(step: &[Operation], fake: &FakeKernel) {
    let Kernel { mut ipvs, mut netfilter, mut dummy_interface } = kernel(fake);
    let changes: Vec<_> = step
        .iter()
        .filter_map(|operation| match operation {
            Operation::Netfilter(change) => Some(*change),
            Operation::Ipvs(command) => {
                assert_eq!(ipvs.apply(std::slice::from_ref(command)).unwrap(), [], "{operation}");
                None
            }
            Operation::DummyInterface(change) => {
                assert_eq!(dummy_interface.apply(&[*change]).unwrap(), [], "{operation}");
                None
            }
        })
        .collect();
    netfilter.apply(&changes).unwrap();
}

pub(crate) fn apply(plan: &Plan, fake: &FakeKernel) {
    for step in steps(plan) {
        carry_out(&step, fake);
    }
}

/// Makes the kernel as desired: once, and again for the TCP real servers that the first plan took out
/// of service, since only then their connections can be counted. Returns the second plan.
pub(crate) fn settle(state: &State, fake: &FakeKernel, ours: &Ownership) -> Plan {
    apply(&full(state, &read(fake), ours), fake);
    let second = full(state, &read(fake), ours);
    apply(&second, fake);
    second
}

/// A TCP Service in `default` with port 80.
pub(crate) fn service(name: &str, cluster_ips: &[&str]) -> Service {
    Service {
        created: Some(0),
        cluster_ips: cluster_ips.iter().map(|text| ip(text)).collect(),
        ports: vec![ServicePort { name: "".into(), protocol: Protocol::Tcp, port: 80, node_port: None }],
        ..Service::new(ObjectName::new("default", name))
    }
}

/// A slice of such a Service with TCP port 8080 and these endpoints on this node.
pub(crate) fn slice(of: &str, family: Family, addresses: &[&str]) -> EndpointSlice {
    EndpointSlice {
        ports: vec![EndpointPort { name: "".into(), protocol: Protocol::Tcp, port: 8080 }],
        endpoints: addresses.iter().map(|text| endpoint(text)).collect(),
        ..EndpointSlice::new(
            ObjectName::new("default", format!("{of}-{family}")),
            ObjectName::new("default", of),
            family,
        )
    }
}

fn endpoint(text: &str) -> Endpoint {
    Endpoint { node: Some(NODE.into()), ..Endpoint::new(ip(text)) }
}

// Desired.

fn any_service_name() -> impl Strategy<Value = ObjectName> {
    let names = vec!["default/kubernetes", "kube-system/dns", "default/a", "default/b"];
    select(names).prop_map(|text: &str| text.parse().unwrap())
}

fn any_protocol() -> impl Strategy<Value = Protocol> {
    select(&[Protocol::Tcp, Protocol::Tcp, Protocol::Udp, Protocol::Sctp][..])
}

/// A Service port. Ports are named after their protocol, so that those of Services and slices match.
fn any_service_port() -> impl Strategy<Value = ServicePort> {
    let node_port = select(&[0, 0, 30080, 30053][..]);
    (any_protocol(), select(&[53, 80][..]), node_port).prop_map(|(protocol, port, node_port)| ServicePort {
        name: protocol.to_string().into(),
        protocol,
        port,
        node_port: node_port.try_into().ok(),
    })
}

fn any_policy() -> impl Strategy<Value = TrafficPolicy> {
    select(&[TrafficPolicy::Cluster, TrafficPolicy::Cluster, TrafficPolicy::Local][..])
}

pub(crate) fn any_source_ranges() -> impl Strategy<Value = Option<Vec<IpNet>>> {
    let some = subsequence(&SOURCE_RANGES[..], 0..=4);
    option::of(some.prop_map(|texts| texts.into_iter().map(|text| text.parse().unwrap()).collect()))
}

/// Annotations by which connections are balanced in another way than by default.
fn any_balancing() -> impl Strategy<Value = Balancing> {
    let scheduler = option::of(select(&[Scheduler::RR, Scheduler::WLC, Scheduler::MH][..]));
    let node_weights = option::of(any_weight());
    let most = option::of(select(&[2, 10][..]));
    (scheduler, node_weights, most, any::<bool>()).prop_map(|(scheduler, weight, most, plain)| Balancing {
        scheduler,
        scheduler_flags: plain.then(ServiceFlags::empty),
        node_weights: weight.into_iter().map(|weight| (NODE.into(), weight)).collect(),
        max_connections: most.and_then(NonZero::new),
        resume_below: most.filter(|_| plain).and_then(NonZero::new),
        forwarding_method: plain.then_some(ForwardingMethod::Tunnel),
        ..Balancing::default()
    })
}

fn any_weight() -> impl Strategy<Value = Weight> {
    select(&[0, 1, 7, u16::MAX][..])
}

fn any_service() -> impl Strategy<Value = Service> {
    let v4 = option::of(select(&CLUSTER_IPS[..2]));
    let v6 = option::of(select(&CLUSTER_IPS[2..]));
    let internal = (v4, v6, vec(any_service_port(), 1..4), option::of(select(&[60, 600][..])), any_policy());
    let kind = select(&[ServiceKind::ClusterIp, ServiceKind::NodePort, ServiceKind::LoadBalancer][..]);
    let some = || subsequence(&EXTERNAL_IPS[..], 0..=2);
    let external = (kind, some(), some(), any_source_ranges(), any_policy());
    (any_service_name(), 0..3_i64, internal, external, option::of(any_balancing())).prop_map(
        |(name, created, (v4, v6, ports, session_affinity, internal_policy), external, balancing)| {
            let (kind, external_ips, load_balancer_ips, source_ranges, external_policy) = external;
            Service {
                name,
                created: Some(created),
                kind,
                cluster_ips: v4.into_iter().chain(v6).map(ip).collect(),
                external_ips: external_ips.into_iter().map(ip).collect(),
                load_balancer_ips: load_balancer_ips.into_iter().map(ip).collect(),
                load_balancer_source_ranges: source_ranges,
                health_check_node_port: 32000.try_into().ok(),
                ports,
                session_affinity,
                internal_traffic_policy: internal_policy,
                external_traffic_policy: external_policy,
                balancing: balancing.map(Box::new),
                ..service("", &[])
            }
        },
    )
}

/// The node's own addresses.
pub(crate) fn any_node_addresses() -> impl Strategy<Value = BTreeSet<IpAddr>> {
    subsequence(&NODE_IPS[..], 0..=NODE_IPS.len()).prop_map(|own| own.into_iter().map(ip).collect())
}

fn any_change_of_node_addresses() -> impl Strategy<Value = Change> {
    any_node_addresses().prop_map(|here| Change::NodeAddresses { here, lost: BTreeSet::new() })
}

/// The Node, whose IPs need not be on its interfaces.
fn any_node() -> impl Strategy<Value = Change> {
    subsequence(&NODE_IPS[..], 0..=2).prop_map(|ips| {
        Change::Node(Some(Node { ips: ips.into_iter().map(ip).collect(), ..Node::default() }))
    })
}

fn any_endpoint(family: Family) -> impl Strategy<Value = Endpoint> {
    let pods = if family == Family::V4 { &PODS[..2] } else { &PODS[2..] };
    (select(pods), any::<bool>(), any::<bool>()).prop_map(|(text, ready, here)| Endpoint {
        ready,
        terminating: !ready,
        node: Some(if here { NODE } else { PEER }.into()),
        ..endpoint(text)
    })
}

fn any_slice() -> impl Strategy<Value = EndpointSlice> {
    let ports = select(&[8080, 8080, 8080, 53][..]).prop_map(|port| {
        let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
        all.map(|protocol| EndpointPort { name: protocol.to_string().into(), protocol, port }).to_vec()
    });
    let family = select(&Family::BOTH[..]);
    let addressed = family.prop_flat_map(|family| (Just(family), vec(any_endpoint(family), 0..4)));
    let name = select(&["s1", "s2", "s3", "s4", "s5"][..]);
    (name, any_service_name(), ports, addressed, option::of(any_weight())).prop_map(
        |(name, service, ports, (family, endpoints), weight)| EndpointSlice {
            weight,
            name: ObjectName::new("default", name),
            service,
            ports,
            endpoints,
            ..slice("", family, &[])
        },
    )
}

/// One change.
pub(crate) fn any_change() -> impl Strategy<Value = Change> {
    prop_oneof![
        1 => vec(any_service(), 0..7).prop_map(|services| Change::Services(Event::Replace(services))),
        4 => any_service().prop_map(|service| Change::Services(Event::Apply(service))),
        2 => any_service_name().prop_map(|name| Change::Services(Event::Delete(name))),
        1 => vec(any_slice(), 0..9).prop_map(|slices| Change::Slices(Event::Replace(slices))),
        4 => any_slice().prop_map(|slice| Change::Slices(Event::Apply(slice))),
        1 => any_slice().prop_map(|slice| Change::Slices(Event::Delete(slice.name))),
        2 => any_change_of_node_addresses(),
        1 => any::<bool>().prop_map(|mh| Change::MissingSchedulers(mh.then_some((Scheduler::MH, Absence::Lacking)).into_iter().collect())),
        1 => any_node(),
        1 => any_peer(),
        1 => any_families().prop_map(unpacking),
        1 => select(&[1400, 1500][..]).prop_map(Change::LinkMtu),
        1 => any_families().prop_map(Change::MissingTunnels),
        1 => any_families().prop_map(Change::TunnelsInUse),
    ]
}

fn any_families() -> impl Strategy<Value = BTreeSet<Family>> {
    subsequence(&Family::BOTH[..], 0..=2).prop_map(|families| families.into_iter().collect())
}

fn unpacking(families: BTreeSet<Family>) -> Change {
    Change::UnpackingPeers([(PEER.into(), Unpacking { families, gue: false })].into())
}

fn any_peer() -> impl Strategy<Value = Change> {
    let ips = subsequence(&PEER_IPS[..], 0..=2).prop_map(|ips| ips.into_iter().map(ip).collect());
    ips.prop_map(|ips| {
        Change::Peers(Event::Apply(Node {
            name: PEER.into(),
            ips,
            overlay_ips: Vec::new(),
            pod_cidrs: Vec::new(),
            problems: Vec::new(),
            ..Node::default()
        }))
    })
}

/// A desired state, as the changes that lead to it.
pub(crate) fn any_inputs() -> impl Strategy<Value = Vec<Change>> {
    let services = vec(any_service(), 0..7).prop_map(|services| Change::Services(Event::Replace(services)));
    let slices = vec(any_slice(), 0..9).prop_map(|slices| Change::Slices(Event::Replace(slices)));
    let addresses = any_change_of_node_addresses();
    let unpacking = any_families().prop_map(unpacking);
    (services, slices, any_node(), addresses, any_peer(), unpacking, any::<bool>()).prop_map(
        |(services, slices, node, addresses, peer, unpacking, has_links)| {
            let links = has_links.then_some(Change::LinkMtu(1500));
            [services, slices, node, addresses, peer, unpacking].into_iter().chain(links).collect()
        },
    )
}

// Observed.

fn any_id() -> impl Strategy<Value = VirtualServerId> {
    let address = any_service_address().prop_map(VirtualServerId::from);
    let mark = (select(&Family::BOTH[..]), 1..3_u32)
        .prop_map(|(family, mark)| VirtualServerId::Mark { family, mark });
    prop_oneof![5 => address, 1 => mark]
}

fn any_virtual_server() -> impl Strategy<Value = VirtualServer> {
    let schedulers = select(&[Scheduler::RR, Scheduler::RR, Scheduler::WLC][..]);
    (any_id(), schedulers, option::of(select(&[60, 600][..])), any::<u8>()).prop_map(
        |(id, scheduler, affinity, odd)| {
            let mut server = VirtualServer::new(id, scheduler);
            if odd < 25 {
                server.flags |= ServiceFlags::SCHEDULER_1;
                server.prefix_length = 24;
            }
            affinity.map_or(server.clone(), |seconds| server.persistent(seconds))
        },
    )
}

fn any_real_server(family: Family) -> impl Strategy<Value = ObservedRealServer> {
    let pods = if family == Family::V4 { &PODS[..2] } else { &PODS[2..] };
    let forwarding = vec![
        Forwarding::Masquerade,
        Forwarding::Masquerade,
        Forwarding::Local,
        Forwarding::Route,
        Forwarding::Tunnel,
    ];
    let connections = (select(&[0, 0, 3][..]), select(&[0, 0, 5][..]));
    (
        select(pods),
        select(&[53, 8080, 8080, 8080][..]),
        select(forwarding),
        select(&[0, 1, 1, 7][..]),
        connections,
        select(&[0, 0, 0, 2][..]),
    )
        .prop_map(|(pod, port, forwarding, weight, (active_connections, inactive_connections), most)| {
            let config = RealServer::masquerade(ip(pod), port).forwarding(forwarding).weight(weight);
            ObservedRealServer::new(config.thresholds(most, 0))
                .connections(active_connections, inactive_connections)
        })
}

type Servers = BTreeMap<VirtualServerId, (VirtualServer, BTreeMap<RealServerAddress, ObservedRealServer>)>;

fn any_servers() -> impl Strategy<Value = Servers> {
    let with_real_servers = any_virtual_server().prop_flat_map(|server| {
        let family = server.id.family();
        (Just(server), vec(any_real_server(family), 0..4))
    });
    vec(with_real_servers, 0..12).prop_map(|servers| {
        let keyed = |real: ObservedRealServer| (real.config.address, real);
        servers
            .into_iter()
            .map(|(server, reals)| (server.id, (server, reals.into_iter().map(keyed).collect())))
            .collect()
    })
}

fn any_links() -> impl Strategy<Value = dummy_interface::Observed> {
    let vips = || subsequence(&VIPS[..], 0..=VIPS.len());
    let tunnels = (any_families(), any_families());
    (any::<bool>(), vips(), vips(), any_node_addresses(), tunnels).prop_map(
        |(device, bound, stale_bindings, node_addresses, (tunnels, right))| dummy_interface::Observed {
            device,
            // Addresses go with their device; routes do not.
            bound: bound.into_iter().filter(|_| device).map(ip).collect(),
            stale_bindings: stale_bindings.into_iter().map(ip).collect(),
            node_addresses,
            tunnels: tunnels
                .into_iter()
                .map(|family| {
                    (family, dummy_interface::TunnelDevice { right: right.contains(&family), received: 0 })
                })
                .collect(),
            link_mtu: Some(1500),
            gateways: BTreeSet::new(),
        },
    )
}

fn any_service_address() -> impl Strategy<Value = ServiceAddress> {
    let parts = (any_protocol(), select(&VIPS[..]), select(&PORTS[..]));
    parts.prop_map(|(protocol, vip, port)| ServiceAddress { protocol, ip: ip(vip), port })
}

/// An element of any set.
fn any_element() -> impl Strategy<Value = Element> {
    let at = any_service_address;
    let pod_port = || (any_protocol(), select(&PODS[..]), select(&[53, 8080][..]));
    let real = |pod, port| RealServerAddress { ip: ip(pod), port };
    let hairpin = pod_port().prop_map(move |(protocol, pod, port)| {
        Element::Hairpin(HairpinFlow { protocol, pod: real(pod, port) })
    });
    let untracked_endpoint = pod_port().prop_map(move |(protocol, pod, port)| {
        Element::UntrackedEndpoint(PodPort { protocol, pod: real(pod, port) })
    });
    let health_check_port = (select(&Family::BOTH[..]), select(&[32000, 32001][..]))
        .prop_map(|(family, port)| Element::HealthCheckPort(HealthCheckPort { family, port }));
    prop_oneof![
        select(&VIPS[..]).prop_map(|vip| Element::Vip(ip(vip))),
        at().prop_map(Element::Restricted),
        any_allowed_source().prop_map(Element::AllowedSource),
        at().prop_map(Element::ClusterIp),
        at().prop_map(Element::External),
        at().prop_map(Element::ExternalLocal),
        at().prop_map(Element::LocalClientsOnly),
        hairpin,
        at().prop_map(Element::Untracked),
        untracked_endpoint,
        select(&PODS[..]).prop_map(|pod| Element::TrackedClient(ip(pod))),
        health_check_port,
        any_element_of_direct_return(),
    ]
}

fn any_element_of_direct_return() -> impl Strategy<Value = Element> {
    let with_pod = || {
        (any_service_address(), select(&PODS[..2]), select(&PODS[2..])).prop_map(|(to, v4, v6)| {
            let pod = ip(if to.ip.is_ipv4() { v4 } else { v6 });
            (to, RealServerAddress { ip: pod, port: 8080 })
        })
    };
    let pod = || select(&PODS[..]).prop_map(ip);
    prop_oneof![
        any_service_address().prop_map(Element::DirectReturn),
        with_pod().prop_map(|(to, cluster_ip)| Element::ClusterIpFor(ClusterIpFor { to, cluster_ip })),
        (any_service_address(), select(&[1340, 1440][..]))
            .prop_map(|(to, bytes)| Element::MaxSegmentSize(MaxSegmentSize { to, bytes })),
        with_pod().prop_map(|(to, pod)| Element::TunnelExit(TunnelExit { to, pod })),
        pod().prop_map(Element::EndpointHere),
        pod().prop_map(Element::EndpointElsewhere),
        select(&PEER_IPS[..]).prop_map(|peer| Element::TunnelSender(ip(peer))),
    ]
}

/// An allowed source of the same family as the address.
fn any_allowed_source() -> impl Strategy<Value = AllowedSource> {
    (any_service_address(), select(&SOURCE_RANGES[..6]), select(&SOURCE_RANGES[6..])).prop_map(
        |(to, v4, v6)| {
            let range: IpNet = if to.ip.is_ipv4() { v4 } else { v6 }.parse().unwrap();
            AllowedSource { to, first: range.network(), last: range.broadcast() }
        },
    )
}

/// Leaves out overlapping ranges of one address's clients, and other values of a key: the kernel does not accept them.
fn without_overlaps(elements: Vec<Element>) -> HashSet<Element> {
    let mut kept: HashSet<Element> = HashSet::new();
    for element in elements {
        if !kept.iter().any(|other| fake_kernel::overlap(other, &element)) {
            kept.insert(element);
        }
    }
    kept
}

/// Our tables. An element is there only together with its family's table.
fn any_tables() -> impl Strategy<Value = netfilter::Observed> {
    (any_families(), any_families(), vec(any_element(), 0..16)).prop_map(|(installed, extended, elements)| {
        let direct_return = &installed & &extended;
        let has_set = |element: &Element| {
            let tables = if element.is_of_direct_return() { &direct_return } else { &installed };
            tables.contains(&element.family())
        };
        let elements = without_overlaps(elements.into_iter().filter(has_set).collect());
        netfilter::Observed {
            elements: elements.into_iter().collect(),
            installed,
            direct_return,
            ..netfilter::Observed::default()
        }
    })
}

/// A kernel in which others, or an earlier run of ours, have done anything.
pub(crate) fn any_kernel() -> impl Strategy<Value = FakeKernel> {
    (any_servers(), any_links(), any_tables()).prop_map(|(servers, dummy_interface, tables)| {
        let fake = FakeKernel::new();
        fake.state().virtual_servers = servers;
        put_links_and_tables(&fake, Some(dummy_interface), Some(tables));
        fake
    })
}

/// What others may do to kube-ipvs0 and our tables.
pub(crate) fn any_disturbance() -> impl Strategy<Value = (dummy_interface::Observed, netfilter::Observed)> {
    (any_links(), any_tables())
}

pub(crate) fn put_links_and_tables(
    fake: &FakeKernel,
    dummy_interface: Option<dummy_interface::Observed>,
    tables: Option<netfilter::Observed>,
) {
    let mut state = fake.state();
    if let Some(dummy_interface) = dummy_interface {
        state.dummy_interface = dummy_interface;
    }
    if let Some(tables) = tables {
        state.tables = tables.installed;
        state.direct_return = tables.direct_return;
        state.elements = tables.elements.iter().collect();
    }
}

/// An ownership of both families or one, and perhaps with a range that is not ours.
pub(crate) fn any_ownership() -> impl Strategy<Value = Ownership> {
    let families = subsequence(&Family::BOTH[..], 1..=2);
    let exclude = subsequence(&["192.0.2.0/24", "fd00:96::10/128"][..], 0..=2);
    let foreign = select(&[Foreign::Delete, Foreign::Keep][..]);
    (families, exclude, foreign).prop_map(|(families, exclude, foreign)| Ownership {
        families: families.into_iter().collect(),
        exclude: exclude.into_iter().map(|range| range.parse().unwrap()).collect(),
        foreign,
    })
}

/// The real servers that the bits choose, as draining for as long as they may.
pub(crate) fn expired(observed: &Observed, bits: u64) -> Draining {
    let mut draining = Draining::new(Some(Duration::ZERO));
    let mut all: Vec<_> = observed.virtual_servers.iter().collect();
    all.sort_unstable_by_key(|(of, _)| **of);
    let (now, mut number) = (Instant::now(), 0);
    for (of, image) in all {
        let chosen = image.real_servers().filter(|_| {
            number += 1;
            bits >> (number % 64) & 1 == 1
        });
        draining.update(*of, chosen, now);
    }
    draining.expire(now);
    draining
}
