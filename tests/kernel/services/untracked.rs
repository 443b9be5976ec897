//! Connections of pods that conntrack does not track.

use std::{fmt::Write as _, fs, net::IpAddr};

use ipvs::{Protocol, ServiceAddress};
use serde_json::json;
use testkit::{
    daemon::eventually,
    lab::{Host, Lab},
};

use crate::direct_return::cluster::{self as direct_return, CLUSTER_IP, EXTERNAL, all_still_work};
use crate::support::cluster::{Cluster, POD_PORT, Service, V4, V6, are_dropped, at, elsewhere, here};

const ALLOWED: &str = "--untracked-services=cluster-dns,annotated";

/// Where another Service is, which asks for nothing.
const TRACKED: &str = "10.96.0.11";

/// A Service of each protocol at port 80 that asks for it.
fn web(annotations: &serde_json::Value) -> Service {
    let port = |name: &str, protocol: &str| json!({ "name": name, "protocol": protocol, "port": 80 });
    let ports = [port("tcp", "TCP"), port("udp", "UDP"), port("sctp", "SCTP")];
    Service::new("web", &json!({ "clusterIPs": [V4, V6], "ports": ports }))
        .patch(&json!({ "metadata": { "annotations": annotations } }))
}

fn untracked() -> Service {
    web(&json!({ "kube-ipvs.io/conntrack": "off" }))
}

/// Every address of the Service.
fn addresses() -> Vec<ServiceAddress> {
    let at = |protocol| [V4, V6].map(|ip| ServiceAddress { protocol, ip: ip.parse().unwrap(), port: 80 });
    Lab::protocols().into_iter().flat_map(at).collect()
}

/// Those of them where a pod of this address family listens by itself.
fn at_pod(pod: &Host, like: ServiceAddress) -> ServiceAddress {
    ServiceAddress { ip: pod.address(like.ip), port: POD_PORT, ..like }
}

/// The entries of a node's conntrack with this host's addresses.
fn entries_of(node: &Host, host: &Host) -> Vec<String> {
    let families = ["ipv4", "ipv6"].map(|family| node.run("conntrack", &["-L", "-f", family]).unwrap());
    let addresses = [V4, V6].map(|like| host.address(like.parse().unwrap()));
    let has = |line: &&str, ip: IpAddr| line.contains(&format!("={ip} "));
    let lines = families.iter().flat_map(|text| text.lines());
    lines.filter(|line| addresses.iter().any(|ip| has(line, *ip))).map(str::to_owned).collect()
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn pods_reach_an_untracked_service_and_its_endpoints_without_an_entry_in_conntrack() {
    let mut cluster = Cluster::without_daemon(2);
    let _another = cluster.lab.add_pod_on_another_node("eth1", "another-node", POD_PORT).unwrap();
    cluster.restart(&[ALLOWED]);
    cluster.apply(&untracked().endpoints([here(2), elsewhere(3)]));
    let [pod, near, far] = &cluster.lab.pods[..] else { panic!("three pods") };
    for service in addresses() {
        for _ in 0..2 {
            let answer = pod.ask_at(service).unwrap();
            assert_eq!(answer.seen_as, pod.address(service.ip), "{service}");
        }
        for endpoint in [near, far] {
            assert_eq!(pod.ask_at(at_pod(endpoint, service)).unwrap().seen_as, pod.address(service.ip));
        }
    }
    assert_eq!(entries_of(&cluster.lab.node, pod), [""; 0]);
    cluster.resync_writes_nothing();

    // The same addresses with the annotation taken back: connections that are open go on, and new ones are tracked.
    let mut connections = [V4, V6].map(|vip| pod.connect(at(vip, 80)).unwrap());
    cluster.apply(&web(&json!({})).endpoints([here(2), elsewhere(3)]));
    eventually("no element is left", || {
        let table = cluster.lab.node.run("nft", &["list", "set", "ip", "kube-ipvs", "untracked"])?;
        anyhow::ensure!(!table.contains("elements"), "{table}");
        Ok(())
    })
    .unwrap();
    all_still_work(&mut connections);
    assert_eq!(pod.ask_udp(at(V4, 80)).unwrap().seen_as, IpAddr::from(pod.ipv4));
    assert!(!entries_of(&cluster.lab.node, pod).is_empty());
    cluster.apply(&untracked().endpoints([here(2), elsewhere(3)]));
    all_still_work(&mut connections);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn what_has_to_be_masqueraded_is_tracked_for_an_untracked_service_too() {
    let cluster = Cluster::start(2, &[ALLOWED]);
    let node_port = json!({ "spec": { "type": "NodePort", "ports": [{ "name": "tcp", "port": 80, "nodePort": 30_080 }] } });
    cluster.apply(&untracked().patch(&node_port).endpoints([1, 2]));
    let Lab { node, client, pods, .. } = &cluster.lab;
    for vip in [V4, V6] {
        // Both pods in turn: each reaches itself, and the other one.
        for pod in pods {
            let answers = [(); 2].map(|()| pod.ask(at(vip, 80)).unwrap());
            for answer in answers {
                let expected = if answer.from == pod.name {
                    pod.gateway(vip.parse().unwrap())
                } else {
                    pod.address(vip.parse().unwrap())
                };
                assert_eq!(answer.seen_as, expected, "{} asked {vip}, {} answered", pod.name, answer.from);
            }
        }
        for _ in 0..2 {
            node.ask(at(vip, 80)).unwrap();
            client.ask(at(vip, 80)).unwrap();
            let node_address = node.address(vip.parse().unwrap());
            client.ask((node_address, 30_080).into()).unwrap();
            for pod in pods {
                pod.ask((node_address, 30_080).into()).unwrap();
            }
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn neither_the_client_s_node_nor_the_endpoint_s_tracks_an_untracked_service() {
    let annotations = json!({ "kube-ipvs.io/conntrack": "off" });
    let mut cluster = direct_return::Cluster::without_daemons(&[1, 1], &annotations);
    // The first pod is not an endpoint: it is the client.
    let mut shop = cluster.service(&annotations);
    for slice in &mut shop[1..] {
        slice["endpoints"].as_array_mut().unwrap().remove(0);
    }
    cluster.write("shop", &shop);
    for node in 0..2 {
        cluster.run_with(node, &[ALLOWED]);
        for ip in CLUSTER_IP {
            cluster.masquerades_to(1, node, ip);
        }
    }
    let fabric = &cluster.fabric;
    let (pod, nodes) = (&fabric.pods[0].1, &fabric.nodes);
    for vip in CLUSTER_IP {
        assert_eq!(pod.ask(at(vip, 80)).unwrap().seen_as, pod.address(vip.parse().unwrap()));
        assert_eq!(pod.ask_udp(at(vip, 80)).unwrap().seen_as, pod.address(vip.parse().unwrap()));
    }
    for node in nodes {
        assert_eq!(entries_of(node, pod), [""; 0], "{}", node.name);
    }
    // Masqueraded, by the node where it comes in.
    for vip in EXTERNAL {
        fabric.enter_by(vip.parse().unwrap(), 0).unwrap();
        let answer = fabric.client.ask(at(vip, 80)).unwrap();
        assert_eq!(answer.seen_as, nodes[0].address(vip.parse().unwrap()));
    }
}

/// Fills the node's table of conntrack with entries that are not evicted.
fn fill_conntrack(cluster: &Cluster) {
    let node = &cluster.lab.node;
    let most: u32 =
        node.run("sysctl", &["-n", "net.netfilter.nf_conntrack_max"]).unwrap().trim().parse().unwrap();
    let mut entries = String::new();
    for number in 0..most + 16 {
        let [_, a, b, c] = number.to_be_bytes();
        writeln!(
            entries,
            "-A -p udp -s 192.0.{b}.{c} -d 198.18.{a}.1 --sport 1000 --dport 2000 -u ASSURED,SEEN_REPLY -t 600"
        )
        .unwrap();
    }
    let file = cluster.manifests.path().with_extension("entries");
    fs::write(&file, entries).unwrap();
    // The last ones find no room.
    drop(node.run("conntrack", &["--load-file", file.to_str().unwrap()]));
    fs::remove_file(&file).unwrap();
    let count: u32 = node.run("conntrack", &["-C"]).unwrap().trim().parse().unwrap();
    assert!(count >= most, "{count} of {most} entries");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn cluster_dns_answers_pods_while_the_table_of_conntrack_is_full() {
    let cluster = Cluster::start(3, &[ALLOWED]);
    let ports = json!([{ "name": "dns", "protocol": "UDP", "port": 53 }, { "name": "dns-tcp", "port": 53 }]);
    let dns = Service::new("kube-dns", &json!({ "clusterIPs": [V4, V6], "ports": ports }));
    cluster.apply(&dns.patch(&json!({ "metadata": { "namespace": "kube-system" } })).endpoints([2]));
    let tracked = Service::new(
        "web",
        &json!({ "clusterIPs": [TRACKED], "ports": [{ "port": 53, "protocol": "UDP" }] }),
    );
    cluster.apply(&tracked.endpoints([3]));
    let pod = &cluster.lab.pods[0];
    fill_conntrack(&cluster);
    for vip in [V4, V6] {
        assert_eq!(pod.ask_udp(at(vip, 53)).unwrap().from, "pod-2");
        assert_eq!(pod.ask(at(vip, 53)).unwrap().from, "pod-2");
    }
    let tracked = ServiceAddress { protocol: Protocol::Udp, ip: TRACKED.parse().unwrap(), port: 53 };
    are_dropped(&[pod], &[tracked]);
}
