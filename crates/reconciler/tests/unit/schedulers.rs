//! Changes of the scheduler of virtual servers that are in use.

use std::{collections::BTreeSet, num::NonZero};

use crate::common::{Running, Setup, at, real, service, slice};
use ipvs::{Command, Ipvs, Protocol::Tcp, RealServer, Scheduler, VirtualServerId};
use netlink::Errno;
use reconciler::{Reason, Trigger};
use service::{Balancing, Change, EndpointSlice, Event, Options, Service};
use testkit::FakeKernel;

fn objects(count: u8) -> (Vec<Service>, Vec<EndpointSlice>) {
    let name = |number| format!("web-{number}");
    let services = (0..count).map(|number| service(&name(number), &format!("10.96.1.{number}"), Tcp));
    let slices = (0..count).map(|number| slice(&name(number), Tcp, &["10.244.0.1"]));
    (services.collect(), slices.collect())
}

fn with_scheduler(kernel: &FakeKernel, scheduler: Scheduler) -> Running {
    let options = Options { scheduler, ..Options::new("node") };
    Running::with(kernel, Setup { options, ..Setup::default() })
}

/// A daemon with rr has ended, and one with lc has begun.
fn changed(kernel: &FakeKernel, count: u8) -> Running {
    let (services, slices) = objects(count);
    with_scheduler(kernel, Scheduler::RR).lists(services.clone(), slices.clone());
    kernel.heal();
    let running = with_scheduler(kernel, Scheduler::LC);
    running.tell(Change::Services(Event::Replace(services)));
    running.tell(Change::Slices(Event::Replace(slices)));
    running
}

fn schedulers(kernel: &FakeKernel) -> BTreeSet<Scheduler> {
    kernel.state().virtual_servers.values().map(|(server, _)| server.scheduler).collect()
}

#[test]
fn schedulers_are_changed_a_few_at_a_time_and_other_changes_get_in_between() {
    let kernel = FakeKernel::new();
    let running = changed(&kernel, 250);
    let first = running.status_where(|status| status.last_full_sync.is_some());
    // At first it is not known that the kernel has the scheduler.
    let done = first.last_full_sync.unwrap().report.done;
    assert!((1..=32).contains(&done), "{done}");
    assert!(!first.synced);
    running.tell(Change::Slices(Event::Apply(slice("web-200", Tcp, &["10.244.0.1", "10.244.0.2"]))));

    let mut left = BTreeSet::new();
    running.status_where(|status| {
        let report = &status.last_sync.as_ref().unwrap().report;
        assert_eq!(report.failed, 0, "{report:?}");
        assert!(report.done <= 32 || report.trigger != Trigger::Continue, "{report:?}");
        left.insert(status.scheduler_changes);
        status.synced
    });
    assert_eq!(left.first(), Some(&0));
    assert!(left.last() > Some(&32), "{left:?}");
    assert_eq!(schedulers(&kernel), BTreeSet::from([Scheduler::LC]));

    let writes = kernel.writes();
    assert_eq!(writes.matches("edit virtual server").count(), 250, "each once");
    let added = writes.find("add real server TCP 10.96.1.200:80 -> 10.244.0.2:8080").unwrap();
    assert!(added < writes.rfind("edit virtual server").unwrap(), "{writes}");
    assert!(!writes.contains("delete"), "{writes}");
}

#[test]
fn a_scheduler_that_the_kernel_lacks_is_named_and_the_old_one_goes_on() {
    let kernel = FakeKernel::new();
    kernel.state().missing_schedulers.insert(Scheduler::LC);
    let running = changed(&kernel, 3);
    let status = running.status_where(|status| status.last_sync.is_some());
    let report = status.last_sync.unwrap().report;
    // One attempt shows what the others would.
    assert_eq!(report.failed, 1, "{report:?}");
    assert!(report.failures[0].contains("load the module ip_vs_lc"), "{report:?}");
    assert_eq!((status.scheduler_changes, status.synced), (2, false));

    // Real servers and affinity are kept up to date, at the virtual server that was tried and at others.
    for number in [0, 2] {
        let name = format!("web-{number}");
        let mut sticky = service(&name, &format!("10.96.1.{number}"), Tcp);
        sticky.session_affinity = Some(60);
        running.tell(Change::Services(Event::Apply(sticky)));
        running.tell(Change::Slices(Event::Apply(slice(&name, Tcp, &["10.244.0.1", "10.244.0.2"]))));
        let id = VirtualServerId::Address(at(&format!("10.96.1.{number}"), Tcp));
        running.kernel_where(|state| {
            let (server, reals) = &state.virtual_servers[&id];
            server.timeout == 60 && reals.contains_key(&real("10.244.0.2"))
        });
        let report = running.handle.status().unwrap().last_sync.unwrap().report;
        assert_eq!((report.full, report.failed), (false, 1), "still one attempt at a time: {report:?}");
    }
    assert_eq!(schedulers(&kernel), BTreeSet::from([Scheduler::RR]));
    assert!(!kernel.writes().contains("delete"), "{}", kernel.writes());

    kernel.state().missing_schedulers.clear();
    running.handle.resync().unwrap();
    running.settled();
    assert_eq!(schedulers(&kernel), BTreeSet::from([Scheduler::LC]));
    let sticky = kernel.state().virtual_servers[&VirtualServerId::Address(at("10.96.1.2", Tcp))].0.timeout;
    assert_eq!(sticky, 60);
}

/// `default/web` with a scheduler of its own.
fn asking_for(scheduler: Scheduler) -> Service {
    let balancing = Balancing { scheduler: Some(scheduler), ..Balancing::default() };
    Service { balancing: Some(balancing.into()), ..service("web", "10.96.1.1", Tcp) }
}

#[test]
fn service_is_served_with_the_default_scheduler_where_the_kernel_lacks_its_own() {
    let kernel = FakeKernel::new();
    kernel.state().missing_schedulers.insert(Scheduler::SED);
    let running = Running::on(&kernel);
    let other = service("other", "10.96.1.2", Tcp);
    running.lists(vec![asking_for(Scheduler::SED), other], vec![slice("web", Tcp, &["10.244.0.1"])]);
    let status = running.handle.status().unwrap();
    let report = status.last_sync.unwrap().report;
    assert_eq!((report.failed, report.repairs), (0, vec![]), "it was tried out before");
    assert_eq!(schedulers(&kernel), BTreeSet::from([Scheduler::RR]));
    let [problem] = &status.problems[..] else {
        unreachable!("one Service asks for it: {:?}", status.problems)
    };
    assert!(problem.starts_with("default/web: ") && problem.contains("lacks the scheduler sed"), "{problem}");

    // The scheduler is tried once, however many Services ask for it.
    kernel.heal();
    let more = service("more", "10.96.1.3", Tcp);
    running.tell(Change::Services(Event::Apply(Service {
        balancing: asking_for(Scheduler::SED).balancing,
        ..more
    })));
    running.kernel_where(|state| state.virtual_servers.len() == 3);
    assert!(!kernel.writes().contains("198.51.100.0"), "{}", kernel.writes());

    // An operator who has loaded the module says so.
    kernel.state().missing_schedulers.clear();
    let report = running.handle.resync().unwrap();
    assert_eq!((report.failed, report.repairs), (0, vec![]));
    running.settled();
    assert_eq!(schedulers(&kernel), BTreeSet::from([Scheduler::RR, Scheduler::SED]));
    assert_eq!(running.handle.status().unwrap().problems, [""; 0]);
}

#[test]
fn a_scheduler_that_is_dangerous_to_load_is_never_asked_for_by_an_annotation() {
    let kernel = FakeKernel::new();
    kernel.state().dangerous_schedulers.insert(Scheduler::LBLC);
    let running = Running::on(&kernel);
    running.lists(vec![asking_for(Scheduler::LBLC)], vec![]);
    assert!(!kernel.writes().contains("lblc"), "{}", kernel.writes());
    assert_eq!(schedulers(&kernel), BTreeSet::from([Scheduler::RR]));
    assert!(running.handle.status().unwrap().problems[0].contains("lblc is not loaded"));
}

#[test]
fn a_dangerous_scheduler_that_was_unloaded_is_not_asked_for_either() {
    let kernel = FakeKernel::new();
    let running = Running::on(&kernel);
    running.lists(vec![asking_for(Scheduler::LBLC)], vec![]);
    assert_eq!(schedulers(&kernel), BTreeSet::from([Scheduler::LBLC]));
    running.tell(Change::Services(Event::Replace(vec![])));
    running.kernel_where(|state| state.virtual_servers.is_empty());
    kernel.state().dangerous_schedulers.insert(Scheduler::LBLC);
    kernel.heal();
    running.tell(Change::Services(Event::Apply(asking_for(Scheduler::LBLC))));
    running.kernel_where(|state| !state.virtual_servers.is_empty());
    assert!(!kernel.writes().contains("lblc"), "{}", kernel.writes());
}

#[test]
fn a_scheduler_that_was_there_and_is_gone_is_missing() {
    let kernel = FakeKernel::new();
    let running = Running::on(&kernel);
    running.lists(vec![asking_for(Scheduler::SED)], vec![]);
    running.tell(Change::Services(Event::Replace(vec![])));
    running.kernel_where(|state| state.virtual_servers.is_empty());
    kernel.state().missing_schedulers.insert(Scheduler::SED);
    running.tell(Change::Services(Event::Apply(asking_for(Scheduler::SED))));
    running.kernel_where(|state| !state.virtual_servers.is_empty());
    assert_eq!(schedulers(&kernel), BTreeSet::from([Scheduler::RR]));
    running.settled();
    assert!(running.handle.status().unwrap().problems[0].contains("lacks the scheduler sed"));
}

#[test]
fn an_attempt_that_goes_wrong_leaves_nothing_behind() {
    type Fault = fn(&FakeKernel);
    // After a look at what is there.
    let faults: [Fault; 2] = [|kernel| kernel.fail_call(2, Errno::ENOMEM), |kernel| kernel.lose_answer(1)];
    for fault in faults {
        let kernel = FakeKernel::new();
        let running = Running::on(&kernel);
        running.lists(vec![], vec![]);
        kernel.heal();
        fault(&kernel);
        running.tell(Change::Services(Event::Apply(asking_for(Scheduler::SED))));
        running.kernel_where(|state| {
            state.virtual_servers.keys().eq([&VirtualServerId::Address(at("10.96.1.1", Tcp))])
                && state.virtual_servers.values().all(|(server, _)| server.scheduler == Scheduler::SED)
        });
        assert!(kernel.writes().contains("198.51.100.0"), "it was tried: {}", kernel.writes());
        running.settled();
    }
}

#[test]
fn where_schedulers_are_tried_may_be_a_service() {
    let kernel = FakeKernel::new();
    let running = Running::on(&kernel);
    let mut there = service("there", "198.51.100.0", Tcp);
    there.ports[0].port = 20_000;
    running.lists(vec![there.clone()], vec![slice("there", Tcp, &["10.244.0.1"])]);
    kernel.heal();
    running.tell(Change::Services(Event::Apply(asking_for(Scheduler::SED))));
    running.kernel_where(|state| state.virtual_servers.len() == 2);
    assert!(!kernel.writes().contains("198.51.100.0"), "{}", kernel.writes());
    assert_eq!(schedulers(&kernel), BTreeSet::from([Scheduler::RR, Scheduler::SED]));
}

#[test]
fn unused_annotation_is_one_notice_to_the_owner() {
    let kernel = FakeKernel::new();
    kernel.state().missing_schedulers.insert(Scheduler::SED);
    let running = Running::on(&kernel);
    let wrong = Service { problems: vec!["spec.x: not set".to_owned()], ..asking_for(Scheduler::SED) };
    running.lists(vec![wrong.clone()], vec![]);
    let notice_texts = |running: &Running| {
        let notices = running.notices();
        assert!(notices.iter().all(|it| it.reason == Reason::FieldNotUsed && it.service == wrong.name));
        notices.into_iter().map(|notice| notice.text).collect::<BTreeSet<_>>()
    };
    let lacks = "metadata.annotations: the kernel of node node lacks the scheduler sed (module ip_vs_sed); rr is used \
                 there. With the module loaded, kube-ipvs resync tries again";
    assert_eq!(notice_texts(&running), BTreeSet::from([lacks.to_owned(), "spec.x: not set".to_owned()]));
    running.tell(Change::Services(Event::Apply(Service { session_affinity: Some(60), ..wrong.clone() })));
    assert_eq!(notice_texts(&running), BTreeSet::new());
}

/// A Service with a scheduler and a limit of its own, and its slice.
fn limited() -> (Vec<Service>, Vec<EndpointSlice>) {
    let balancing = Balancing {
        scheduler: Some(Scheduler::WLC),
        max_connections: NonZero::new(9),
        ..Balancing::default()
    };
    let web = Service { balancing: Some(balancing.into()), ..service("web", "10.96.1.1", Tcp) };
    (vec![web], vec![slice("web", Tcp, &["10.244.0.1"])])
}

#[test]
fn annotated_settings_are_adopted_without_a_write_and_repaired_where_they_differ() {
    let (mut kernel, vip) = (FakeKernel::new(), VirtualServerId::from(at("10.96.1.1", Tcp)));
    let start = |kernel: &FakeKernel| {
        let (services, slices) = limited();
        let running = Running::on(kernel);
        running.lists(services, slices);
    };
    start(&kernel);
    let server = RealServer::masquerade([10, 244, 0, 1].into(), 8080).thresholds(9, 0);
    assert_eq!(kernel.real_servers(vip).unwrap()[0].config, server);

    kernel.heal();
    start(&kernel);
    assert_eq!(kernel.writes(), "");

    let other = server.thresholds(5, 0);
    Ipvs::apply(&mut kernel, &[Command::EditRealServer(vip, other)]).unwrap();
    start(&kernel);
    assert_eq!(kernel.real_servers(vip).unwrap()[0].config, server);
    assert_eq!(kernel.virtual_server(vip).unwrap().unwrap().config.scheduler, Scheduler::WLC);
}
