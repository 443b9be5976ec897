//! The node's own addresses: NodePorts are served there, and VIPs of other Services are not bound.

use std::{collections::BTreeSet, net::IpAddr};

use crate::common::{Running, service, slice};
use dummy_interface::Changed;
use ipvs::{
    Protocol::{Tcp, Udp},
    RealServerAddress, ServiceAddress, VirtualServerId,
};
use netfilter::conntrack::StaleFlows;
use netlink::Errno;
use reconciler::{SyncState, Trigger};
use service::{Change, Event, ObjectName, Service, ServiceKind};
use testkit::{FakeKernel, fake_kernel::State};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A Service at port 30080 of every node.
fn node_port() -> Service {
    let mut service = service("web", "10.96.0.10", Tcp);
    service.kind = ServiceKind::NodePort;
    service.ports.iter_mut().for_each(|port| port.node_port = 30080.try_into().ok());
    service
}

/// A Service of this name with an external address beside its ClusterIP.
fn external(name: &str, cluster_ip: &str, port: u16) -> Service {
    let mut service = service(name, cluster_ip, Tcp);
    service.external_ips = vec![ip("203.0.113.7")];
    service.ports.iter_mut().for_each(|of| of.port = port);
    service
}

/// Gives the node these addresses, and lets the kernel report it.
fn move_to(running: &Running, addresses: &[&str]) {
    running.kernel.state().dummy_interface.node_addresses = addresses.iter().map(|text| ip(text)).collect();
    running.handle.kernel_changed(Changed { node_addresses: true, ..Changed::default() });
}

/// The addresses at which port 30080 is served.
fn node_ports(kernel: &State) -> BTreeSet<IpAddr> {
    let at = |id: &VirtualServerId| match id {
        VirtualServerId::Address(ServiceAddress { ip, port: 30080, .. }) => Some(*ip),
        _ => None,
    };
    kernel.virtual_servers.keys().filter_map(at).collect()
}

fn ips(texts: &[&str]) -> BTreeSet<IpAddr> {
    texts.iter().map(|text| ip(text)).collect()
}

/// The Service with the NodePort, and one endpoint, on a node with these addresses.
fn node_port_at(kernel: &FakeKernel, addresses: &[&str]) -> Running {
    kernel.state().dummy_interface.node_addresses = ips(addresses);
    let running = Running::on(kernel);
    running.lists(vec![node_port()], vec![slice("web", Tcp, &["10.244.0.1"])]);
    running
}

#[test]
fn node_ports_follow_the_nodes_addresses_at_once_from_the_first_sync_on() {
    let kernel = FakeKernel::new();
    let running = node_port_at(&kernel, &["192.0.2.1", "2001:db8::1"]);
    // The Service has a ClusterIP of one family only.
    assert_eq!(node_ports(&kernel.state()), ips(&["192.0.2.1"]));
    assert_eq!(running.handle.status().unwrap().last_sync.unwrap().report.trigger, Trigger::Start);
    assert!(!kernel.state().is_bound(ip("192.0.2.1")));

    kernel.heal();
    move_to(&running, &["192.0.2.1", "192.0.2.2", "2001:db8::1"]);
    running.kernel_where(|state| node_ports(state) == ips(&["192.0.2.1", "192.0.2.2"]));
    running.settled();
    let new = VirtualServerId::Address(ServiceAddress { protocol: Tcp, ip: ip("192.0.2.2"), port: 30080 });
    assert_eq!(kernel.state().virtual_servers[&new].1.len(), 1);
    let report = running.handle.status().unwrap().last_sync.unwrap().report;
    assert_eq!(
        (report.trigger, report.full, report.repairs.as_slice()),
        (Trigger::NodeAddresses, false, &[][..])
    );

    let calls = kernel.state().calls;
    move_to(&running, &["192.0.2.2"]);
    running.kernel_where(|state| state.calls > calls);
    running.settled();
    assert_eq!(node_ports(&kernel.state()), ips(&["192.0.2.1", "192.0.2.2"]), "one that went may come again");
    assert_eq!(kernel.state().full_reads, 0);
}

#[test]
fn address_first_found_by_a_comparison_waits_for_the_next_sync() {
    let kernel = FakeKernel::new();
    let running = node_port_at(&kernel, &[]);
    assert_eq!(running.handle.status().unwrap().sync_state, SyncState::Synced);
    kernel.heal();
    kernel.state().dummy_interface.node_addresses = ips(&["192.0.2.1"]);
    assert!(!running.handle.compare().unwrap().is_empty());
    assert_eq!(running.handle.status().unwrap().sync_state, SyncState::Behind);
    move_to(&running, &["192.0.2.1"]);
    running.status_where(|status| status.sync_state == SyncState::Synced);
}

#[test]
fn node_without_an_address_for_node_ports_is_a_problem_of_the_status() {
    let kernel = FakeKernel::new();
    let running = node_port_at(&kernel, &[]);
    assert_eq!(
        running.handle.status().unwrap().problems,
        ["no NodePort is served: this node has no address, or none that --nodeport-addresses selects"]
    );
    move_to(&running, &["192.0.2.1"]);
    running.kernel_where(|state| node_ports(state) == ips(&["192.0.2.1"]));
    assert_eq!(running.handle.status().unwrap().problems, [""; 0]);
}

#[test]
fn addresses_that_are_the_same_as_before_cause_no_writes() {
    let kernel = FakeKernel::new();
    let running = node_port_at(&kernel, &["192.0.2.1"]);
    kernel.heal();
    move_to(&running, &["192.0.2.1"]);
    running.kernel_where(|state| state.calls > 0);
    running.settled();
    assert_eq!(kernel.writes(), "");
    assert_eq!(kernel.state().calls, 1, "the addresses are read, and nothing else");
}

#[test]
fn external_address_of_the_node_is_served_and_bound_when_the_node_loses_it() {
    let kernel = FakeKernel::new();
    kernel.state().dummy_interface.node_addresses = ips(&["192.0.2.1", "203.0.113.7"]);
    let running = Running::on(&kernel);
    running.lists(vec![external("web", "10.96.0.10", 80)], vec![slice("web", Tcp, &["10.244.0.1"])]);
    let served = VirtualServerId::Address(ServiceAddress { protocol: Tcp, ip: ip("203.0.113.7"), port: 80 });
    assert_eq!(kernel.state().virtual_servers[&served].1.len(), 1);
    assert_eq!(kernel.state().dummy_interface.bound, ips(&["10.96.0.10"]));

    kernel.heal();
    move_to(&running, &["192.0.2.1"]);
    running.kernel_where(|state| state.is_bound(ip("203.0.113.7")));
    move_to(&running, &["192.0.2.1", "203.0.113.7"]);
    running.kernel_where(|state| !state.is_bound(ip("203.0.113.7")));
    running.settled();
    assert_eq!(
        kernel.writes(),
        "\
add element vips 203.0.113.7
bind 203.0.113.7
unbind 203.0.113.7
delete element vips 203.0.113.7
"
    );
    assert_eq!(kernel.state().virtual_servers[&served].1.len(), 1);
}

#[test]
fn addresses_that_could_not_be_read_are_read_by_the_retry() {
    let kernel = FakeKernel::new();
    let running = node_port_at(&kernel, &["192.0.2.1"]);
    kernel.fail_call(0, Errno::ENOBUFS);
    move_to(&running, &["192.0.2.2"]);
    running.kernel_where(|state| node_ports(state).contains(&ip("192.0.2.2")));
}

#[test]
fn for_an_address_that_comes_back_nothing_waits() {
    let kernel = FakeKernel::new();
    let running = node_port_at(&kernel, &["192.0.2.1"]);
    for addresses in [&[][..], &["192.0.2.1"]] {
        kernel.state().dummy_interface.node_addresses = ips(addresses);
        assert!(running.handle.compare().unwrap().is_empty());
        assert_eq!(running.handle.status().unwrap().sync_state, SyncState::Synced, "{addresses:?}");
    }
}

/// A Service by UDP at port 30080 of a node that has these addresses, and the reconciler that serves it. The flows that
/// were handed over when it came into being are forgotten.
fn udp_at(kernel: &FakeKernel, addresses: &[&str]) -> Running {
    kernel.state().dummy_interface.node_addresses = ips(addresses);
    let running = Running::on(kernel);
    let mut dns = service("dns", "10.96.0.53", Udp);
    dns.ports.iter_mut().for_each(|port| port.node_port = 30080.try_into().ok());
    running.lists(vec![dns], vec![slice("dns", Udp, &["10.244.0.1"])]);
    running.stale_flows();
    running
}

/// The flows to port 30080 of this address, but for those that the real server answers.
fn flows_to(address: &str) -> StaleFlows {
    let to = ServiceAddress { protocol: Udp, ip: ip(address), port: 30080 };
    [(to, BTreeSet::from([RealServerAddress { ip: ip("10.244.0.1"), port: 8080 }]))].into_iter().collect()
}

#[test]
fn an_address_that_comes_back_takes_over_the_udp_flows_of_the_time_in_between() {
    let kernel = FakeKernel::new();
    let running = udp_at(&kernel, &["192.0.2.1", "192.0.2.2"]);
    kernel.heal();
    move_to(&running, &["192.0.2.2"]);
    running.kernel_where(|state| state.calls == 1);
    assert_eq!(running.stale_flows(), [], "it is away");
    move_to(&running, &["192.0.2.1", "192.0.2.2"]);
    running.kernel_where(|state| state.calls == 2);
    assert_eq!(running.stale_flows(), [flows_to("192.0.2.1")]);
    assert_eq!(kernel.writes(), "", "its virtual server has stayed");
    move_to(&running, &["192.0.2.1", "192.0.2.2"]);
    running.kernel_where(|state| state.calls == 3);
    assert_eq!(running.stale_flows(), [], "it has not gone again");
}

#[test]
fn so_does_one_of_which_a_comparison_finds_first_that_it_is_back() {
    let kernel = FakeKernel::new();
    let running = udp_at(&kernel, &["192.0.2.1"]);
    kernel.state().dummy_interface.node_addresses.clear();
    running.handle.compare().unwrap();
    kernel.state().dummy_interface.node_addresses = ips(&["192.0.2.1"]);
    running.handle.compare().unwrap();
    assert_eq!(running.stale_flows.try_iter().count(), 0, "they wait for the next sync");
    kernel.heal();
    move_to(&running, &["192.0.2.1"]);
    running.kernel_where(|state| state.calls == 1);
    assert_eq!(running.stale_flows(), [flows_to("192.0.2.1")]);
}

#[test]
fn an_address_that_two_services_share_stays_bound_until_the_last_one_goes() {
    let kernel = FakeKernel::new();
    let running = Running::on(&kernel);
    running.lists(vec![external("a", "10.96.0.10", 80), external("b", "10.96.0.11", 81)], vec![]);
    let shared = ip("203.0.113.7");
    running.tell(Change::Services(Event::Delete(ObjectName::new("default", "a"))));
    running.settled();
    assert!(kernel.state().is_bound(shared) && !kernel.state().is_bound(ip("10.96.0.10")));
    assert!(!kernel.writes().contains("unbind 203.0.113.7"), "not even for a moment");
    running.tell(Change::Services(Event::Delete(ObjectName::new("default", "b"))));
    running.settled();
    assert!(!kernel.state().is_bound(shared));
}
