//! Notices to the owners of Services whose addresses belong to others, or to none.

use crate::common::{Running, service};
use ipvs::Protocol::Tcp;
use reconciler::{Notice, Reason};
use service::{Change, Event, ObjectName, Service, ServicePort};
use testkit::FakeKernel;

/// A Service that wants 10.96.0.10, as old as `created` says.
fn claimant(name: &str, created: i64) -> Service {
    Service { created: Some(created), ..service(name, "10.96.0.10", Tcp) }
}

fn taken(of: &str, by: &str) -> Notice {
    let text = format!(
        "TCP 10.96.0.10:80 belongs to default/{by}, whose claim comes first; it is not served for this Service"
    );
    Notice { service: ObjectName::new("default", of), reason: Reason::AddressTaken, text }
}

fn delete(running: &Running, name: &str) {
    running.tell(Change::Services(Event::Delete(ObjectName::new("default", name))));
}

#[test]
fn lost_address_is_one_notice_and_another_when_its_owner_changes() {
    let running = Running::on(&FakeKernel::new());
    let all = vec![claimant("old", 1), claimant("young", 2), claimant("youngest", 3)];
    running.lists(all, vec![]);
    assert_eq!(running.notices(), [taken("young", "old"), taken("youngest", "old")]);

    running.tell(Change::Services(Event::Apply(service("other", "10.96.0.11", Tcp))));
    assert_eq!(running.notices(), [], "nothing new");

    delete(&running, "old");
    assert_eq!(running.notices(), [taken("youngest", "young")]);
    delete(&running, "young");
    assert_eq!(running.notices(), [], "it has the address now");
    running.tell(Change::Services(Event::Apply(claimant("old", 1))));
    assert_eq!(running.notices(), [taken("youngest", "old")]);
}

#[test]
fn service_that_loses_many_addresses_gets_notices_of_a_few_and_a_count() {
    let running = Running::on(&FakeKernel::new());
    let port = |number: u16| ServicePort {
        name: number.to_string().into(),
        protocol: Tcp,
        port: number,
        node_port: None,
    };
    let all =
        |name, created, last| Service { ports: (1..=last).map(port).collect(), ..claimant(name, created) };
    running.lists(vec![all("old", 1, 400), all("young", 2, 400)], vec![]);
    let texts = || running.notices().into_iter().map(|notice| notice.text).collect::<Vec<_>>();
    let named = |number| {
        format!(
            "TCP 10.96.0.10:{number} belongs to default/old, whose claim comes first; it is not served for this Service"
        )
    };
    let more =
        |count| format!("more addresses and ports that belong to others, whose claims come first: {count}");
    assert_eq!(texts(), [named(1), named(2), named(3), named(4), named(5), more(395)]);

    running.tell(Change::Services(Event::Apply(all("old", 1, 6))));
    assert_eq!(texts(), [more(1)]);
    running.tell(Change::Services(Event::Apply(all("old", 1, 5))));
    assert_eq!(texts(), [""; 0]);
}

#[test]
fn the_status_names_some_of_those_that_wait_for_an_address_and_counts_the_others() {
    let running = Running::on(&FakeKernel::new());
    let all = (0..500).map(|number| claimant(&format!("web-{number:03}"), number)).collect();
    running.lists(all, vec![]);
    assert_eq!(
        running.handle.status().unwrap().problems,
        [
            "TCP 10.96.0.10:80 belongs to default/web-000, whose claim comes first; default/web-001, default/web-002, \
          default/web-003 and 496 more cannot have it"
        ]
    );
}

#[test]
fn refused_address_is_one_notice_and_stays_in_the_status_while_it_lasts() {
    let running = Running::on(&FakeKernel::new());
    let external_ips = |ips: &[&str]| ips.iter().map(|ip| ip.parse().unwrap()).collect();
    let asking = |ips: &[&str]| Service { external_ips: external_ips(ips), ..claimant("thief", 1) };
    let refused = |ip: &str, why: &str| Notice {
        service: ObjectName::new("default", "thief"),
        reason: Reason::AddressRefused,
        text: format!("spec.externalIPs: {ip} is not served: it is {why}"),
    };
    let problems = || running.handle.status().unwrap().problems;

    running.lists(vec![asking(&["127.0.0.1", "10.96.0.1"])], vec![]);
    let loopback = || refused("127.0.0.1", "a loopback address");
    assert_eq!(running.notices(), [loopback()]);
    assert_eq!(problems(), [format!("default/thief: {}", loopback().text)]);

    running.tell(Change::Services(Event::Apply(service("kubernetes", "10.96.0.1", Tcp))));
    let taken = || refused("10.96.0.1", "another Service's ClusterIP");
    assert_eq!(running.notices(), [taken()], "the other one was sent before");
    assert_eq!(problems().len(), 2);

    running.tell(Change::Services(Event::Apply(asking(&["203.0.113.7"]))));
    assert_eq!(running.notices(), []);
    assert_eq!(problems(), [""; 0]);
    running.tell(Change::Services(Event::Apply(asking(&["10.96.0.1"]))));
    assert_eq!(running.notices(), [taken()]);
}

#[test]
fn one_namespace_does_not_hide_what_is_wrong_in_others() {
    let running = Running::on(&FakeKernel::new());
    let bad = |namespace: &str, number: u8| Service {
        name: ObjectName::new(namespace, format!("web-{number}")),
        cluster_ips: vec![[10, 96, if namespace == "aaa" { 1 } else { 2 }, number].into()],
        problems: vec!["spec.ports[0]: cannot be used".into()],
        ..service("web", "10.96.0.1", Tcp)
    };
    let all = (0..200).map(|number| bad("aaa", number)).chain((0..3).map(|number| bad("zoo", number)));
    running.lists(all.collect(), vec![]);
    let of_zoo = |names: &[String]| names.iter().filter(|it| it.starts_with("zoo/")).count();
    let problems = running.handle.status().unwrap().problems;
    assert_eq!((problems.len(), of_zoo(&problems)), (20, 3), "{problems:?}");
    let notices: Vec<_> = running.notices().iter().map(|notice| notice.service.to_string()).collect();
    assert_eq!((notices.len(), of_zoo(&notices[..6])), (203, 3), "{notices:?}");
}
