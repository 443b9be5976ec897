//! On loopback, fed by a writer thread that the test plays.

use std::{
    collections::BTreeSet,
    io, iter,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener},
    num::NonZero,
    time::Duration,
};

use ipvs::Protocol;
use reconciler::{SyncEvent, SyncReport, SyncStats, Trigger};
use service::{
    Change, Endpoint, EndpointPort, EndpointSlice, Event, NodePortAddresses, Options, Service, ServiceKind,
    ServicePort, State, TrafficPolicy,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{advance, timeout},
};

use super::*;
use crate::{events::tests::Server as ApiServer, serve::health::UnknownNode};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const ALSO_HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// The node has these addresses.
fn node_addresses(here: BTreeSet<IpAddr>) -> Change {
    Change::NodeAddresses { here, lost: BTreeSet::new() }
}

fn in_range(range: &str) -> NodePortAddresses {
    NodePortAddresses { primary: false, ranges: vec![range.parse().unwrap()] }
}

/// The servers, and a writer thread whose syncs write nothing.
struct Node {
    state: State,
    health: Health,
    listener: Box<dyn Observer>,
    wanted: watch::Receiver<WantedAnswers>,
    servers: JoinHandle<Infallible>,
}

impl Node {
    fn new(addresses: NodePortAddresses, outbox: Outbox) -> Self {
        let families = Family::BOTH.into();
        let health =
            Health::new(BTreeSet::from(Family::BOTH), Duration::from_secs(30), UnknownNode::Eligible);
        let (ports, listener) = HealthCheckPorts::new("node", families, health.clone(), outbox);
        let wanted = ports.wanted.clone();
        let servers = tokio::spawn(ports.run());
        let mut options = Options::new("node");
        options.node_port_addresses = addresses;
        let mut state = State::new(options);
        state.apply(Change::Services(Event::Replace(Vec::new())));
        state.apply(Change::Slices(Event::Replace(Vec::new())));
        Self { state, health, listener, wanted, servers }
    }

    fn everywhere() -> Self {
        Self::new(NodePortAddresses::default(), Outbox::default())
    }

    fn change(&mut self, changes: impl IntoIterator<Item = Change>) {
        changes.into_iter().for_each(|change| drop(self.state.apply(change)));
        self.sync(true);
    }

    fn sync(&mut self, complete: bool) {
        self.sync_with(complete, &SyncStats::default());
    }

    fn sync_with(&mut self, complete: bool, stats: &SyncStats) {
        let report = SyncReport::empty(Trigger::Change);
        let sync = SyncEvent { report: &report, stats, complete, state: &self.state, triggered_at: &[] };
        self.listener.on_sync(&sync);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.servers.abort();
    }
}

/// A load balancer's Service of both families that is asked about at a port.
fn web(port: u16) -> Service {
    Service {
        kind: ServiceKind::LoadBalancer,
        external_traffic_policy: TrafficPolicy::Local,
        cluster_ips: vec![[10, 96, 0, 1].into(), "fd00::1".parse().unwrap()],
        ports: vec![ServicePort { name: "".into(), protocol: Protocol::Tcp, port: 80, node_port: None }],
        health_check_node_port: NonZero::new(port),
        ..Service::new(ObjectName::new("shop", "web"))
    }
}

/// Its endpoints of one family, all on this node; the last so many terminate.
fn pods(family: Family, count: u16, terminating: u16) -> Change {
    let endpoint = |number: u16| Endpoint {
        ready: number <= count - terminating,
        terminating: number > count - terminating,
        node: Some("node".into()),
        ..Endpoint::new(match family {
            Family::V4 => Ipv4Addr::new(10, 244, 0, u8::try_from(number).unwrap()).into(),
            Family::V6 => Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, number).into(),
        })
    };
    Change::Slices(Event::Apply(EndpointSlice {
        ports: vec![EndpointPort { name: "".into(), protocol: Protocol::Tcp, port: 8080 }],
        endpoints: (1..=count).map(endpoint).collect(),
        ..EndpointSlice::new(
            ObjectName::new("shop", format!("web-{family}")),
            ObjectName::new("shop", "web"),
            family,
        )
    }))
}

/// A port on which no program listens. It stays free for a while: the kernel goes through them in no order.
fn free_port() -> u16 {
    TcpListener::bind((HERE, 0)).unwrap().local_addr().unwrap().port()
}

fn has_ipv6() -> bool {
    TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok()
}

/// Asks, and returns the whole answer.
async fn ask(ip: IpAddr, port: u16) -> io::Result<String> {
    let mut stream = TcpStream::connect((ip, port)).await?;
    stream.write_all(b"GET /whatever HTTP/1.0\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// The code and the weight that a load balancer gets.
async fn weight(ip: IpAddr, port: u16) -> Option<(u16, u16)> {
    let answer = ask(ip, port).await.ok()?;
    let code = answer.split(' ').nth(1)?.parse().ok()?;
    let header = answer.lines().find_map(|line| line.strip_prefix("x-load-balancing-endpoint-weight: "))?;
    Some((code, header.parse().ok()?))
}

/// Waits until that is what it gets; `None`: no program listens.
async fn weighs(ip: IpAddr, port: u16, wanted: Option<(u16, u16)>) {
    let found = timeout(Duration::from_secs(10), async {
        while weight(ip, port).await != wanted {
            sleep(Duration::from_millis(2)).await;
        }
    });
    assert!(found.await.is_ok(), "{ip}:{port} says {:?}, not {wanted:?}", weight(ip, port).await);
}

#[tokio::test]
async fn the_answer_has_the_headers_and_the_body_of_kube_proxys() {
    let (mut node, port) = (Node::everywhere(), free_port());
    node.change([Change::Services(Event::Apply(web(port))), pods(Family::V4, 2, 0)]);
    weighs(HERE, port, Some((200, 2))).await;
    let answer = ask(HERE, port).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("\r\ncontent-type: application/json\r\n"), "{head}");
    assert!(head.contains("\r\nx-content-type-options: nosniff\r\n"), "{head}");
    assert_eq!(
        body,
        "{\n\t\"service\": {\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 2,\n\
         \t\"serviceProxyHealthy\": true\n}"
    );
}

#[tokio::test]
async fn ready_endpoints_count_and_terminating_ones_do_not() {
    let (mut node, port) = (Node::everywhere(), free_port());
    node.change([Change::Services(Event::Apply(web(port)))]);
    weighs(HERE, port, Some((503, 0))).await;
    for (count, terminating, answer) in
        [(3, 0, (200, 3)), (3, 1, (200, 2)), (1, 1, (503, 0)), (1, 0, (200, 1))]
    {
        node.change([pods(Family::V4, count, terminating)]);
        weighs(HERE, port, Some(answer)).await;
    }
}

#[tokio::test]
async fn each_family_answers_for_its_own_endpoints_if_the_service_has_it() {
    if !has_ipv6() {
        return;
    }
    let (mut node, port) = (Node::everywhere(), free_port());
    let six = Ipv6Addr::LOCALHOST.into();
    node.change([Change::Services(Event::Apply(web(port))), pods(Family::V4, 1, 0), pods(Family::V6, 3, 0)]);
    weighs(HERE, port, Some((200, 1))).await;
    weighs(six, port, Some((200, 3))).await;
    let mut of_one_family = web(port);
    of_one_family.cluster_ips.pop();
    node.change([Change::Services(Event::Apply(of_one_family))]);
    weighs(six, port, None).await;
    weighs(HERE, port, Some((200, 1))).await;
}

#[tokio::test]
async fn the_port_moves_with_the_service_and_is_free_when_it_is_gone() {
    let (mut node, port, other) = (Node::everywhere(), free_port(), free_port());
    node.change([Change::Services(Event::Apply(web(port))), pods(Family::V4, 1, 0)]);
    weighs(HERE, port, Some((200, 1))).await;
    let mut visitor = TcpStream::connect((HERE, port)).await.unwrap();
    node.change([Change::Services(Event::Apply(web(other)))]);
    weighs(HERE, other, Some((200, 1))).await;
    // The old one was closed before the new one was opened.
    drop(TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap());
    let mut rest = Vec::new();
    timeout(Duration::from_secs(10), visitor.read_to_end(&mut rest)).await.unwrap().unwrap_or_default();
    assert!(rest.is_empty(), "who was connected is not answered any more: {rest:?}");
    node.change([Change::Services(Event::Delete(ObjectName::new("shop", "web")))]);
    weighs(HERE, other, None).await;
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, other)).unwrap();
}

#[tokio::test]
async fn one_service_can_take_over_the_port_of_another_in_one_sync() {
    let (mut node, port) = (Node::everywhere(), free_port());
    let another = Service { name: ObjectName::new("shop", "another"), ..web(port) };
    node.change([Change::Services(Event::Apply(another)), pods(Family::V4, 1, 0)]);
    weighs(HERE, port, Some((503, 0))).await;
    node.change([
        Change::Services(Event::Delete(ObjectName::new("shop", "another"))),
        Change::Services(Event::Apply(web(port))),
    ]);
    weighs(HERE, port, Some((200, 1))).await;
}

#[tokio::test]
async fn node_port_addresses_say_where_it_listens_and_are_followed() {
    let ranges = in_range("127.0.0.2/31");
    let (mut node, port) = (Node::new(ranges, Outbox::default()), free_port());
    node.change([
        node_addresses([HERE, ALSO_HERE].into()),
        Change::Services(Event::Apply(web(port))),
        pods(Family::V4, 1, 0),
    ]);
    weighs(ALSO_HERE, port, Some((200, 1))).await;
    weighs(HERE, port, None).await;
    let third = Ipv4Addr::new(127, 0, 0, 3).into();
    node.change([node_addresses([HERE, third].into())]);
    weighs(third, port, Some((200, 1))).await;
    weighs(ALSO_HERE, port, None).await;
}

#[tokio::test]
async fn broken_proxy_takes_the_node_out_and_a_leaving_node_does_not() {
    let (mut node, port) = (Node::everywhere(), free_port());
    node.change([Change::Services(Event::Apply(web(port))), pods(Family::V4, 1, 0)]);
    node.health.on_change(&Change::Node(None));
    weighs(HERE, port, Some((200, 1))).await;
    node.health.clone().on_sync(&SyncEvent {
        stats: &SyncStats::default(),
        report: &SyncReport::empty(Trigger::Start),
        complete: false,
        state: &node.state,
        triggered_at: &[],
    });
    tokio::time::pause();
    advance(Duration::from_secs(60)).await;
    tokio::time::resume();
    weighs(HERE, port, Some((503, 1))).await;
    assert!(ask(HERE, port).await.unwrap().ends_with("\t\"serviceProxyHealthy\": false\n}"));
}

#[tokio::test]
async fn a_service_of_which_something_is_left_keeps_its_answer() {
    let mut node = Node::everywhere();
    node.change([Change::Services(Event::Apply(web(free_port()))), pods(Family::V4, 1, 0)]);
    node.wanted.mark_unchanged();
    node.state.apply(pods(Family::V4, 3, 0));
    let left = iter::once(ObjectName::new("shop", "web")).collect();
    node.sync_with(true, &SyncStats { left, ..SyncStats::default() });
    assert!(!node.wanted.has_changed().unwrap(), "its pods may not be reached yet");
    node.sync(true);
    assert!(node.wanted.has_changed().unwrap());
}

#[tokio::test]
async fn only_a_sync_that_was_compared_and_changes_something_is_passed_on() {
    let (mut node, port) = (Node::everywhere(), free_port());
    node.change([Change::Services(Event::Apply(web(port)))]);
    assert!(node.wanted.has_changed().unwrap());
    node.wanted.mark_unchanged();
    node.sync(true);
    assert!(!node.wanted.has_changed().unwrap(), "the same as before");
    node.state.apply(pods(Family::V4, 1, 0));
    node.sync(false);
    assert!(!node.wanted.has_changed().unwrap(), "the pods may not be reached yet");
    node.sync(true);
    assert!(node.wanted.has_changed().unwrap());
}

/// Waits until a program listens. Nothing is asked: with time that jumps ahead no client is fast enough.
async fn is_open(ip: IpAddr, port: u16) {
    while std::net::TcpStream::connect((ip, port)).is_err() {
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_taken_port_is_one_event_and_retried_while_other_addresses_answer() {
    let server = ApiServer::taking();
    let (outbox, publisher) = server.queue();
    tokio::spawn(publisher.run());
    let ranges = in_range("127.0.0.0/8");
    let mut node = Node::new(ranges, outbox);
    let taken = TcpListener::bind((HERE, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    node.change([node_addresses([HERE, ALSO_HERE].into()), Change::Services(Event::Apply(web(port)))]);
    is_open(ALSO_HERE, port).await;
    // It is tried again and again; that it fails is said once.
    sleep(Duration::from_secs(300)).await;
    let [event] = &server.events()[..] else { panic!("not one Event") };
    assert_eq!(
        event["note"],
        format!(
            "node node failed to start healthcheck \"shop/web\" on port {port}: 127.0.0.1: Address already in use \
             (os error 98)"
        )
    );
    assert_eq!(
        (&event["type"], &event["reason"], &event["action"]),
        (&"Warning".into(), &"FailedToStartServiceHealthcheck".into(), &"Listen".into())
    );
    assert_eq!(
        (&event["regarding"]["kind"], &event["regarding"]["name"]),
        (&"Service".into(), &"web".into())
    );
    drop(taken);
    timeout(RETRY * 2, is_open(HERE, port)).await.unwrap();
}
