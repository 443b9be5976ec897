//! Any inputs and any kernel, from few values of each kind, so that they meet often.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test file uses a part of this; a test that cannot go on must stop"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipvs::{
    Family, Forwarding, Id, ObservedRealServer, Protocol, RealServer, RealServerAddress, Scheduler,
    ServiceAddress, ServiceFlags, Stats, VirtualServer,
};
use netfilter::{Element, HairpinFlow};
use proptest::{collection::vec, option, prelude::*, sample::select, sample::subsequence};
use service::{
    Change, Endpoint, EndpointPort, EndpointSlice, ObjectName, Options, Service, ServiceKind, ServicePort,
    State, TrafficPolicy,
};
use testkit::FakeKernel;
use watcher::{Kernel, Observed, Ownership, VirtualServerImage};

const CLUSTER_IPS: [&str; 4] = ["10.96.0.10", "192.0.2.7", "fd00:96::1", "fd00:96::10"];
/// External and load-balancer addresses; one is a ClusterIP as well, and others may be the node's own.
const EXTERNAL_IPS: [&str; 4] = ["192.0.2.7", "203.0.113.7", "fd00:96::10", "fd00:203::7"];
const NODE_IPS: [&str; 4] = ["172.18.0.2", "203.0.113.7", "fd00:18::2", "fd00:203::7"];
/// All of these, each once.
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
const PORTS: [u16; 6] = [53, 53, 80, 80, 443, 30080];
const PODS: [&str; 4] = ["10.244.1.2", "10.244.2.2", "fd00:244::2", "fd00:244::3"];
const NODE: &str = "node";

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// `address(Tcp, "10.96.0.1:80")`.
pub(crate) fn address(protocol: Protocol, text: &str) -> ServiceAddress {
    let RealServerAddress { ip, port } = real(text);
    ServiceAddress { protocol, ip, port }
}

pub(crate) fn real(text: &str) -> RealServerAddress {
    let socket: std::net::SocketAddr = text.parse().unwrap();
    RealServerAddress { ip: socket.ip(), port: socket.port() }
}

pub(crate) fn kernel(fake: &FakeKernel) -> Kernel {
    let (ipvs, netfilter, links) = fake.seams();
    Kernel { ipvs, netfilter, links }
}

/// A state that has been told these changes, and that both lists are complete.
pub(crate) fn state(changes: &[Change]) -> State {
    let mut state = State::new(Options::new(NODE));
    let lists = [Change::ReplaceServices(Vec::new()), Change::ReplaceSlices(Vec::new())];
    for change in lists.iter().chain(changes) {
        state.apply(change.clone());
    }
    state
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
        name: ObjectName::new("default", format!("{of}-{family}")),
        service: ObjectName::new("default", of),
        family,
        ports: vec![EndpointPort { name: "".into(), protocol: Protocol::Tcp, port: 8080 }],
        endpoints: addresses.iter().map(|text| endpoint(text)).collect(),
        problems: Vec::new(),
    }
}

fn endpoint(text: &str) -> Endpoint {
    Endpoint {
        address: ip(text),
        ready: true,
        serving: true,
        terminating: false,
        node: Some(NODE.into()),
        zone_hints: Box::default(),
        node_hints: Box::default(),
    }
}

// Desired.

fn any_service_name() -> impl Strategy<Value = ObjectName> {
    let names = vec!["default/kubernetes", "kube-system/dns", "default/a", "default/b"];
    select(names).prop_map(|text: &str| text.parse().unwrap())
}

fn any_protocol() -> impl Strategy<Value = Protocol> {
    select(&[Protocol::Tcp, Protocol::Tcp, Protocol::Udp, Protocol::Sctp][..])
}

/// Ports are named after their protocol, so that those of Services and slices match.
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

fn any_service() -> impl Strategy<Value = Service> {
    let v4 = option::of(select(&CLUSTER_IPS[..2]));
    let v6 = option::of(select(&CLUSTER_IPS[2..]));
    let internal = (v4, v6, vec(any_service_port(), 1..4), option::of(select(&[60, 600][..])), any_policy());
    let kind = select(&[ServiceKind::ClusterIp, ServiceKind::NodePort, ServiceKind::LoadBalancer][..]);
    let some = || subsequence(&EXTERNAL_IPS[..], 0..=2);
    let external = (kind, some(), some(), any_policy());
    (any_service_name(), 0..3_i64, internal, external).prop_map(
        |(name, created, (v4, v6, ports, session_affinity, internal_policy), external)| {
            let (kind, external_ips, load_balancer_ips, external_policy) = external;
            Service {
                name,
                created: Some(created),
                kind,
                cluster_ips: v4.into_iter().chain(v6).map(ip).collect(),
                external_ips: external_ips.into_iter().map(ip).collect(),
                load_balancer_ips: load_balancer_ips.into_iter().map(ip).collect(),
                ports,
                session_affinity,
                internal_traffic_policy: internal_policy,
                external_traffic_policy: external_policy,
                ..service("", &[])
            }
        },
    )
}

/// The node's own addresses.
pub(crate) fn any_node_addresses() -> impl Strategy<Value = BTreeSet<IpAddr>> {
    subsequence(&NODE_IPS[..], 0..=NODE_IPS.len()).prop_map(|own| own.into_iter().map(ip).collect())
}

fn any_endpoint(family: Family) -> impl Strategy<Value = Endpoint> {
    let pods = if family == Family::V4 { &PODS[..2] } else { &PODS[2..] };
    (select(pods), any::<bool>(), any::<bool>()).prop_map(|(text, ready, here)| Endpoint {
        ready,
        terminating: !ready,
        node: here.then(|| NODE.into()),
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
    (select(&["s1", "s2", "s3", "s4", "s5"][..]), any_service_name(), ports, addressed).prop_map(
        |(name, service, ports, (family, endpoints))| EndpointSlice {
            name: ObjectName::new("default", name),
            service,
            ports,
            endpoints,
            ..slice("", family, &[])
        },
    )
}

/// One piece of news.
pub(crate) fn any_change() -> impl Strategy<Value = Change> {
    prop_oneof![
        1 => vec(any_service(), 0..7).prop_map(Change::ReplaceServices),
        4 => any_service().prop_map(Change::ApplyService),
        2 => any_service_name().prop_map(Change::DeleteService),
        1 => vec(any_slice(), 0..9).prop_map(Change::ReplaceSlices),
        4 => any_slice().prop_map(Change::ApplySlice),
        1 => any_slice().prop_map(|slice| Change::DeleteSlice(slice.name)),
        2 => any_node_addresses().prop_map(Change::NodeAddresses),
    ]
}

/// A desired state, as the changes that lead to it.
pub(crate) fn any_inputs() -> impl Strategy<Value = Vec<Change>> {
    let services = vec(any_service(), 0..7).prop_map(Change::ReplaceServices);
    let slices = vec(any_slice(), 0..9).prop_map(Change::ReplaceSlices);
    let node = any_node_addresses().prop_map(Change::NodeAddresses);
    (services, slices, node).prop_map(|(services, slices, node)| vec![services, slices, node])
}

// Observed.

fn any_id() -> impl Strategy<Value = Id> {
    let address = (any_protocol(), select(&VIPS[..]), select(&PORTS[..]))
        .prop_map(|(protocol, vip, port)| ServiceAddress { protocol, ip: ip(vip), port }.into());
    let mark = (select(&Family::BOTH[..]), 1..3_u32).prop_map(|(family, mark)| Id::Mark { family, mark });
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
    let forwarding =
        vec![Forwarding::Masquerade, Forwarding::Masquerade, Forwarding::Local, Forwarding::Route];
    let connections = (select(&[0, 0, 3][..]), select(&[0, 0, 5][..]));
    (
        select(pods),
        select(&[53, 8080, 8080, 8080][..]),
        select(forwarding),
        select(&[0, 1, 1, 7][..]),
        connections,
    )
        .prop_map(|(pod, port, forwarding, weight, (active_connections, inactive_connections))| {
            ObservedRealServer {
                config: RealServer { forwarding, ..RealServer::masquerade(ip(pod), port).weight(weight) },
                active_connections,
                inactive_connections,
                persistent_connections: 0,
                stats: Stats::default(),
            }
        })
}

type Servers = BTreeMap<Id, (VirtualServer, BTreeMap<RealServerAddress, ObservedRealServer>)>;

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
    (any::<bool>(), vips(), vips(), any_node_addresses()).prop_map(
        |(device, bound, other_way, node_addresses)| dummy_interface::Observed {
            device,
            // Addresses go with their device; routes do not.
            bound: bound.into_iter().filter(|_| device).map(ip).collect(),
            other_way: other_way.into_iter().map(ip).collect(),
            node_addresses,
        },
    )
}

fn any_element() -> impl Strategy<Value = Element> {
    let address = || {
        let parts = (any_protocol(), select(&VIPS[..]), select(&PORTS[..]));
        parts.prop_map(|(protocol, vip, port)| ServiceAddress { protocol, ip: ip(vip), port })
    };
    let (cluster_ip, external) =
        (address().prop_map(Element::ClusterIp), address().prop_map(Element::External));
    let hairpin =
        (any_protocol(), select(&PODS[..]), select(&[53, 8080][..])).prop_map(|(protocol, pod, port)| {
            Element::Hairpin(HairpinFlow { protocol, pod: RealServerAddress { ip: ip(pod), port } })
        });
    prop_oneof![cluster_ip, external, hairpin]
}

/// Our tables: a family's elements are in its table.
fn any_tables() -> impl Strategy<Value = netfilter::Observed> {
    let families = subsequence(&Family::BOTH[..], 0..=2);
    (families, vec(any_element(), 0..8)).prop_map(|(families, elements)| {
        let installed: BTreeSet<Family> = families.into_iter().collect();
        let elements = elements.into_iter().filter(|element| installed.contains(&element.family())).collect();
        netfilter::Observed { installed, elements }
    })
}

/// A kernel in which others, or an earlier run of ours, have done anything.
pub(crate) fn any_kernel() -> impl Strategy<Value = FakeKernel> {
    (any_servers(), any_links(), any_tables()).prop_map(|(servers, links, tables)| {
        let fake = FakeKernel::new();
        fake.state().virtual_servers = servers;
        put_links_and_tables(&fake, links, tables);
        fake
    })
}

/// What others may do to kube-ipvs0 and our tables.
pub(crate) fn any_disturbance() -> impl Strategy<Value = (dummy_interface::Observed, netfilter::Observed)> {
    (any_links(), any_tables())
}

pub(crate) fn put_links_and_tables(
    fake: &FakeKernel,
    links: dummy_interface::Observed,
    tables: netfilter::Observed,
) {
    let mut state = fake.state();
    state.links = links;
    state.tables = tables.installed;
    state.elements = tables.elements;
}

/// Both families or one, and perhaps a range that is not ours.
pub(crate) fn any_ownership() -> impl Strategy<Value = Ownership> {
    let families = subsequence(&Family::BOTH[..], 1..=2);
    let exclude = subsequence(&["192.0.2.0/24", "fd00:96::10/128"][..], 0..=2);
    (families, exclude).prop_map(|(families, exclude)| Ownership {
        families: families.into_iter().collect(),
        exclude: exclude.into_iter().map(|range| range.parse().unwrap()).collect(),
    })
}

/// Marks the real servers that the bits choose as draining for as long as they may.
pub(crate) fn expire(observed: &mut Observed, bits: u64) {
    let each = |(of, image): (&ServiceAddress, &VirtualServerImage)| {
        image.real_servers.keys().map(|server| (*of, *server)).collect::<Vec<_>>()
    };
    let mut all: Vec<_> = observed.virtual_servers.iter().flat_map(each).collect();
    all.sort_unstable();
    for (number, (of, server)) in all.iter().enumerate() {
        if bits >> (number % 64) & 1 == 1 {
            observed.expire(of, server);
        }
    }
}
