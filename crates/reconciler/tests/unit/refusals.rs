//! What the kernel refuses does not stop the rest.

use std::{collections::BTreeSet, time::Duration};

use crate::common::{AT_ONCE, LONG, Running, Setup, at, endpoint, service, slice};
use ipvs::{Family, Protocol::Tcp, Scheduler, VirtualServerId};
use netlink::Errno;
use reconciler::{SyncStatus, Timing, Trigger};
use service::{Change, Event};
use testkit::FakeKernel;

#[test]
fn missing_family_is_reported_and_the_other_one_is_served() {
    let kernel = FakeKernel::new();
    let running =
        Running::with(&kernel, Setup { families: BTreeSet::from([Family::V4]), ..Setup::default() });
    let mut both = service("both", "10.96.0.10", Tcp);
    both.cluster_ips.push("fd00::10".parse().unwrap());
    running.lists(vec![both], vec![slice("both", Tcp, &["10.244.0.1"])]);
    let status = running.status_where(|status| status.synced);
    assert_eq!(status.problems, ["this node has no IPv6; virtual servers that are not served: 1"]);
    assert!(kernel.state().is_bound("10.96.0.10".parse().unwrap()));
    assert!(!kernel.writes().contains("fd00::10"), "{}", kernel.writes());
}

#[test]
fn one_refused_real_server_does_not_stop_the_others() {
    let running = Running::on(&FakeKernel::new());
    let mut with_multicast = slice("web", Tcp, &["10.244.0.1", "10.244.0.9"]);
    with_multicast.endpoints.insert(1, endpoint("224.0.0.1"));
    running.tell(Change::Services(Event::Replace(vec![service("web", "10.96.0.10", Tcp)])));
    running.tell(Change::Slices(Event::Replace(vec![with_multicast])));
    let report = running.handle.resync().unwrap();
    assert_eq!(report.failed, 1);
    assert!(report.failures[0].contains("224.0.0.1:8080 weight 1: EINVAL"), "{report:?}");
    let state = running.kernel.state();
    assert_eq!(state.virtual_servers[&VirtualServerId::Address(at("10.96.0.10", Tcp))].1.len(), 2);
    assert!(state.is_bound("10.96.0.10".parse().unwrap()));
}

#[test]
fn refused_vip_is_reported_with_the_kernels_own_words() {
    let kernel = FakeKernel::new();
    kernel.state().refused_vips.insert("10.96.0.10".parse().unwrap());
    let running = Running::on(&kernel);
    running.tell(Change::Services(Event::Replace(vec![service("web", "10.96.0.10", Tcp)])));
    running.tell(Change::Slices(Event::Replace(vec![slice("web", Tcp, &["10.244.0.1"])])));
    let report = running.handle.resync().unwrap();
    let expected = "bind 10.96.0.10: EINVAL (Invalid argument): Invalid prefsrc address";
    assert!(report.failures.iter().any(|failure| failure == expected), "{report:?}");
}

#[test]
fn one_refused_virtual_server_does_not_stop_the_others() {
    // Changes wait, so that what follows is one sync.
    let running = Running::timed(&FakeKernel::new(), Timing { min_sync_period: LONG, ..AT_ONCE });
    running.lists(vec![], vec![slice("a", Tcp, &["10.244.0.1"]), slice("b", Tcp, &["10.244.0.2"])]);
    let kernel = &running.kernel;
    kernel.heal();
    // Three reads, and of each Service three elements come before the first virtual server.
    kernel.fail_call(9, Errno::ENOMEM);
    running.tell(Change::Services(Event::Replace(vec![
        service("a", "10.96.0.10", Tcp),
        service("b", "10.96.0.11", Tcp),
    ])));
    let report = running.handle.resync().unwrap();
    assert!(report.failures[0].starts_with("add virtual server TCP 10.96.0.10:80 rr: ENOMEM"), "{report:?}");
    let served = |vip: &str| {
        let state = kernel.state();
        let real_servers =
            state.virtual_servers.get(&VirtualServerId::Address(at(vip, Tcp))).map(|(_, reals)| reals.len());
        (real_servers, state.is_bound(vip.parse().unwrap()))
    };
    assert_eq!(served("10.96.0.10"), (None, false));
    assert_eq!(served("10.96.0.11"), (Some(1), true));
    assert_eq!(running.handle.resync().unwrap().failed, 0);
    assert_eq!(served("10.96.0.10"), (Some(1), true));
}

#[test]
fn a_lasting_failure_and_a_draining_endpoint_do_not_put_off_the_period() {
    let kernel = FakeKernel::new();
    let running = Running::timed(&kernel, Timing { sync_period: Duration::from_millis(1500), ..AT_ONCE });
    let mut slices = vec![slice("web", Tcp, &["10.244.0.1", "224.0.0.1"])];
    slices.push(slice("other", Tcp, &["10.244.0.2"]));
    let services = vec![service("web", "10.96.0.10", Tcp), service("other", "10.96.0.11", Tcp)];
    running.tell(Change::Services(Event::Replace(services)));
    running.tell(Change::Slices(Event::Replace(slices)));
    running.handle.resync().unwrap();
    let other = VirtualServerId::Address(at("10.96.0.11", Tcp));
    kernel.state().virtual_servers.remove(&other).unwrap();
    running.kernel_where(|state| state.virtual_servers.contains_key(&other));
}

#[test]
fn a_virtual_server_that_stays_refused_puts_nothing_else_in_doubt() {
    let kernel = FakeKernel::new();
    kernel.state().missing_schedulers.insert(Scheduler::RR);
    let running = Running::on(&kernel);
    running.lists(vec![], vec![]);
    kernel.heal();
    running.tell(Change::Slices(Event::Apply(slice("web", Tcp, &["10.244.0.1", "10.244.0.2"]))));
    running.tell(Change::Services(Event::Apply(service("web", "10.96.0.10", Tcp))));
    let is_retry = |status: &SyncStatus| {
        status.last_sync.as_ref().is_some_and(|sync| sync.report.trigger == Trigger::Retry)
    };
    let report = running.status_where(is_retry).last_sync.unwrap().report;
    // The virtual server, its two real servers and the VIP.
    assert_eq!((report.failed, report.full), (4, false), "{report:?}");
    assert_eq!(kernel.state().full_reads, 0);
}

#[test]
fn a_virtual_server_that_another_program_removed_is_made_again_as_a_whole() {
    let running = Running::serving_web();
    let kernel = &running.kernel;
    kernel.heal();
    let web = VirtualServerId::Address(at("10.96.0.10", Tcp));
    kernel.state().virtual_servers.remove(&web).unwrap();
    let endpoints = ["10.244.0.1", "10.244.0.2", "10.244.0.3"];
    running.tell(Change::Slices(Event::Apply(slice("web", Tcp, &endpoints))));
    running.kernel_where(|state| state.virtual_servers.get(&web).is_some_and(|(_, reals)| reals.len() == 3));
    assert_eq!(kernel.state().full_reads, 1, "the image was wrong");
}

#[test]
fn a_scheduler_that_the_kernel_lacks_is_named_and_no_door_is_opened() {
    let kernel = FakeKernel::new();
    kernel.state().missing_schedulers.insert(Scheduler::RR);
    let running = Running::on(&kernel);
    running.tell(Change::Services(Event::Replace(vec![service("web", "10.96.0.10", Tcp)])));
    running.tell(Change::Slices(Event::Replace(vec![slice("web", Tcp, &["10.244.0.1"])])));
    let report = running.handle.resync().unwrap();
    assert!(report.failures.iter().any(|line| line.contains("load the module ip_vs_rr")), "{report:?}");
    assert!(!kernel.state().is_bound("10.96.0.10".parse().unwrap()));
}
