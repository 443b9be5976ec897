//! What is made before what: nothing is served without what it depends on.

use std::collections::BTreeSet;

use crate::common::{AT_ONCE, LONG, Running, at, service, slice};
use ipvs::{Family, Protocol::Tcp, ServiceAddress};
use netfilter::Element;
use netlink::Errno;
use reconciler::{SyncReport, Timing};
use service::{Change, Event, ObjectName, Service, TrafficPolicy};
use testkit::FakeKernel;

#[test]
fn new_table_takes_no_flows_while_something_is_refused_but_not_for_ever() {
    let kernel = FakeKernel::new();
    let vip = "10.96.0.11".parse().unwrap();
    kernel.state().refused_elements.insert(Element::Vip(vip));
    let running = Running::on(&kernel);
    let services = [("web", "10.96.0.10"), ("refused", "10.96.0.11")];
    running.tell(Change::Services(Event::Replace(services.map(|(name, ip)| service(name, ip, Tcp)).into())));
    running.tell(Change::Slices(Event::Replace(vec![slice("web", Tcp, &["10.244.0.1"])])));
    let syncs = [(); 3].map(|()| running.handle.resync().unwrap());
    let waits = |report: &SyncReport| {
        report.failures.iter().any(|failure| failure.starts_with("install table IPv4: deferred"))
    };
    let [.., last] = &syncs;
    assert!(!waits(last), "{syncs:#?}");
    assert!(syncs.iter().any(waits), "{syncs:#?}");
    let kernel = kernel.state();
    assert_eq!(kernel.tables, BTreeSet::from(Family::BOTH));
    assert!(
        kernel.dummy_interface.bound.contains(&"10.96.0.10".parse().unwrap())
            && !kernel.dummy_interface.bound.contains(&vip)
    );
    // It has failed before, and no other program has changed anything.
    assert!(syncs.iter().all(|report| report.repairs.is_empty()), "{syncs:#?}");
}

#[test]
fn a_table_deleted_later_waits_as_long_as_the_first_one() {
    let kernel = FakeKernel::new();
    kernel.state().refused_elements.insert(Element::Vip("10.96.0.11".parse().unwrap()));
    let running = Running::timed(&kernel, Timing { min_sync_period: LONG, ..AT_ONCE });
    let services = [("web", "10.96.0.10"), ("refused", "10.96.0.11")];
    running.tell(Change::Services(Event::Replace(services.map(|(name, ip)| service(name, ip, Tcp)).into())));
    running.tell(Change::Slices(Event::Replace(vec![slice("web", Tcp, &["10.244.0.1"])])));
    let syncs_until_it_is_there = || {
        let has_rules = || {
            running.handle.resync().unwrap();
            kernel.state().tables.contains(&Family::V4)
        };
        (1..10).find(|_| has_rules())
    };
    syncs_until_it_is_there().unwrap();
    for _ in 0..2 {
        kernel.state().tables.clear();
        kernel.state().elements.clear();
        assert_eq!(syncs_until_it_is_there(), Some(3));
    }
}

#[test]
fn first_sync_adds_the_masquerade_rule_then_the_virtual_server_then_the_vip() {
    let running = Running::serving_web();
    // Of two real servers, a node of this name begins with the second.
    assert_eq!(
        running.kernel.writes(),
        "\
ensure device kube-ipvs0
prepare table IPv4
prepare table IPv6
add element hairpin TCP 10.244.0.1:8080
add element hairpin TCP 10.244.0.2:8080
add element vips 10.96.0.10
add element cluster-ips TCP 10.96.0.10:80
add virtual server TCP 10.96.0.10:80 rr
add real server TCP 10.96.0.10:80 -> 10.244.0.2:8080 weight 1
add real server TCP 10.96.0.10:80 -> 10.244.0.1:8080 weight 1
bind 10.96.0.10
install table IPv4
install table IPv6
"
    );
}

#[test]
fn default_kubernetes_works_before_anything_else_is_begun() {
    let running = Running::on(&FakeKernel::new());
    running.lists(
        vec![service("a", "10.96.0.2", Tcp), service("kubernetes", "10.96.0.9", Tcp)],
        vec![slice("a", Tcp, &["10.244.0.1"]), slice("kubernetes", Tcp, &["192.168.0.1"])],
    );
    let writes = running.kernel.writes();
    let bound = writes.find("bind 10.96.0.9").unwrap();
    assert!(bound < writes.find("10.96.0.2").unwrap(), "{writes}");
}

#[test]
fn removal_closes_the_door_first() {
    let running = Running::serving_web();
    running.kernel.heal();
    running.tell(Change::Services(Event::Delete(ObjectName::new("default", "web"))));
    running.settled();
    assert_eq!(
        running.kernel.writes(),
        "\
unbind 10.96.0.10
delete virtual server TCP 10.96.0.10:80
delete element vips 10.96.0.10
delete element cluster-ips TCP 10.96.0.10:80
delete element hairpin TCP 10.244.0.1:8080
delete element hairpin TCP 10.244.0.2:8080
"
    );
}

#[test]
fn an_urgent_vip_opens_after_the_hairpin_rule_of_its_pods() {
    let running = Running::on(&FakeKernel::new());
    running.lists(
        vec![service("kubernetes", "10.96.0.9", Tcp)],
        vec![slice("kubernetes", Tcp, &["10.244.0.1"])],
    );
    let writes = running.kernel.writes();
    assert!(writes.find("hairpin").unwrap() < writes.find("bind").unwrap(), "{writes}");
}

#[test]
fn virtual_server_waits_for_its_masquerade_rule_and_the_vips_other_port_serves() {
    let running = Running::serving_web();
    let kernel = &running.kernel;
    kernel.heal();
    let mut two = service("web", "10.96.0.10", Tcp);
    two.ports[0].name = "a".into();
    two.ports.push(service::ServicePort { name: "b".into(), protocol: Tcp, port: 81, node_port: None });
    let rule = Element::ClusterIp(ServiceAddress { port: 81, ..at("10.96.0.10", Tcp) });
    kernel.state().refused_elements.insert(rule);
    running.tell(Change::Services(Event::Apply(two)));
    assert!(running.handle.resync().unwrap().failed > 0);
    let writes = kernel.writes();
    assert!(!writes.contains("add virtual server TCP 10.96.0.10:81"), "{writes}");
    assert!(kernel.state().is_bound("10.96.0.10".parse().unwrap()));
    kernel.state().refused_elements.clear();
    running.settled();
    let writes = kernel.writes();
    let element = writes.find("add element cluster-ips TCP 10.96.0.10:81").unwrap();
    assert!(element < writes.find("add virtual server TCP 10.96.0.10:81").unwrap(), "{writes}");
}

#[test]
fn real_servers_on_other_nodes_wait_for_the_masquerade_rule_and_leave_before_it() {
    let mut local = service("web", "10.96.0.10", Tcp);
    local.external_ips = vec!["203.0.113.7".parse().unwrap()];
    local.external_traffic_policy = TrafficPolicy::Local;
    let mut pods = slice("web", Tcp, &["10.244.0.1", "10.244.0.2"]);
    pods.endpoints[1].node = Some("elsewhere".into());
    let running = Running::on(&FakeKernel::new());
    running.lists(vec![local.clone()], vec![pods]);
    let kernel = &running.kernel;
    kernel.heal();

    let cluster = Service { external_traffic_policy: TrafficPolicy::Cluster, ..local.clone() };
    kernel.fail_call(0, Errno::ENFILE);
    running.tell(Change::Services(Event::Apply(cluster)));
    let failed = running.status_where(|status| status.last_sync.as_ref().unwrap().report.failed > 0);
    assert_eq!(
        failed.last_sync.unwrap().report.failed,
        3,
        "the element, the real server, and the element that it replaces"
    );
    assert_eq!(kernel.writes(), "");
    running.settled();
    assert_eq!(
        kernel.writes(),
        "\
add element external TCP 203.0.113.7:80
add real server TCP 203.0.113.7:80 -> 10.244.0.2:8080 weight 1
delete element external-local TCP 203.0.113.7:80
"
    );

    kernel.heal();
    running.tell(Change::Services(Event::Apply(local)));
    running.settled();
    assert_eq!(
        kernel.writes(),
        "\
add element external-local TCP 203.0.113.7:80
edit real server TCP 203.0.113.7:80 -> 10.244.0.2:8080 weight 0
delete element external TCP 203.0.113.7:80
delete real server TCP 203.0.113.7:80 -> 10.244.0.2:8080
"
    );
}

#[test]
fn outside_clients_are_kept_out_exactly_while_remote_endpoints_stand_in() {
    let mut web = service("web", "10.96.0.10", Tcp);
    web.external_ips = vec!["203.0.113.7".parse().unwrap()];
    web.external_traffic_policy = TrafficPolicy::Local;
    let mut both = slice("web", Tcp, &["10.244.0.1", "10.244.0.2"]);
    both.endpoints[1].node = Some("elsewhere".into());
    let mut far = both.clone();
    far.endpoints.remove(0);
    let running = Running::on(&FakeKernel::new());
    running.lists(vec![web], vec![both.clone()]);
    let kernel = &running.kernel;
    let writes = || {
        let writes = kernel.writes();
        writes.split_inclusive('\n').filter(|line| line.contains("203.0.113.7")).collect::<String>()
    };

    kernel.heal();
    running.tell(Change::Slices(Event::Apply(far)));
    running.settled();
    assert_eq!(
        writes(),
        "\
add element local-clients-only TCP 203.0.113.7:80
add real server TCP 203.0.113.7:80 -> 10.244.0.2:8080 weight 1
edit real server TCP 203.0.113.7:80 -> 10.244.0.1:8080 weight 0
delete real server TCP 203.0.113.7:80 -> 10.244.0.1:8080
"
    );

    kernel.heal();
    running.tell(Change::Slices(Event::Apply(both)));
    running.settled();
    assert_eq!(
        writes(),
        "\
add real server TCP 203.0.113.7:80 -> 10.244.0.1:8080 weight 1
edit real server TCP 203.0.113.7:80 -> 10.244.0.2:8080 weight 0
delete element local-clients-only TCP 203.0.113.7:80
delete real server TCP 203.0.113.7:80 -> 10.244.0.2:8080
"
    );
}

#[test]
fn a_vip_without_one_of_its_rules_stays_closed() {
    let vip = "10.96.0.10".parse().unwrap();
    for rule in [Element::Vip(vip), Element::ClusterIp(at("10.96.0.10", Tcp))] {
        let kernel = FakeKernel::new();
        let running = Running::on(&kernel);
        running.lists(vec![], vec![]);
        kernel.state().refused_elements.insert(rule);
        running.tell(Change::Services(Event::Apply(service("web", "10.96.0.10", Tcp))));
        assert!(running.handle.resync().unwrap().failed > 0);
        assert!(!kernel.state().is_bound(vip), "without {rule:?}:\n{}", kernel.writes());

        kernel.state().refused_elements.clear();
        running.settled();
        assert!(kernel.state().is_bound(vip), "a later sync opens it");
    }
}
