//! Real servers that leave, and those that come back: their weight and their connections.

use crate::common::{Running, active_connections, at, real, service, slice};
use ipvs::{
    Protocol::{Tcp, Udp},
    RealServer, VirtualServerId,
};
use service::{Change, Event};
use testkit::FakeKernel;

#[test]
fn a_tcp_endpoint_with_connections_drains_and_leaves_when_the_last_one_ends() {
    let running = Running::serving_web();
    let kernel = &running.kernel;
    let id = VirtualServerId::Address(at("10.96.0.10", Tcp));
    let connections = |count| active_connections(kernel, id, "10.244.0.2", count);
    connections(1);
    kernel.heal();
    running.tell(Change::Slices(Event::Apply(slice("web", Tcp, &["10.244.0.1"]))));
    running.settled();
    assert!(kernel.writes().starts_with("edit real server TCP 10.96.0.10:80 -> 10.244.0.2:8080 weight 0\n"));
    assert_eq!(running.handle.status().unwrap().draining, 1);

    kernel.heal();
    running.handle.resync().unwrap();
    assert_eq!(kernel.writes(), "", "it waits");
    connections(0);
    running.handle.resync().unwrap();
    assert_eq!(kernel.writes(), "delete real server TCP 10.96.0.10:80 -> 10.244.0.2:8080\n");
    assert_eq!(running.handle.status().unwrap().draining, 0);
}

#[test]
fn an_endpoint_that_returns_while_it_drains_gets_its_weight_back_in_place() {
    let running = Running::serving_web();
    let kernel = &running.kernel;
    let id = VirtualServerId::Address(at("10.96.0.10", Tcp));
    let both = slice("web", Tcp, &["10.244.0.1", "10.244.0.2"]);
    active_connections(kernel, id, "10.244.0.2", 1);
    running.tell(Change::Slices(Event::Apply(slice("web", Tcp, &["10.244.0.1"]))));
    running.settled();
    kernel.heal();
    running.tell(Change::Slices(Event::Apply(both)));
    running.settled();
    let writes = kernel.writes();
    assert!(writes.contains("edit real server TCP 10.96.0.10:80 -> 10.244.0.2:8080 weight 1\n"), "{writes}");
    assert!(!writes.contains("delete real server"), "{writes}");
}

#[test]
fn a_udp_endpoint_leaves_at_once_even_with_connections() {
    let running = Running::on(&FakeKernel::new());
    running.lists(
        vec![service("dns", "10.96.0.53", Udp)],
        vec![slice("dns", Udp, &["10.244.0.1", "10.244.0.2"])],
    );
    let id = VirtualServerId::Address(at("10.96.0.53", Udp));
    active_connections(&running.kernel, id, "10.244.0.2", 9);
    running.kernel.heal();
    running.tell(Change::Slices(Event::Apply(slice("dns", Udp, &["10.244.0.1"]))));
    running.settled();
    assert!(running.kernel.writes().contains("delete real server UDP 10.96.0.53:80 -> 10.244.0.2:8080\n"));
}

#[test]
fn endpoint_draining_over_a_restart_leaves_when_its_last_connection_ends() {
    let first = Running::serving_web();
    let kernel = first.kernel.clone();
    drop(first);
    let id = VirtualServerId::Address(at("10.96.0.10", Tcp));
    let connections = |count| {
        let mut state = kernel.state();
        let server = state.virtual_servers.get_mut(&id).unwrap().1.get_mut(&real("10.244.0.2")).unwrap();
        (server.config.weight, server.inactive_connections) = (0, count);
    };
    connections(1);
    kernel.heal();
    let second = Running::on(&kernel);
    second.lists(vec![service("web", "10.96.0.10", Tcp)], vec![slice("web", Tcp, &["10.244.0.1"])]);
    assert_eq!(second.handle.status().unwrap().draining, 1);
    assert_eq!(kernel.writes(), "delete element hairpin TCP 10.244.0.2:8080\n");
    connections(0);
    kernel.heal();
    // Draining real servers are looked at between periods, here by request.
    second.handle.resync().unwrap();
    assert_eq!(kernel.writes(), "delete real server TCP 10.96.0.10:80 -> 10.244.0.2:8080\n");
}

#[test]
fn a_removed_tcp_endpoint_without_connections_leaves_at_once_by_way_of_weight_0() {
    let running = Running::serving_web();
    running.kernel.heal();
    running.tell(Change::Slices(Event::Apply(slice("web", Tcp, &["10.244.0.1"]))));
    running.settled();
    // Between reading the connections and removing the real server no client can connect to it any more.
    assert_eq!(
        running.kernel.writes(),
        "\
edit real server TCP 10.96.0.10:80 -> 10.244.0.2:8080 weight 0
delete element hairpin TCP 10.244.0.2:8080
delete real server TCP 10.96.0.10:80 -> 10.244.0.2:8080
"
    );
}

#[test]
fn a_real_server_at_weight_0_after_a_restart_gets_its_weight_back() {
    let kernel = FakeKernel::new();
    let running = Running::on(&kernel);
    running.lists(vec![service("web", "10.96.0.10", Tcp)], vec![slice("web", Tcp, &["10.244.0.1"])]);
    drop(running);
    let id = VirtualServerId::Address(at("10.96.0.10", Tcp));
    let drained = RealServer::masquerade("10.244.0.1".parse().unwrap(), 8080).weight(0);
    kernel.state().virtual_servers.get_mut(&id).unwrap().1.get_mut(&drained.address).unwrap().config =
        drained;
    kernel.heal();
    let running = Running::on(&kernel);
    running.lists(vec![service("web", "10.96.0.10", Tcp)], vec![slice("web", Tcp, &["10.244.0.1"])]);
    assert_eq!(kernel.writes(), "edit real server TCP 10.96.0.10:80 -> 10.244.0.1:8080 weight 1\n");
}
