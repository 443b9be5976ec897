//! UDP flows that go on: clients that ask again and again from the same port, while the Service changes.
//!
//! Each is looked at with its network in conntrack's default zone, where IPVS itself forgets most of what is not
//! right any more, and in another one, where it forgets nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    time::Duration,
};

use anyhow::ensure;
use ipvs::{Protocol, ServiceAddress};
use serde_json::json;
use testkit::{daemon::eventually, lab::Host};

use crate::support::cluster::{self, Cluster, NO_PERIOD, Service, V4, V6, at};

/// The port of every address and of every pod, and the number of the NodePort: the port
/// distinguishes nothing.
const PORT: u16 = 8080;

/// Where the Service is reached: as ClusterIP, external IP, load balancer's address and NodePort.
const WAYS: [&str; 8] =
    [V4, V6, "203.0.113.10", "2001:db8::10", "203.0.113.20", "2001:db8::20", "192.168.50.1", "fd00:50::1"];

/// A Service that is reached in all these ways.
fn dns() -> Service {
    let port = |name: &str, protocol: &str| json!({ "name": name, "protocol": protocol, "port": PORT, "nodePort": PORT });
    let spec = json!({
        "type": "LoadBalancer",
        "clusterIPs": WAYS[..2],
        "externalIPs": WAYS[2..4],
        "ports": [port("udp", "UDP"), port("tcp", "TCP")],
    });
    let ingress = [4, 5].map(|way| json!({ "ip": WAYS[way] }));
    Service::new("dns", &spec).patch(&json!({ "status": { "loadBalancer": { "ingress": ingress } } }))
}

/// Waits until every way leads to these pods, by number.
fn leads_to(cluster: &Cluster, pods: &[usize]) {
    let address = |ip: &str| ServiceAddress { protocol: Protocol::Udp, ip: ip.parse().unwrap(), port: PORT };
    cluster.serves_all(&WAYS.map(|way| (address(way), pods)));
}

/// A UDP socket that goes on asking.
struct Sender {
    socket: UdpSocket,
    to: SocketAddr,
    name: String,
}

/// What came of asking.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Asked {
    Answered(String),
    Refused,
    InVain,
}

impl Sender {
    fn new(host: &Host, to: SocketAddr) -> Self {
        let socket = host.inside(move || {
            let any: IpAddr = match to {
                SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            let socket = UdpSocket::bind((any, 0))?;
            socket.set_read_timeout(Some(Duration::from_secs(2)))?;
            socket.connect(to).map(|()| socket)
        });
        Self { socket: socket.unwrap().unwrap(), to, name: format!("{} -> {to}", host.name) }
    }

    fn ask(&self) -> Asked {
        let mut answer = [0; 128];
        self.forget();
        let asked = self.socket.send(b"who?\n").and_then(|_| self.socket.recv(&mut answer));
        match asked {
            Ok(length) => {
                let answer = std::str::from_utf8(&answer[..length]).unwrap();
                Asked::Answered(answer.split(' ').next().unwrap().to_owned())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Asked::InVain,
            // The node itself gets EPERM.
            Err(error)
                if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::PermissionDenied) =>
            {
                Asked::Refused
            }
            Err(error) => panic!("{}: {error}", self.name),
        }
    }

    /// Forgets what has come in for earlier questions: answers, and refusals, which reach the node twice.
    fn forget(&self) {
        self.socket.take_error().unwrap();
        self.socket.set_nonblocking(true).unwrap();
        while self.socket.recv(&mut [0; 128]).is_ok() {}
        self.socket.set_nonblocking(false).unwrap();
    }

    #[track_caller]
    fn is_answered_by(&self, pod: &str) {
        assert_eq!(self.ask(), Asked::Answered(pod.to_owned()), "{}", self.name);
    }

    /// Asks until there is an answer: the first packets between two hosts may be lost.
    fn finds(&self, pod: &str) {
        eventually("an answer", || {
            let asked = self.ask();
            ensure!(asked == Asked::Answered(pod.to_owned()), "{}: {asked:?}", self.name);
            Ok(())
        })
        .unwrap();
    }

    fn source(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }
}

#[track_caller]
fn everyone_is_answered_by(pod: &str, senders: &[Sender]) {
    for sender in senders {
        sender.is_answered_by(pod);
    }
}

/// What conntrack has of a UDP flow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    source: SocketAddr,
    to: SocketAddr,
    answered_by: IpAddr,
    /// To whom: the sender, or the node where the flow is masqueraded.
    replies_to: IpAddr,
    zone: Option<String>,
    /// Another entry in its place would have another one.
    id: String,
}

/// The node's conntrack table, as the program `conntrack` shows it.
fn entries(cluster: &Cluster) -> BTreeSet<Entry> {
    let of = |family| {
        let list = ["-L", "-f", family, "-p", "udp", "-o", "id"];
        cluster.lab.node.run("conntrack", &list).unwrap()
    };
    [of("ipv4"), of("ipv6")].concat().lines().map(entry).collect()
}

fn entry(line: &str) -> Entry {
    let mut fields = BTreeMap::<_, Vec<_>>::new();
    for (key, value) in line.split_whitespace().filter_map(|word| word.split_once('=')) {
        fields.entry(key).or_default().push(value);
    }
    // The original direction first, then that of the answer.
    let ip = |key, direction: usize| fields[key][direction].parse::<IpAddr>().unwrap();
    let port = |key| fields[key][0].parse().unwrap();
    Entry {
        source: SocketAddr::new(ip("src", 0), port("sport")),
        to: SocketAddr::new(ip("dst", 0), port("dport")),
        answered_by: ip("src", 1),
        replies_to: ip("dst", 1),
        zone: fields.get("zone").map(|zone| zone[0].to_owned()),
        id: fields["id"][0].to_owned(),
    }
}

/// The entry of a sender.
fn entry_of(entries: &BTreeSet<Entry>, sender: &Sender) -> Option<Entry> {
    entries.iter().find(|entry| entry.source == sender.source() && entry.to == sender.to).cloned()
}

/// Waits until no way is answered by any of these addresses.
fn forgotten(cluster: &Cluster, by: &[IpAddr]) {
    let ways: BTreeSet<_> = WAYS.iter().map(|way| at(way, PORT)).collect();
    eventually("conntrack forgets", || {
        let mut entries = entries(cluster);
        entries.retain(|entry| ways.contains(&entry.to) && by.contains(&entry.answered_by));
        ensure!(entries.is_empty(), "{entries:#?}");
        Ok(())
    })
    .unwrap();
}

/// The addresses of a pod, by number.
fn addresses_of(cluster: &Cluster, pod: usize) -> [IpAddr; 2] {
    let pod = &cluster.lab.pods[pod - 1];
    [pod.ipv4.into(), pod.ipv6.into()]
}

/// Lets the node track everything in this zone, as some networks do for their pods.
fn set_zone(cluster: &Cluster, zone: Option<&str>) {
    let Some(zone) = zone else { return };
    let chain =
        |hook: &str| format!("add chain inet network {hook} {{ type filter hook {hook} priority -300; }}");
    let rule = |hook: &str| format!("add rule inet network {hook} ct zone set {zone}");
    let script = ["prerouting", "output"].map(|hook| format!("{}\n{}", chain(hook), rule(hook)));
    cluster.lab.node.run("nft", &[&format!("add table inet network\n{}", script.join("\n"))]).unwrap();
}

const ZONES: [Option<&str>; 2] = [None, Some("7")];

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_lasting_udp_flow_follows_the_endpoints_and_other_flows_of_the_port_stay() {
    for zone in ZONES {
        let cluster = Cluster::start(4, &[NO_PERIOD]);
        set_zone(&cluster, zone);
        let lab = &cluster.lab;
        cluster.write(&dns().endpoints([1, 2]));
        leads_to(&cluster, &[1, 2]);

        let hosts = [&lab.client, &lab.node, &lab.pods[2]];
        let senders: Vec<_> = (0..2)
            .flat_map(|_| hosts.iter().flat_map(|host| WAYS.map(|way| Sender::new(host, at(way, PORT)))))
            .collect();
        let foreign: Vec<_> = [4, 1]
            .iter()
            .flat_map(|pod| addresses_of(&cluster, *pod).map(|ip| (pod, SocketAddr::new(ip, PORT))))
            .map(|(pod, server)| (Sender::new(&lab.client, server), format!("pod-{pod}")))
            .collect();
        for (sender, pod) in &foreign {
            sender.finds(pod);
        }
        let answers: Vec<_> = senders.iter().map(Sender::ask).collect();
        let answered_by = |pod: &str| answers.iter().filter(|it| **it == Asked::Answered(pod.into())).count();
        assert_eq!((answered_by("pod-1"), answered_by("pod-2")), (24, 24), "{answers:?}");
        let mut connection = lab.client.connect(at(V4, PORT)).unwrap();
        let before = entries(&cluster);

        // Pod 1 terminates and still serves; pod 2 takes over.
        cluster.write(&dns().endpoints([cluster::here(1).terminating(), 2.into()]));
        leads_to(&cluster, &[2]);
        forgotten(&cluster, &addresses_of(&cluster, 1));
        everyone_is_answered_by("pod-2", &senders);
        let after = entries(&cluster);
        for (sender, answer) in senders.iter().zip(&answers) {
            let (before, after) = (entry_of(&before, sender).unwrap(), entry_of(&after, sender).unwrap());
            assert_eq!(before.zone.as_deref(), zone);
            let served_all_the_time = *answer == Asked::Answered("pod-2".into());
            assert_eq!(before == after, served_all_the_time, "{}: {before:?}, {after:?}", sender.name);
        }
        for (sender, _) in &foreign {
            assert_eq!(entry_of(&before, sender), entry_of(&after, sender), "{}", sender.name);
            assert!(entry_of(&after, sender).is_some(), "{}", sender.name);
        }
        connection.still_works().unwrap();
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn with_the_last_endpoint_its_flows_end_and_with_the_next_one_they_go_on() {
    for zone in ZONES {
        let cluster = Cluster::start(3, &[NO_PERIOD]);
        set_zone(&cluster, zone);
        cluster.write(&dns().endpoints([1]));
        leads_to(&cluster, &[1]);
        let hosts = [&cluster.lab.client, &cluster.lab.node, &cluster.lab.pods[2]];
        let senders: Vec<_> =
            hosts.iter().flat_map(|host| WAYS.map(|way| Sender::new(host, at(way, PORT)))).collect();
        everyone_is_answered_by("pod-1", &senders);

        cluster.write(&dns());
        leads_to(&cluster, &[]);
        forgotten(&cluster, &addresses_of(&cluster, 1));
        for sender in &senders {
            assert_eq!(sender.ask(), Asked::Refused, "{}", sender.name);
        }
        cluster.write(&dns().endpoints([2]));
        leads_to(&cluster, &[2]);
        everyone_is_answered_by("pod-2", &senders);

        cluster.delete(&dns());
        cluster.shows("nothing", cluster::Table::is_empty);
        forgotten(&cluster, &addresses_of(&cluster, 2));
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn client_that_asked_before_the_service_existed_is_answered_once_it_does() {
    for zone in ZONES {
        let cluster = Cluster::start(3, &[NO_PERIOD]);
        set_zone(&cluster, zone);
        let lab = &cluster.lab;
        // What is for an address that is not the node's leaves the node, and is lost there.
        let [lost_v4, lost_v6] = addresses_of(&cluster, 3);
        lab.node.ip(&format!("route add default via {lost_v4}\nroute add ::/0 via {lost_v6}")).unwrap();
        let hosts = [&lab.client, &lab.node, &lab.pods[1]];
        let senders: Vec<_> =
            hosts.iter().flat_map(|host| WAYS.map(|way| Sender::new(host, at(way, PORT)))).collect();
        for sender in &senders {
            // It may be refused at once.
            _ = sender.socket.send(b"who?\n");
        }
        eventually("conntrack knows all of them", || {
            let entries = entries(&cluster);
            let unknown = senders.iter().find(|sender| entry_of(&entries, sender).is_none());
            ensure!(unknown.is_none(), "{}: {entries:#?}", unknown.unwrap().name);
            Ok(())
        })
        .unwrap();

        cluster.write(&dns().endpoints([1]));
        leads_to(&cluster, &[1]);
        forgotten(&cluster, &WAYS.map(|way| way.parse().unwrap()));
        everyone_is_answered_by("pod-1", &senders);
    }
}

/// The client's flows to the ClusterIPs, which another proxy, that is gone now, has sent to pod 1.
fn translated_by_another_proxy(cluster: &Cluster) -> [Sender; 2] {
    let (node, client) = (&cluster.lab.node, &cluster.lab.client);
    let [pod_v4, pod_v6] = addresses_of(cluster, 1);
    for (family, vip, pod) in [("ip", V4, format!("{pod_v4}")), ("ip6", V6, format!("[{pod_v6}]"))] {
        let chain = "{ type nat hook prerouting priority -100; }";
        let rule = format!("{family} daddr {vip} udp dport {PORT} dnat to {pod}:{PORT}");
        let script = format!(
            "add table {family} other\nadd chain {family} other c {chain}\nadd rule {family} other c {rule}"
        );
        node.run("nft", &[&script]).unwrap();
    }
    let senders = [V4, V6].map(|vip| Sender::new(client, at(vip, PORT)));
    for sender in &senders {
        sender.finds("pod-1");
    }
    node.run("nft", &["delete table ip other; delete table ip6 other"]).unwrap();
    senders
}

/// Only pod 2 is left, and the flows to pod 1 follow.
#[track_caller]
fn pod_2_takes_over(cluster: &Cluster, senders: &[Sender]) {
    cluster.write(&dns().endpoints([2]));
    leads_to(cluster, &[2]);
    forgotten(cluster, &addresses_of(cluster, 1));
    everyone_is_answered_by("pod-2", senders);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_flow_translated_by_another_proxy_stays_while_its_pod_serves() {
    let cluster = Cluster::start(2, &[NO_PERIOD]);
    let senders = translated_by_another_proxy(&cluster);
    cluster.write(&dns().endpoints([1, 2]));
    leads_to(&cluster, &[1, 2]);
    everyone_is_answered_by("pod-1", &senders);

    pod_2_takes_over(&cluster, &senders);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_flow_translated_by_another_proxy_to_a_removed_pod_moves_to_a_serving_one() {
    let cluster = Cluster::start(2, &[NO_PERIOD]);
    let senders = translated_by_another_proxy(&cluster);
    pod_2_takes_over(&cluster, &senders);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_flow_that_has_begun_while_our_table_was_gone_is_masqueraded_when_it_is_back() {
    let mut cluster = Cluster::start(2, &[NO_PERIOD]);
    cluster.write(&dns().endpoints([1]));
    leads_to(&cluster, &[1]);
    cluster.stop();
    // With another rule for translation, conntrack decides at the first packet that nothing is translated.
    let other = "add table ip other; add chain ip other c { type nat hook postrouting priority 100; }; \
                 add rule ip other c ip saddr 198.51.100.0/24 masquerade; delete table ip kube-ipvs";
    cluster.lab.node.run("nft", &[other]).unwrap();
    let sender = Sender::new(&cluster.lab.client, at("192.168.50.1", PORT));
    sender.ask();
    let replies_to = |cluster: &Cluster| entry_of(&entries(cluster), &sender).map(|entry| entry.replies_to);
    assert_eq!(replies_to(&cluster), Some(cluster.lab.client.ipv4.into()), "not masqueraded");

    cluster.restart(&[NO_PERIOD]);
    eventually("the flow is masqueraded", || {
        sender.ask();
        let to = replies_to(&cluster);
        ensure!(to.is_some_and(|to| to != IpAddr::from(cluster.lab.client.ipv4)), "{to:?}");
        Ok(())
    })
    .unwrap();
    sender.is_answered_by("pod-1");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn an_answer_during_a_repair_of_our_table_reaches_the_masqueraded_client() {
    const SLOW: u16 = 5353;
    let cluster = Cluster::start(3, &[NO_PERIOD]);
    let (node, pod) = (&cluster.lab.node, &cluster.lab.pods[0]);
    // Before our table is there, conntrack may not look at anything.
    cluster.daemon().ask(node, "resync").unwrap();
    let answering = pod.inside(|| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, SLOW))?;
        socket.set_read_timeout(Some(Duration::from_secs(10))).map(|()| socket)
    });
    let answering = answering.unwrap().unwrap();
    let port = json!({ "protocol": "UDP", "port": PORT, "nodePort": PORT });
    let slow = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": "slow" },
        "spec": { "type": "NodePort", "clusterIP": V4, "ports": [port] },
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": { "name": "slow-1", "labels": { "kubernetes.io/service-name": "slow" } },
        "addressType": "IPv4",
        "ports": [{ "protocol": "UDP", "port": SLOW }],
        "endpoints": [{ "addresses": [pod.ipv4] }],
    });
    // Once this is forgotten, what is to be forgotten for the new Service is.
    let early = Sender::new(&cluster.lab.client, at("192.168.50.1", PORT));
    assert_eq!(early.ask(), Asked::Refused);
    assert!(entry_of(&entries(&cluster), &early).is_some());
    cluster.write_manifest("slow", &json!({ "apiVersion": "v1", "kind": "List", "items": [slow, slice] }));
    let is_forgotten = |sender: &Sender| {
        eventually("conntrack forgets", || {
            let entry = entry_of(&entries(&cluster), sender);
            ensure!(entry.is_none(), "{entry:?}");
            Ok(())
        })
        .unwrap();
    };
    is_forgotten(&early);

    // One from outside, which is masqueraded, and a pod, which is not.
    let outside = Sender::new(&cluster.lab.client, at("192.168.50.1", PORT));
    let inside = Sender::new(&cluster.lab.pods[1], at(V4, PORT));
    let mut question = [0; 128];
    let asked = [&outside, &inside].map(|sender| {
        sender.socket.send(b"who?\n").unwrap();
        answering.recv_from(&mut question).unwrap().1
    });
    let replies_to = |sender| entry_of(&entries(&cluster), sender).map(|entry| entry.replies_to);
    assert_ne!(replies_to(&outside), Some(cluster.lab.client.ipv4.into()), "not masqueraded");
    assert_eq!(replies_to(&inside), Some(cluster.lab.pods[1].ipv4.into()));

    // The flow of the pod is forgotten with the repair: so it is known when that is over.
    node.run("nft", &["add chain ip kube-ipvs stranger"]).unwrap();
    is_forgotten(&inside);
    for (sender, from) in [&outside, &inside].into_iter().zip(asked) {
        answering.send_to(b"slow\n", from).unwrap();
        let answered = sender.socket.recv(&mut question);
        assert_eq!(answered.ok(), Some(5), "{}", sender.name);
    }
}
