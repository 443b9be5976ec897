//! A load balancer's address that only some clients may reach is open to no others, whatever is refused.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use crate::common::{AT_ONCE, LONG, Running, at, service, slice};
use ipvs::{
    Protocol::{self, Tcp},
    Scheduler, ServiceAddress, VirtualServer, VirtualServerId,
};
use netfilter::{AllowedSource, Element};
use netlink::Errno;
use reconciler::Timing;
use service::{Change, EndpointSlice, Event, Service};
use testkit::{FakeKernel, fake_kernel::State};

const BALANCED: &str = "203.0.113.1";

/// Timing by which changes wait for a forced sync, so that it is the only one.
const WAITING: Timing = Timing { min_sync_period: LONG, ..AT_ONCE };

/// A Service whose load balancer's address lets these clients in; `None` lets everybody in.
fn balanced(name: &str, ranges: Option<&[&str]>) -> Service {
    Service {
        load_balancer_ips: vec![BALANCED.parse().unwrap()],
        load_balancer_source_ranges: ranges.map(|all| all.iter().map(|it| it.parse().unwrap()).collect()),
        ..service(name, "10.96.0.10", Tcp)
    }
}

fn restricted() -> ServiceAddress {
    at(BALANCED, Protocol::Tcp)
}

fn source(first: &str, last: &str) -> Element {
    let [first, last] = [first, last].map(|ip| ip.parse().unwrap());
    Element::AllowedSource(AllowedSource { to: restricted(), first, last })
}

/// The clients among these that the elements let in at the load balancer's address, if it is served.
fn let_in<'a>(kernel: &State, clients: &[&'a str]) -> Vec<&'a str> {
    let is_restricted = kernel.elements.contains(&Element::Restricted(restricted()));
    let allowed = |client: &IpAddr| {
        let mut sources = kernel.elements.iter().filter_map(|element| match element {
            Element::AllowedSource(source) if source.to == restricted() => Some(source),
            _ => None,
        });
        sources.any(|source| source.first <= *client && *client <= source.last)
    };
    let served = kernel.virtual_servers.contains_key(&VirtualServerId::Address(restricted()));
    let is_let_in = |client: &&&str| served && (!is_restricted || allowed(&client.parse().unwrap()));
    clients.iter().filter(is_let_in).copied().collect()
}

/// The pods that get new connections from the load balancer's address.
fn pods(kernel: &State) -> Vec<String> {
    let server = kernel.virtual_servers.get(&VirtualServerId::Address(restricted()));
    let reals = server.iter().flat_map(|(_, reals)| reals.values().filter(|real| real.config.weight > 0));
    reals.map(|real| real.config.address.ip.to_string()).collect()
}

#[test]
fn a_restricted_address_opens_after_its_elements_and_closes_before_them() {
    let running = Running::on(&FakeKernel::new());
    running.lists(vec![], vec![]);
    running.kernel.heal();
    running.tell(Change::Services(Event::Apply(balanced("web", Some(&["10.0.0.0/8"])))));
    running.settled();
    assert_eq!(
        running.kernel.writes(),
        "\
add element vips 10.96.0.10
add element vips 203.0.113.1
add element restricted TCP 203.0.113.1:80
add element allowed-sources TCP 203.0.113.1:80 from 10.0.0.0-10.255.255.255
add element cluster-ips TCP 10.96.0.10:80
add element external TCP 203.0.113.1:80
add virtual server TCP 10.96.0.10:80 rr
add virtual server TCP 203.0.113.1:80 rr
bind 10.96.0.10
bind 203.0.113.1
"
    );
    running.kernel.heal();
    running.tell(Change::Services(Event::Replace(vec![service("web", "10.96.0.10", Tcp)])));
    running.settled();
    assert_eq!(
        running.kernel.writes(),
        "\
unbind 203.0.113.1
delete virtual server TCP 203.0.113.1:80
delete element vips 203.0.113.1
delete element restricted TCP 203.0.113.1:80
delete element allowed-sources TCP 203.0.113.1:80 from 10.0.0.0-10.255.255.255
delete element external TCP 203.0.113.1:80
"
    );
}

#[test]
fn other_clients_are_let_in_by_their_elements_alone() {
    let running = Running::on(&FakeKernel::new());
    running.lists(vec![balanced("web", Some(&["10.0.0.0/8", "192.0.2.0/24"]))], vec![]);
    running.kernel.heal();
    running.tell(Change::Services(Event::Apply(balanced("web", Some(&["10.1.0.0/16", "192.0.2.0/24"])))));
    running.settled();
    assert_eq!(
        running.kernel.writes(),
        "\
delete element allowed-sources TCP 203.0.113.1:80 from 10.0.0.0-10.255.255.255
add element allowed-sources TCP 203.0.113.1:80 from 10.1.0.0-10.1.255.255
"
    );
}

#[test]
fn restricted_address_with_a_refused_element_is_not_served_and_all_others_are() {
    let restriction = Element::Restricted(restricted());
    // Elements, the virtual server, its real server, the VIP, and the new table, which waits for them. The
    // restriction does no harm alone.
    for (refused, failures, there) in
        [(restriction, 8, &[][..]), (source("10.0.0.0", "10.255.255.255"), 7, &[restriction][..])]
    {
        let kernel = FakeKernel::new();
        kernel.state().refused_elements.insert(refused);
        let running = Running::on(&kernel);
        running.tell(Change::Services(Event::Replace(vec![
            balanced("web", Some(&["10.0.0.0/8", "192.0.2.0/24"])),
            service("other", "10.96.0.11", Tcp),
        ])));
        running.tell(Change::Slices(Event::Replace(vec![slice("web", Tcp, &["10.244.0.1"])])));
        let report = running.handle.resync().unwrap();
        assert_eq!(report.failed, failures, "{report:?}");
        {
            let kernel = kernel.state();
            assert!(!kernel.virtual_servers.contains_key(&VirtualServerId::Address(restricted())));
            let its = kernel.elements.iter().filter(|it| it.virtual_server() == Some(&restricted()));
            assert!(its.eq(there), "{:?}", kernel.elements);
            assert!(!kernel.is_bound(BALANCED.parse().unwrap()));
            for served in ["10.96.0.10", "10.96.0.11"] {
                assert!(kernel.is_bound(served.parse().unwrap()), "{served}");
            }
        }
        kernel.state().refused_elements.clear();
        running.settled();
        assert_eq!(
            let_in(&kernel.state(), &["10.1.0.1", "192.0.2.9", "198.51.100.1"]),
            ["10.1.0.1", "192.0.2.9"]
        );
        assert!(kernel.state().is_bound(BALANCED.parse().unwrap()));
    }
}

#[test]
fn refused_ranges_leave_the_old_ones_in_force_and_new_pods_waiting() {
    let (goes, comes) = (source("192.0.2.0", "192.0.2.255"), source("10.1.0.0", "10.1.255.255"));
    for (refused, ranges) in [(goes, "10.1.0.0/16"), (goes, "10.0.0.0/8"), (comes, "10.1.0.0/16")] {
        let kernel = FakeKernel::new();
        let running = Running::timed(&kernel, WAITING);
        running.lists(
            vec![balanced("web", Some(&["10.0.0.0/8", "192.0.2.0/24"]))],
            vec![slice("web", Tcp, &["10.244.0.1", "10.244.0.3"])],
        );
        let elements = || {
            let state = kernel.state();
            let its = state.elements.iter().filter(|it| it.virtual_server() == Some(&restricted()));
            its.copied().collect::<BTreeSet<_>>()
        };
        let before = elements();
        kernel.state().refused_elements.insert(refused);
        running.tell(Change::Services(Event::Apply(balanced("web", Some(&[ranges])))));
        running.tell(Change::Slices(Event::Apply(slice("web", Tcp, &["10.244.0.1", "10.244.0.2"]))));
        assert!(running.handle.resync().unwrap().failed > 0);
        assert_eq!(elements(), before, "{refused} is refused on the way to {ranges}");
        assert_eq!(pods(&kernel.state()), ["10.244.0.1"], "{refused} is refused on the way to {ranges}");
        kernel.state().refused_elements.clear();
        assert_eq!(running.handle.resync().unwrap().failed, 0);
        assert_eq!(let_in(&kernel.state(), &["10.1.0.1", "192.0.2.9"]), ["10.1.0.1"]);
        assert_eq!(pods(&kernel.state()), ["10.244.0.1", "10.244.0.2"]);
    }
}

#[test]
fn a_virtual_server_from_before_is_not_opened_without_its_restriction() {
    let kernel = FakeKernel::new();
    let left = VirtualServer::new(restricted(), Scheduler::RR);
    kernel.state().virtual_servers.insert(left.id, (left, BTreeMap::new()));
    kernel.state().refused_elements.insert(Element::Restricted(restricted()));
    let running = Running::on(&kernel);
    running.tell(Change::Services(Event::Replace(vec![balanced("web", Some(&["10.0.0.0/8"]))])));
    running.tell(Change::Slices(Event::Replace(vec![slice("web", Tcp, &["10.244.0.1"])])));
    running.handle.resync().unwrap();
    assert!(!kernel.state().is_bound(BALANCED.parse().unwrap()));
    assert_eq!(pods(&kernel.state()), [""; 0]);
    kernel.state().refused_elements.clear();
    running.settled();
    assert!(kernel.state().is_bound(BALANCED.parse().unwrap()));
    assert_eq!(let_in(&kernel.state(), &["10.1.0.1", "192.0.2.9"]), ["10.1.0.1"]);
}

#[test]
fn an_address_admits_no_client_while_the_kernel_refuses_its_source_ranges() {
    let kernel = FakeKernel::new();
    let running = Running::on(&kernel);
    running.lists(vec![balanced("web", None)], vec![slice("web", Tcp, &["10.244.0.1"])]);
    let clients = ["10.1.0.1", "192.0.2.9"];
    assert_eq!(let_in(&kernel.state(), &clients), clients);
    kernel.state().refused_elements.insert(source("10.0.0.0", "10.255.255.255"));
    running.tell(Change::Services(Event::Apply(balanced("web", Some(&["10.0.0.0/8"])))));
    assert!(running.handle.resync().unwrap().failed > 0);
    assert_eq!(let_in(&kernel.state(), &clients), [""; 0]);
    kernel.state().refused_elements.clear();
    running.settled();
    assert_eq!(let_in(&kernel.state(), &clients), ["10.1.0.1"]);
}

#[test]
fn foreign_source_ranges_are_found_when_they_are_in_the_way() {
    let kernel = FakeKernel::new();
    let running = Running::on(&kernel);
    running.lists(vec![balanced("web", Some(&["192.0.2.0/24"]))], vec![]);
    kernel.state().elements.insert(source("10.1.2.0", "10.1.2.255"));
    kernel.heal();
    running.tell(Change::Services(Event::Apply(balanced("web", Some(&["192.0.2.0/24", "10.1.0.0/16"])))));
    // The first attempt fails; the retry reads everything, and removes what overlaps.
    running.settled();
    assert_eq!(
        kernel.writes(),
        "\
delete element allowed-sources TCP 203.0.113.1:80 from 10.1.2.0-10.1.2.255
add element allowed-sources TCP 203.0.113.1:80 from 10.1.0.0-10.1.255.255
"
    );
}

/// One side of a change: the objects, and who then reaches which pods.
struct Side {
    services: Vec<Service>,
    slices: Vec<EndpointSlice>,
    clients: &'static [&'static str],
    pods: &'static [&'static str],
}

const CLIENTS: [&str; 3] = ["10.1.0.1", "10.2.0.1", "192.0.2.9"];

impl Side {
    fn none() -> Self {
        Self { services: vec![], slices: vec![], clients: &[], pods: &[] }
    }

    /// A Service of this name, for these clients.
    fn for_service(
        name: &str,
        ranges: Option<&[&str]>,
        clients: &'static [&'static str],
        pods: &'static [&'static str],
    ) -> Self {
        Self { services: vec![balanced(name, ranges)], slices: vec![slice(name, Tcp, pods)], clients, pods }
    }

    fn tell(&self, running: &Running) {
        running.tell(Change::Services(Event::Replace(self.services.clone())));
        running.tell(Change::Slices(Event::Replace(self.slices.clone())));
    }
}

/// Every way in which an address becomes restricted, otherwise restricted, or open.
fn changes() -> Vec<(&'static str, Side, Side)> {
    let (tens, ten_one): (Option<&[&str]>, Option<&[&str]>) = (Some(&["10.0.0.0/8"]), Some(&["10.1.0.0/16"]));
    let wide = || Side::for_service("web", tens, &CLIENTS[..2], &["10.244.0.1"]);
    let narrow = || Side::for_service("web", ten_one, &CLIENTS[..1], &["10.244.0.1", "10.244.0.2"]);
    let open = || Side::for_service("web", None, &CLIENTS, &["10.244.0.1"]);
    let others = || Side::for_service("other", Some(&["192.0.2.0/24"]), &CLIENTS[2..], &["10.244.0.3"]);
    vec![
        ("it comes", Side::none(), wide()),
        ("it goes", wide(), Side::none()),
        ("it is restricted", open(), narrow()),
        ("it is opened", narrow(), open()),
        ("fewer are let in", wide(), narrow()),
        ("more are let in", narrow(), wide()),
        ("another Service takes it", narrow(), others()),
    ]
}

#[test]
fn no_failing_call_admits_a_client_that_must_not_get_in() {
    let fail: [fn(&FakeKernel, usize); 3] = [
        |kernel, call| kernel.fail_call(call, Errno::ENOMEM),
        |kernel, call| kernel.fail_call(call, Errno::EEXIST),
        FakeKernel::lose_answer,
    ];
    for (what, before, after) in changes() {
        for (how, fail) in fail.iter().enumerate() {
            let calls = (0..100).find(|call| !one_call_fails(what, &before, &after, (how, fail), *call));
            // Three of them read.
            assert!(calls.is_some_and(|calls| calls > 5), "{what}: {calls:?} calls were disturbed");
        }
    }
}

/// Goes from one side to the other while one call fails, and says whether there was such a call.
fn one_call_fails(
    what: &str,
    before: &Side,
    after: &Side,
    (how, fail): (usize, &fn(&FakeKernel, usize)),
    call: usize,
) -> bool {
    let kernel = FakeKernel::new();
    let running = Running::timed(&kernel, WAITING);
    before.tell(&running);
    running.settled();
    after.tell(&running);
    kernel.heal();
    fail(&kernel, call);
    running.handle.resync().unwrap();
    let said = format!("{what}, call {call} fails in way {how}:\n{}", kernel.writes());
    {
        let kernel = kernel.state();
        let clients = let_in(&kernel, &CLIENTS);
        let may = |client: &&str| before.clients.contains(client) || after.clients.contains(client);
        assert!(clients.iter().all(may), "{clients:?} are let in; {said}");
        // A pod that is new there is reached by the clients that may reach it, and by no others.
        let is_new = |pod: &String| !before.pods.contains(&pod.as_str());
        if pods(&kernel).iter().any(is_new) || before.services.is_empty() {
            assert!(clients.iter().all(|client| after.clients.contains(client)), "{clients:?}; {said}");
        }
        for bound in &kernel.dummy_interface.bound {
            assert!(kernel.elements.contains(&Element::Vip(*bound)), "{bound}; {said}");
        }
    }
    let reached = kernel.state().calls > call;
    kernel.heal();
    while running.handle.resync().unwrap().failed > 0 {}
    assert_eq!(let_in(&kernel.state(), &CLIENTS), after.clients, "{said}");
    assert_eq!(pods(&kernel.state()), after.pods, "{said}");
    reached
}
