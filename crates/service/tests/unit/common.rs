//! Inputs in few words, and the answers of a [`State`] in few words.
#![allow(clippy::panic, clippy::unwrap_used, reason = "only tests are here")]

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    num::NonZero,
};

use ipvs::{Family, Protocol, RealServerAddress, ServiceAddress};
use netfilter::Element;
use service::{
    AddressQuery, Change, Dirty, Endpoint, EndpointPort, EndpointSlice, Event, ExternalIps, HealthCheck,
    Node, NodePortAddresses, ObjectName, Options, RefusedAddress, Service, ServicePort, State, Traffic,
    WithoutLocalEndpoint,
};

/// The node of every test.
pub(crate) const NODE: &str = "node-a";

pub(crate) fn options() -> Options {
    Options::new(NODE)
}

pub(crate) fn allowing(ranges: &[&str]) -> Options {
    let ranges = ranges.iter().map(|range| range.parse().unwrap()).collect();
    Options { external_ips: ExternalIps::In(ranges), ..options() }
}

/// NodePorts at these addresses of the node.
pub(crate) fn in_ranges(ranges: &[&str]) -> NodePortAddresses {
    NodePortAddresses { primary: false, ranges: ranges.iter().map(|range| range.parse().unwrap()).collect() }
}

/// A State before any list has come.
pub(crate) fn state() -> State {
    State::new(options())
}

/// A State with these inputs.
pub(crate) fn state_of(services: &[Service], slices: &[EndpointSlice]) -> State {
    state_with(options(), services, slices)
}

/// The same with other options.
pub(crate) fn state_with(options: Options, services: &[Service], slices: &[EndpointSlice]) -> State {
    let mut state = State::new(options);
    state.apply(Change::Services(Event::Replace(services.to_vec())));
    state.apply(Change::Slices(Event::Replace(slices.to_vec())));
    state
}

/// `web` is `default/web`.
pub(crate) fn name(text: &str) -> ObjectName {
    if text.contains('/') { text.parse().unwrap() } else { ObjectName::new("default", text) }
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| ip(text)).collect()
}

/// A Service with one unnamed port, TCP 80.
pub(crate) fn service(text: &str, cluster_ip: &str) -> Service {
    Service {
        created: Some(1_000),
        cluster_ips: vec![ip(cluster_ip)],
        ports: vec![port("", Protocol::Tcp, 80)],
        ..Service::new(name(text))
    }
}

pub(crate) fn port(name: &str, protocol: Protocol, port: u16) -> ServicePort {
    ServicePort { name: name.into(), protocol, port, node_port: None }
}

/// The same port with a NodePort.
pub(crate) fn with_node_port(port: ServicePort, number: u16) -> ServicePort {
    ServicePort { node_port: NonZero::new(number), ..port }
}

/// A slice of a Service with one unnamed port, TCP 8080; its family is that of the first endpoint.
pub(crate) fn slice(text: &str, of: &str, endpoints: &[Endpoint]) -> EndpointSlice {
    EndpointSlice {
        ports: vec![listening("", Protocol::Tcp, 8080)],
        endpoints: endpoints.to_vec(),
        ..EndpointSlice::new(
            name(text),
            name(of),
            endpoints.first().map_or(Family::V4, |endpoint| Family::from(endpoint.address)),
        )
    }
}

pub(crate) fn listening(name: &str, protocol: Protocol, port: u16) -> EndpointPort {
    EndpointPort { name: name.into(), protocol, port }
}

/// A ready endpoint on another node, without hints.
pub(crate) fn ready(address: &str) -> Endpoint {
    Endpoint { node: Some("node-b".into()), ..Endpoint::new(ip(address)) }
}

/// An endpoint that terminates and still serves.
pub(crate) fn draining(address: &str) -> Endpoint {
    Endpoint { ready: false, serving: true, terminating: true, ..ready(address) }
}

/// An endpoint that neither is ready nor serves.
pub(crate) fn unready(address: &str) -> Endpoint {
    Endpoint { ready: false, serving: false, ..ready(address) }
}

/// The same endpoint, elsewhere or with hints.
pub(crate) trait Located {
    fn here(self) -> Self;
    fn for_zones(self, zones: &[&str]) -> Self;
    fn for_nodes(self, nodes: &[&str]) -> Self;
}

impl Located for Endpoint {
    fn here(self) -> Self {
        Self { node: Some(NODE.into()), ..self }
    }

    fn for_zones(self, zones: &[&str]) -> Self {
        Self { zone_hints: zones.iter().map(|&zone| zone.into()).collect(), ..self }
    }

    fn for_nodes(self, nodes: &[&str]) -> Self {
        Self { node_hints: nodes.iter().map(|&node| node.into()).collect(), ..self }
    }
}

pub(crate) fn in_zone(zone: &str) -> Change {
    Change::Node(Some(Node { zone: Some(zone.into()), ..Node::default() }))
}

/// The interfaces of the node have these addresses.
pub(crate) fn node_addresses(texts: &[&str]) -> Change {
    Change::NodeAddresses { here: texts.iter().map(|text| ip(text)).collect(), lost: BTreeSet::new() }
}

/// The question about an address, with or without a port.
pub(crate) fn about(text: &str, port: Option<u16>) -> AddressQuery {
    AddressQuery { ip: Some(ip(text)), port, protocol: None }
}

/// `tcp("10.96.0.1:80")`.
pub(crate) fn tcp(text: &str) -> ServiceAddress {
    address(Protocol::Tcp, text)
}

pub(crate) fn udp(text: &str) -> ServiceAddress {
    address(Protocol::Udp, text)
}

pub(crate) fn address(protocol: Protocol, text: &str) -> ServiceAddress {
    let RealServerAddress { ip, port } = real(text);
    ServiceAddress { protocol, ip, port }
}

pub(crate) fn real(text: &str) -> RealServerAddress {
    let socket: std::net::SocketAddr = text.parse().unwrap();
    RealServerAddress { ip: socket.ip(), port: socket.port() }
}

/// The real servers of the virtual server at a TCP address; panics if there is no virtual server.
pub(crate) fn real_servers(state: &State, at: &str) -> Vec<String> {
    real_servers_of(state, tcp(at))
}

pub(crate) fn real_servers_of(state: &State, at: ServiceAddress) -> Vec<String> {
    let server = state.virtual_server(&at).unwrap_or_else(|| panic!("no virtual server at {at}"));
    server.real_servers.iter().map(|real| real.address.to_string()).collect()
}

/// The configuration of the virtual server at a TCP address; panics if there is none.
pub(crate) fn config(state: &State, at: &str) -> ipvs::VirtualServer {
    state.virtual_server(&tcp(at)).unwrap().config()
}

/// The Service that holds an address and port; panics if there is none.
pub(crate) fn owner(state: &State, at: ServiceAddress) -> String {
    state.owner(&at).unwrap().to_string()
}

/// The addresses of all virtual servers, sorted.
pub(crate) fn virtual_servers(state: &State) -> Vec<String> {
    sorted(state.virtual_servers().map(|server| server.address))
}

pub(crate) fn vips(state: &State) -> Vec<String> {
    sorted(state.vips())
}

/// The elements, without those that repeat the VIPs.
pub(crate) fn elements(state: &State) -> Vec<String> {
    sorted(state.elements().filter(|element| !matches!(element, Element::Vip(_))))
}

/// The elements that say that these addresses are VIPs.
pub(crate) fn vip_elements(texts: &[&str]) -> BTreeSet<Element> {
    texts.iter().map(|text| Element::Vip(ip(text))).collect()
}

/// How many Services lack a local endpoint for this traffic, of either family.
pub(crate) fn without_local_endpoint(state: &State, traffic: Traffic) -> [usize; 2] {
    Family::BOTH
        .map(|family| state.reports().without_local_endpoint(WithoutLocalEndpoint { traffic, family }))
}

fn sorted<T: ToString>(values: impl Iterator<Item = T>) -> Vec<String> {
    let mut texts: Vec<String> = values.map(|value| value.to_string()).collect();
    texts.sort();
    texts
}

/// Every key that is wanted, with its desired value: what the kernel should look like, and what others
/// clients are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) virtual_servers: BTreeMap<ServiceAddress, service::DesiredVirtualServer>,
    pub(crate) owners: BTreeMap<ServiceAddress, ObjectName>,
    pub(crate) vips: Vec<IpAddr>,
    pub(crate) elements: Vec<Element>,
    /// The families in which something is answered directly.
    pub(crate) tunnels: BTreeSet<Family>,
    pub(crate) health_checks: Vec<(ObjectName, HealthCheck)>,
    pub(crate) without_local_endpoint: [[usize; 2]; 2],
    pub(crate) served: usize,
    pub(crate) lacking_endpoints: BTreeSet<ObjectName>,
    pub(crate) refused: Vec<(ObjectName, Vec<RefusedAddress>)>,
    pub(crate) problems: Vec<(ObjectName, Vec<String>)>,
    /// Who has lost which addresses to whom, as far as named, and how many more.
    pub(crate) lost: Vec<(ObjectName, String)>,
}

pub(crate) fn wanted(state: &State) -> Wanted {
    let virtual_servers: BTreeMap<_, _> =
        state.virtual_servers().map(|server| (server.address, (**server).clone())).collect();
    let owners = virtual_servers.keys().map(|at| (*at, state.owner(at).unwrap().clone())).collect();
    let (mut vips, mut elements): (Vec<_>, Vec<_>) =
        (state.vips().copied().collect(), state.elements().collect());
    vips.sort_unstable();
    elements.sort_unstable();
    Wanted {
        virtual_servers,
        owners,
        vips,
        elements,
        tunnels: Family::BOTH.into_iter().filter(|family| state.unpacks(*family)).collect(),
        health_checks: state
            .reports()
            .health_checks()
            .map(|(service, check)| (service.clone(), *check))
            .collect(),
        without_local_endpoint: [Traffic::Internal, Traffic::External]
            .map(|traffic| without_local_endpoint(state, traffic)),
        served: state.reports().served(),
        lacking_endpoints: state.reports().lacking_endpoints().clone(),
        refused: state
            .reports()
            .refused()
            .map(|(service, refused)| (service.clone(), refused.to_vec()))
            .collect(),
        problems: state
            .reports()
            .problems()
            .map(|(service, reported)| (service.clone(), reported.to_vec()))
            .collect(),
        lost: state.conflict_losses().map(|(service, lost)| (service.clone(), format!("{lost:?}"))).collect(),
    }
}

/// The keys whose desired value differs.
pub(crate) fn difference(before: &Wanted, after: &Wanted) -> Dirty {
    let keys = before.virtual_servers.keys().chain(after.virtual_servers.keys());
    Dirty {
        virtual_servers: keys
            .filter(|at| before.virtual_servers.get(at) != after.virtual_servers.get(at))
            .copied()
            .collect(),
        vips: before
            .vips
            .iter()
            .chain(&after.vips)
            .filter(|vip| before.vips.contains(vip) != after.vips.contains(vip))
            .copied()
            .collect(),
        elements: before
            .elements
            .iter()
            .chain(&after.elements)
            .filter(|it| before.elements.contains(it) != after.elements.contains(it))
            .copied()
            .collect(),
        tunnels: &before.tunnels ^ &after.tunnels,
        reports: before.health_checks != after.health_checks
            || before.without_local_endpoint != after.without_local_endpoint
            || before.refused != after.refused,
        ..Dirty::default()
    }
}
