//! Which UDP flows are deleted from conntrack after a sync. `tests/kernel/services/udp.rs` shows what conntrack
//! does then.

use std::{collections::BTreeSet, net::SocketAddr};

use crate::common::{Running, service, slice};
use ipvs::{
    Protocol::{self, Sctp, Tcp, Udp},
    RealServerAddress, ServiceAddress,
};
use netfilter::conntrack::{Flow, StaleFlows};
use netlink::Errno;
use service::{Change, Event, ObjectName, Service};
use testkit::FakeKernel;

const DNS: &str = "10.96.0.53:80";
const FIRST: &str = "10.244.0.1:8080";
const SECOND: &str = "10.244.0.2:8080";

/// The flows to an address, but for those that these real servers answer.
fn flows((to, right): &(&str, &[&str])) -> (ServiceAddress, BTreeSet<RealServerAddress>) {
    let at = |text: &str| text.parse::<SocketAddr>().unwrap();
    let server = |text: &&str| RealServerAddress { ip: at(text).ip(), port: at(text).port() };
    let to = ServiceAddress { protocol: Udp, ip: at(to).ip(), port: at(to).port() };
    (to, right.iter().map(server).collect())
}

/// Makes sure that exactly these flows were handed over since the last time, together.
#[track_caller]
fn handed_over(running: &Running, stale: &[(&str, &[&str])]) {
    let expected =
        Vec::from_iter((!stale.is_empty()).then(|| stale.iter().map(flows).collect::<StaleFlows>()));
    assert_eq!(running.stale_flows(), expected);
}

/// A Service of this protocol with these endpoints, seen by a reconciler that knows of nothing else.
fn serving(kernel: &FakeKernel, protocol: Protocol, endpoints: &[&str]) -> Running {
    let running = Running::on(kernel);
    running.lists(vec![service("dns", "10.96.0.53", protocol)], vec![slice("dns", protocol, endpoints)]);
    running
}

/// A Service that is served; the flows that were handed over when it came into being are forgotten.
fn served(kernel: &FakeKernel, protocol: Protocol, endpoints: &[&str]) -> Running {
    let running = serving(kernel, protocol, endpoints);
    running.stale_flows();
    running
}

#[test]
fn only_the_flows_to_a_removed_endpoint_are_forgotten() {
    let running = served(&FakeKernel::new(), Udp, &["10.244.0.1", "10.244.0.2"]);
    running.tell(Change::Slices(Event::Apply(slice("dns", Udp, &["10.244.0.2"]))));
    handed_over(&running, &[(DNS, &[SECOND])]);
    running.handle.resync().unwrap();
    handed_over(&running, &[]);
}

#[test]
fn so_they_are_at_every_address_of_the_service() {
    let kernel = FakeKernel::new();
    kernel.state().dummy_interface.node_addresses.insert("192.0.2.1".parse().unwrap());
    let running = Running::on(&kernel);
    let mut dns = Service {
        external_ips: vec!["203.0.113.7".parse().unwrap()],
        load_balancer_ips: vec!["198.51.100.7".parse().unwrap()],
        ..service("dns", "10.96.0.53", Udp)
    };
    dns.ports.iter_mut().for_each(|port| port.node_port = 30053.try_into().ok());
    running.lists(vec![dns], vec![slice("dns", Udp, &["10.244.0.1", "10.244.0.2"])]);
    running.stale_flows();
    running.tell(Change::Slices(Event::Apply(slice("dns", Udp, &["10.244.0.2"]))));
    let addresses = [DNS, "203.0.113.7:80", "198.51.100.7:80", "192.0.2.1:30053"];
    handed_over(&running, &addresses.map(|to| (to, &[SECOND][..])));
}

#[test]
fn the_last_endpoint_takes_its_flows_along_too() {
    let running = served(&FakeKernel::new(), Udp, &["10.244.0.1"]);
    running.tell(Change::Slices(Event::Apply(slice("dns", Udp, &[]))));
    handed_over(&running, &[(DNS, &[])]);
}

#[test]
fn a_deleted_service_takes_the_flows_to_all_its_endpoints_along() {
    let running = served(&FakeKernel::new(), Udp, &["10.244.0.1", "10.244.0.2"]);
    running.tell(Change::Services(Event::Delete(ObjectName::new("default", "dns"))));
    handed_over(&running, &[(DNS, &[])]);
}

#[test]
fn new_service_drops_flows_that_are_untranslated_or_translated_elsewhere() {
    let running = served(&FakeKernel::new(), Udp, &["10.244.0.1"]);
    let new = vec![service("dns", "10.96.0.53", Udp), service("ntp", "10.96.0.123", Udp)];
    // The slice waits for its Service, so one sync has both.
    running.tell(Change::Slices(Event::Apply(slice("ntp", Udp, &["10.244.0.2"]))));
    running.tell(Change::Services(Event::Replace(new)));
    let mut handed = StaleFlows::default();
    running.stale_flows().into_iter().for_each(|flows| handed.merge(flows));
    assert_eq!(handed.addresses().count(), 1);
    assert!(!handed.contains(&Flow {
        to: flows(&("10.96.0.123:80", &[])).0,
        answered_by: RealServerAddress { ip: [10, 244, 0, 2].into(), port: 8080 },
        masqueraded: false,
    }));
}

/// All flows to an address but those that these answer and that are masqueraded.
fn unless_masqueraded(to: &str, right: &[&str]) -> StaleFlows {
    StaleFlows::unless_masqueraded([flows(&(to, right))])
}

#[test]
fn new_table_drops_flows_that_began_without_masquerade() {
    let kernel = FakeKernel::new();
    let running = serving(&kernel, Udp, &["10.244.0.1"]);
    assert_eq!(running.stale_flows(), [unless_masqueraded(DNS, &[FIRST])]);
    // It serves now: another endpoint makes no flow stale.
    running.tell(Change::Slices(Event::Apply(slice("dns", Udp, &["10.244.0.1", "10.244.0.2"]))));
    handed_over(&running, &[]);
    // Another program deletes the table: what is masqueraded already goes on.
    kernel.state().tables.clear();
    running.handle.resync().unwrap();
    assert_eq!(running.stale_flows(), [unless_masqueraded(DNS, &[FIRST, SECOND])]);
}

#[test]
fn tcp_and_sctp_ask_conntrack_for_nothing() {
    for protocol in [Tcp, Sctp] {
        let running = serving(&FakeKernel::new(), protocol, &["10.244.0.1", "10.244.0.2"]);
        running.tell(Change::Slices(Event::Apply(slice("dns", protocol, &["10.244.0.2"]))));
        running.settled();
        running.tell(Change::Services(Event::Delete(ObjectName::new("default", "dns"))));
        handed_over(&running, &[]);
    }
}

#[test]
fn a_daemon_that_finds_everything_as_it_should_be_asks_for_nothing() {
    let kernel = FakeKernel::new();
    drop(serving(&kernel, Udp, &["10.244.0.1"]));
    handed_over(&serving(&kernel, Udp, &["10.244.0.1"]), &[]);
}

#[test]
fn start_forgets_flows_of_endpoints_removed_while_no_daemon_ran() {
    let kernel = FakeKernel::new();
    drop(serving(&kernel, Udp, &["10.244.0.1", "10.244.0.2"]));
    handed_over(&serving(&kernel, Udp, &["10.244.0.2"]), &[(DNS, &[SECOND])]);
}

#[test]
fn an_endpoint_that_could_not_be_removed_keeps_its_flows_until_it_is() {
    let kernel = FakeKernel::new();
    let running = served(&kernel, Udp, &["10.244.0.1", "10.244.0.2"]);
    kernel.fail_call(0, Errno::ENOMEM);
    running.tell(Change::Slices(Event::Apply(slice("dns", Udp, &["10.244.0.2"]))));
    running.status_where(|status| !status.synced);
    assert!(!kernel.writes().contains("delete"), "{}", kernel.writes());
    assert_eq!(running.stale_flows.try_iter().count(), 0, "it serves yet");
    running.handle.resync().unwrap();
    handed_over(&running, &[(DNS, &[SECOND])]);
}

#[test]
fn the_flows_of_an_endpoint_whose_removal_was_not_answered_are_forgotten() {
    let kernel = FakeKernel::new();
    let running = served(&kernel, Udp, &["10.244.0.1", "10.244.0.2"]);
    kernel.lose_answer(0);
    running.tell(Change::Slices(Event::Apply(slice("dns", Udp, &["10.244.0.2"]))));
    // The reading after that finds it gone already.
    handed_over(&running, &[(DNS, &[SECOND])]);
}

#[test]
fn a_vip_that_is_bound_again_takes_over_the_flows_of_the_time_in_between() {
    let kernel = FakeKernel::new();
    let running = served(&kernel, Udp, &["10.244.0.1"]);
    kernel.state().dummy_interface.bound.clear();
    running.handle.resync().unwrap();
    handed_over(&running, &[(DNS, &[FIRST])]);
}

#[test]
fn so_does_a_vip_of_which_the_kernel_has_not_answered_that_it_is_bound() {
    let kernel = FakeKernel::new();
    let running = served(&kernel, Udp, &["10.244.0.1"]);
    kernel.state().dummy_interface.bound.clear();
    kernel.lose_answer(0);
    running.handle.resync().unwrap();
    handed_over(&running, &[(DNS, &[FIRST])]);
}
