//! Addresses that belong to something else: another node, the API server, this node. Only the Services' ports are taken.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use anyhow::ensure;
use serde_json::{Value, json};
use testkit::{
    daemon::{Daemon, eventually},
    lab::Host,
};

use crate::support::cluster::{Cluster, NO_PERIOD, Service, V4, V6, at, is_refused, tcp};

/// This node's address, and that of the other one.
const NODE: [&str; 2] = ["192.168.50.1", "fd00:50::1"];
const OTHER: [&str; 2] = ["192.168.70.2", "fd00:70::2"];
/// A port of a node's own program.
const KUBELET: u16 = 10_250;

fn node(name: &str, addresses: &[&str]) -> Value {
    let address = |ip: &&str| json!({ "type": "InternalIP", "address": ip });
    let addresses: Vec<_> = addresses.iter().map(address).collect();
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name }, "status": { "addresses": addresses } })
}

/// A program on a host that answers each connection with the host's name.
fn listen(host: &Host, port: u16) {
    let name = host.name.clone();
    let begun = host
        .inside(move || {
            let listener = TcpListener::bind(("::", port))?;
            thread::spawn(move || {
                for mut connection in listener.incoming().flatten() {
                    let _ = connection.write_all(name.as_bytes());
                }
            });
            std::io::Result::Ok(())
        })
        .unwrap();
    begun.unwrap();
}

/// A lab with another node, at which a program listens on this port.
fn with_another_node(port: u16) -> (Cluster, Host) {
    let mut cluster = Cluster::without_daemon(1);
    let other = cluster.lab.add_pod_on_another_node("eth1", "other", 8080).unwrap();
    listen(&other, port);
    (cluster, other)
}

/// What answers a host there.
fn asked(host: &Host, address: &str, port: u16) -> String {
    let at: SocketAddr = at(address, port);
    let answer = host.inside(move || {
        let mut connection = TcpStream::connect_timeout(&at, Duration::from_secs(3))?;
        connection.set_read_timeout(Some(Duration::from_secs(3)))?;
        let mut text = String::new();
        connection.read_to_string(&mut text)?;
        std::io::Result::Ok(text)
    });
    answer.unwrap().unwrap_or_else(|error| error.to_string())
}

/// Waits until an address has a virtual server with real servers, wherever the address is.
fn has_a_real_server(cluster: &Cluster, address: ipvs::ServiceAddress) {
    cluster.shows(&format!("{address} has a real server"), |table| {
        table.iter().any(|(at, server)| *at == address && !server.weights().is_empty())
    });
}

/// A load balancer as k3s' ServiceLB makes it: it has the addresses of all nodes.
fn at_all_nodes() -> Service {
    let ingress: Vec<_> = NODE.iter().chain(&OTHER).map(|ip| json!({ "ip": ip })).collect();
    Service::new(
        "traefik",
        &json!({ "type": "LoadBalancer", "clusterIPs": [V4, V6], "ports": [{ "port": 80 }] }),
    )
    .patch(&json!({ "status": { "loadBalancer": { "ingress": ingress } } }))
    .endpoints([1])
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_load_balancer_at_all_node_addresses_takes_its_ports_there_and_nothing_else() {
    let (mut cluster, other) = with_another_node(KUBELET);
    cluster.write_manifest("node", &node("node", &NODE));
    cluster.write_manifest("other", &node("other", &OTHER));
    cluster.write(&at_all_nodes());
    for binding in ["address", "route"] {
        cluster.restart(&[NO_PERIOD, &format!("--vip-binding={binding}")]);
        for address in NODE.into_iter().chain(OTHER) {
            has_a_real_server(&cluster, tcp(address, 80));
        }
        let (node, pod, client) = (&cluster.lab.node, &cluster.lab.pods[0], &cluster.lab.client);
        for address in OTHER {
            for host in [node, pod] {
                assert_eq!(asked(host, address, KUBELET), other.name, "{} by {binding}", host.name);
            }
            assert_eq!(
                node.ask(at(address, 80)).unwrap().from,
                "pod-1",
                "what the node sends is served here"
            );
        }
        for address in NODE {
            assert_eq!(client.ask(at(address, 80)).unwrap().from, "pod-1", "{address}");
        }
    }
    let status = cluster.daemon().ask(&cluster.lab.node, "status").unwrap();
    let unbound = "not bound:       2 external addresses that another host has: 192.168.70.2, fd00:70::2";
    assert!(status.contains(unbound), "{status}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn an_address_that_another_node_gets_is_unbound_and_bound_again_when_it_goes() {
    let (mut cluster, other) = with_another_node(KUBELET);
    // A gateway is never bound.
    let pod = &cluster.lab.pods[1];
    cluster.lab.node.ip(&format!("route del {}/32\nroute del {}/128", pod.ipv4, pod.ipv6)).unwrap();
    cluster.write(&at_all_nodes());
    cluster.write_manifest("node", &node("node", &NODE));
    cluster.restart(&[NO_PERIOD]);
    for vip in OTHER {
        cluster.is_bound(vip.parse().unwrap(), true);
    }
    cluster.write_manifest("other", &node("other", &OTHER));
    for vip in OTHER {
        cluster.is_bound(vip.parse().unwrap(), false);
        assert_eq!(asked(&cluster.lab.node, vip, KUBELET), other.name);
    }
    std::fs::remove_file(cluster.manifests.path().join("other.json")).unwrap();
    for vip in OTHER {
        cluster.is_bound(vip.parse().unwrap(), true);
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn an_external_ip_of_the_api_server_is_refused_and_where_allowed_hides_no_port() {
    let (mut cluster, other) = with_another_node(6443);
    let kubernetes =
        Service::new("kubernetes", &json!({ "clusterIPs": ["10.96.0.1"], "ports": [{ "port": 443 }] }));
    cluster.write(&kubernetes);
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": { "name": "api", "namespace": "default", "labels": { "kubernetes.io/service-name": "kubernetes" } },
        "addressType": "IPv4",
        "ports": [{ "port": 6443, "protocol": "TCP" }],
        "endpoints": [{ "addresses": [OTHER[0]] }],
    });
    cluster.write_manifest("api", &slice);
    let thief = Service::new(
        "thief",
        &json!({ "clusterIPs": [V4], "externalIPs": [OTHER[0]],
        "ports": [{ "name": "http", "port": 80 }, { "name": "api", "port": 6443 }] }),
    )
    .endpoints([1]);
    cluster.write(&thief);
    cluster.restart(&[NO_PERIOD]);
    cluster.serves(tcp(V4, 80), &[1]);
    let node = &cluster.lab.node;
    cluster.is_bound(OTHER[0].parse().unwrap(), false);
    let refused = cluster.daemon().ask(node, "status").unwrap();
    assert!(refused.contains("192.168.70.2 is not served: it is the API server's"), "{refused}");

    cluster.restart(&[NO_PERIOD, "--external-ip-policy=192.168.70.0/24"]);
    has_a_real_server(&cluster, tcp(OTHER[0], 80));
    let node = &cluster.lab.node;
    for host in [node, &cluster.lab.pods[0]] {
        assert_eq!(asked(host, OTHER[0], 6443), other.name, "{} asked the API server", host.name);
    }
    let status = cluster.daemon().ask(node, "status").unwrap();
    assert!(status.contains("192.168.70.2:6443 is not served: the API server listens there"), "{status}");
}

/// Bound, it would be this node's own in ARP too: the whole network's way out.
#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_gateway_is_refused_as_an_external_ip_and_served_unbound_as_a_load_balancer() {
    let (mut cluster, other) = with_another_node(KUBELET);
    let routes = format!(
        "route add default nexthop via {0} weight 1\nroute add 172.20.0.0/24 via {0} table 7",
        OTHER[0]
    );
    cluster.lab.node.ip(&routes).unwrap();
    let thief = Service::new(
        "thief",
        &json!({ "clusterIPs": [V4], "externalIPs": [OTHER[0]], "ports": [{ "port": 80 }] }),
    );
    cluster.write(&thief.endpoints([1]));
    cluster.restart(&[NO_PERIOD]);
    cluster.serves(tcp(V4, 80), &[1]);
    cluster.is_bound(OTHER[0].parse().unwrap(), false);
    let status = cluster.daemon().ask(&cluster.lab.node, "status").unwrap();
    assert!(status.contains("192.168.70.2 is not served: it is a gateway of this node"), "{status}");

    let balancer = Service::new(
        "router",
        &json!({ "type": "LoadBalancer", "clusterIPs": ["10.96.0.2"], "ports": [{ "port": 80 }] }),
    )
    .patch(&json!({ "status": { "loadBalancer": { "ingress": [{ "ip": OTHER[0] }] } } }));
    cluster.apply(&balancer.endpoints([1]));
    has_a_real_server(&cluster, tcp(OTHER[0], 80));
    cluster.is_bound(OTHER[0].parse().unwrap(), false);
    assert_eq!(asked(&cluster.lab.node, OTHER[0], KUBELET), other.name);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_vip_left_over_that_hides_the_api_server_is_unbound_before_the_first_request() {
    let mut cluster = Cluster::without_daemon(1);
    let other = cluster.lab.add_pod_on_another_node("eth1", "other", 8080).unwrap();
    let node = &cluster.lab.node;
    let requests = other
        .inside(|| {
            let listener = TcpListener::bind(("0.0.0.0", 8001))?;
            listener.set_nonblocking(true)?;
            std::io::Result::Ok(listener)
        })
        .unwrap()
        .unwrap();
    // As another program, or an earlier version, may leave it.
    node.ip("link add kube-ipvs0 type dummy\naddr add 192.168.70.2/32 dev kube-ipvs0\naddr add 10.96.0.77/32 dev kube-ipvs0")
        .unwrap();
    let daemon =
        Daemon::start(node, &["--master=http://192.168.70.2:8001", "--hostname-override=node"]).unwrap();
    eventually("the API server is asked", || {
        let (mut connection, _) = requests.accept()?;
        connection.set_read_timeout(Some(Duration::from_secs(3)))?;
        let mut start = [0; 4];
        connection.read_exact(&mut start)?;
        ensure!(start == *b"GET ", "{start:?}");
        Ok(())
    })
    .unwrap();
    cluster.is_bound("10.96.0.77".parse().unwrap(), true);
    cluster.is_bound("192.168.70.2".parse().unwrap(), false);
    assert!(daemon.log().contains("it hid the API server"), "{}", daemon.log());
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_cluster_ip_that_is_a_node_address_takes_its_ports_there_and_nothing_else() {
    let cluster = Cluster::without_daemon(1);
    listen(&cluster.lab.node, KUBELET);
    cluster.write_manifest("node", &node("node", &NODE));
    let mut cluster = cluster;
    cluster.write(
        &Service::new("web", &json!({ "clusterIPs": NODE, "ports": [{ "port": 80 }] })).endpoints([1]),
    );
    cluster.restart(&[NO_PERIOD]);
    for address in NODE {
        cluster.serves(tcp(address, 80), &[1]);
        cluster.is_bound(address.parse().unwrap(), false);
        for host in [&cluster.lab.client, &cluster.lab.pods[0]] {
            assert_eq!(host.ask(at(address, 80)).unwrap().from, "pod-1", "{} asked {address}", host.name);
            assert_eq!(asked(host, address, KUBELET), cluster.lab.node.name, "{} asked {address}", host.name);
        }
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn cluster_ips_that_another_proxy_has_bound_serve_no_node_port() {
    let mut cluster = Cluster::without_daemon(1);
    let node_ip = NODE[0];
    cluster
        .lab
        .node
        .ip("link add kube-dummy-if type dummy\nlink set kube-dummy-if up\naddr add 10.96.0.10/32 dev kube-dummy-if")
        .unwrap();
    cluster.write_manifest("node", &node("node", &NODE));
    let ports = json!([{ "port": 80, "nodePort": 30_080 }]);
    cluster.write(
        &Service::new("web", &json!({ "type": "NodePort", "clusterIPs": [V4], "ports": ports }))
            .endpoints([1]),
    );
    cluster.restart(&[NO_PERIOD]);
    cluster.serves(tcp(node_ip, 30_080), &[1]);
    cluster.is_bound(V4.parse().unwrap(), true);
    let shown = cluster.lab.node.run("ipvsadm", &["-Ln"]).unwrap();
    assert!(!shown.contains("10.96.0.10:30080"), "{shown}");
    is_refused(&cluster.lab.pods[0], tcp(V4, 30_080));
    // The other proxy's device goes at last.
    cluster.lab.node.ip("link del kube-dummy-if").unwrap();
    assert_eq!(cluster.lab.client.ask(at(node_ip, 30_080)).unwrap().from, "pod-1");
    assert_eq!(cluster.lab.pods[0].ask(at(V4, 80)).unwrap().from, "pod-1");
}
