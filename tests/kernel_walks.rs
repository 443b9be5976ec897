//! Which way the packets of a connection take through the node.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on must stop"
)]

mod cluster;
mod walk;

use std::{
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use cluster::{Cluster, Service, V4, V6, at, here};
use ipvs::{Family, Protocol, ServiceAddress};
use serde_json::{Value, json};
use testkit::lab::{Host, Lab};
use walk::{Tracer, draw};

fn name(lab: &Lab, ip: IpAddr) -> String {
    let host = |host: &&Host| host.address(ip) == ip;
    let hosts = [&lab.client].into_iter().chain(&lab.pods);
    if let Some(host) = hosts.clone().find(host) {
        return host.name.clone();
    }
    if hosts.into_iter().any(|host| host.gateway(ip) == ip) { "node".into() } else { "VIP".into() }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn walks() {
    let cluster = Cluster::start(2, &[]);
    cluster.apply(
        &Service::new("web", &json!({"clusterIPs": [V4, V6], "ports": [{"port": 80}]})).endpoints([2]),
    );
    cluster.apply(
        &Service::new("self", &json!({"clusterIPs": ["10.96.0.11", "fd00:96::11"], "ports": [{"port": 80}]}))
            .endpoints([1]),
    );
    cluster.write_manifest("host", &json!({ "apiVersion": "v1", "kind": "List", "items": [
      {"apiVersion":"v1","kind":"Service","metadata":{"name":"host","namespace":"default"},"spec":{"clusterIP":"10.96.0.12","clusterIPs":["10.96.0.12","fd00:96::12"],"ipFamilies":["IPv4","IPv6"],"ports":[{"port":80}]}},
      {"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":"host-4","namespace":"default","labels":{"kubernetes.io/service-name":"host"}},"addressType":"IPv4","ports":[{"port":8080}],"endpoints":[{"addresses":["192.168.50.1"],"nodeName":"node","conditions":{"ready":true}}]},
      {"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":"host-6","namespace":"default","labels":{"kubernetes.io/service-name":"host"}},"addressType":"IPv6","ports":[{"port":8080}],"endpoints":[{"addresses":["fd00:50::1"],"nodeName":"node","conditions":{"ready":true}}]},
    ]}));
    let lab = &cluster.lab;
    let _listener = lab.node.inside(|| TcpListener::bind("[::]:8080").unwrap()).unwrap();
    cluster.ipvsadm("host", |t| t.contains("[fd00:50::1]:8080"));
    testkit::daemon::eventually("bound", || {
        let b = cluster.bound()?;
        anyhow::ensure!(b.len() == 6, "{b:?}");
        Ok(())
    })
    .unwrap();
    let tracer = Tracer::on(&lab.node);
    for (title, from, to4, to6, port) in [
        ("client, VIP", &lab.client, V4, V6, 80),
        ("pod, VIP", &lab.pods[0], V4, V6, 80),
        ("node, VIP", &lab.node, V4, V6, 80),
        ("client, host", &lab.client, "10.96.0.12", "fd00:96::12", 80),
        ("node, host", &lab.node, "10.96.0.12", "fd00:96::12", 80),
        ("hairpin", &lab.pods[0], "10.96.0.11", "fd00:96::11", 80),
        ("unserved", &lab.client, V4, V6, 81),
        ("unserved node", &lab.node, V4, V6, 81),
    ] {
        let mut texts = vec![];
        for ip in [to4, to6] {
            let to = at(ip, port);
            let answer =
                from.inside(move || TcpStream::connect_timeout(&to, Duration::from_secs(3))).unwrap();
            let s = tracer.sightings();
            texts.push(format!("{title}\n{}{:?}\n", draw(&s, &|ip| name(lab, ip)), answer.map(drop)));
        }
        println!("{}", texts[0]);
        if texts[0] != texts[1] {
            println!("DIFFERS {}", texts[1]);
        }
    }
}
