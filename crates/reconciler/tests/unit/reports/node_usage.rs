//! What Services use of the node itself, as the checks of the node receive it.

use std::{collections::BTreeSet, num::NonZero, sync::mpsc::channel, thread, time::Duration};

use crate::common::{Running, endpoint, service, slice};
use ipvs::Protocol::Tcp;
use reconciler::NodeUsage;
use service::{Change, Endpoint, EndpointSlice, Event, Service, ServicePort};
use testkit::FakeKernel;

/// A Service with a NodePort, and two endpoints, of which one is on another node.
fn exposed() -> (Service, EndpointSlice) {
    let mut web = service("web", "10.96.0.10", Tcp);
    web.ports = vec![ServicePort { node_port: NonZero::new(30_080), ..web.ports.remove(0) }];
    let elsewhere = Endpoint { node: Some("another".into()), ..endpoint("10.244.2.2") };
    let endpoints = vec![endpoint("10.244.1.2"), elsewhere];
    (web, EndpointSlice { endpoints, ..slice("web", Tcp, &[]) })
}

fn expected() -> NodeUsage {
    NodeUsage {
        node_ports: BTreeSet::from([30_080]),
        local_endpoints: BTreeSet::from(["10.244.1.2".parse().unwrap()]),
        dns: BTreeSet::new(),
        direct_return: false,
        ejects: false,
    }
}

#[test]
fn the_cluster_ips_with_port_53_are_those_of_dns() {
    let running = Running::on(&FakeKernel::new());
    let (mut dns, web) = (service("kube-dns", "10.96.0.10", Tcp), service("web", "10.96.0.1", Tcp));
    dns.ports = vec![ServicePort { port: 53, ..dns.ports.remove(0) }];
    running.lists(vec![dns, web], Vec::new());
    assert_eq!(running.handle.node_usage().unwrap().dns, BTreeSet::from(["10.96.0.10".parse().unwrap()]));
}

#[test]
fn the_node_ports_that_are_served_and_the_real_servers_on_this_node_are_in_use() {
    let kernel = FakeKernel::new();
    kernel.state().dummy_interface.node_addresses = BTreeSet::from(["192.0.2.1".parse().unwrap()]);
    let running = Running::on(&kernel);
    let (web, slice) = exposed();
    running.lists(vec![web.clone()], vec![slice]);
    assert_eq!(running.handle.node_usage(), Ok(expected()));
    running.tell(Change::Services(Event::Delete(web.name)));
    assert_eq!(running.handle.node_usage(), Ok(NodeUsage::default()));
}

#[test]
fn who_asks_before_the_first_sync_is_answered_after_it() {
    let kernel = FakeKernel::new();
    kernel.state().dummy_interface.node_addresses = BTreeSet::from(["192.0.2.1".parse().unwrap()]);
    let running = Running::on(&kernel);
    let (answer, answered) = channel();
    let handle = running.handle.clone();
    let asking = thread::spawn(move || answer.send(handle.node_usage()).unwrap());
    assert!(answered.recv_timeout(Duration::from_millis(100)).is_err(), "nothing is known yet");
    let (web, slice) = exposed();
    running.lists(vec![web], vec![slice]);
    assert_eq!(answered.recv(), Ok(Ok(expected())));
    asking.join().unwrap();
}

#[test]
fn caller_waiting_for_the_first_sync_is_released_when_the_writer_stops() {
    let running = Running::on(&FakeKernel::new());
    let handle = running.handle.clone();
    let asking = thread::spawn(move || handle.node_usage());
    drop(running);
    assert!(asking.join().unwrap().is_err());
}
