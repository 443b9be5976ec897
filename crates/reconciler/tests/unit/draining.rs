//! Graceful termination: when a TCP real server that is no longer wanted goes.

use std::time::Duration;

use crate::common::{AT_ONCE, Running, active_connections, at, real, service, slice};
use ipvs::{Protocol::Tcp, VirtualServerId};
use netlink::Errno;
use reconciler::{Timing, Trigger};
use service::{Change, Event};
use testkit::{FakeKernel, fake_kernel::State};

const BRIEF: Timing = Timing { drain_timeout: Some(Duration::from_millis(800)), ..AT_ONCE };

/// The draining real server.
const LEAVING: &str = "10.244.0.2";

fn web() -> VirtualServerId {
    VirtualServerId::Address(at("10.96.0.10", Tcp))
}

/// A Service of two endpoints, of which one leaves with this many connections, and twenty other
/// Services.
fn leaving(kernel: &FakeKernel, timing: Timing, connections: u32) -> Running {
    let running = Running::timed(kernel, timing);
    let (mut services, mut slices) = (Vec::new(), Vec::new());
    services.push(service("web", "10.96.0.10", Tcp));
    slices.push(slice("web", Tcp, &["10.244.0.1", LEAVING]));
    for number in 100..120 {
        services.push(service(&format!("other-{number}"), &format!("10.96.0.{number}"), Tcp));
        slices.push(slice(&format!("other-{number}"), Tcp, &["10.244.0.3"]));
    }
    running.lists(services, slices);
    active_connections(kernel, web(), LEAVING, connections);
    running.tell(Change::Slices(Event::Apply(slice("web", Tcp, &["10.244.0.1"]))));
    running.settled();
    running
}

fn is_there(kernel: &FakeKernel) -> bool {
    has_leaving(&kernel.state())
}

fn has_leaving(kernel: &State) -> bool {
    kernel.virtual_servers.get(&web()).is_some_and(|(_, reals)| reals.contains_key(&real(LEAVING)))
}

#[test]
fn draining_endpoint_is_checked_by_itself_and_only_its_virtual_server_is_read() {
    let kernel = FakeKernel::new();
    let running = leaving(&kernel, AT_ONCE, 1);
    kernel.heal();
    running.kernel_where(|state| state.real_server_reads > 0);
    let looked = running.handle.status().unwrap();
    assert_eq!(looked.last_sync.as_ref().unwrap().report.trigger, Trigger::Drain);
    assert_eq!(looked.draining, 1, "it waits");
    assert!(looked.longest_drain > Duration::ZERO, "{looked:?}");
    // One for each look, of which there may have been two meanwhile.
    let reads = kernel.state().real_server_reads;
    assert!((1..=2).contains(&reads), "{reads}");
    assert_eq!(kernel.writes(), "");

    active_connections(&kernel, web(), LEAVING, 0);
    let gone = running.status_where(|status| status.draining == 0);
    assert_eq!(kernel.writes(), "delete real server TCP 10.96.0.10:80 -> 10.244.0.2:8080\n");
    let report = gone.last_sync.unwrap().report;
    assert_eq!(
        (report.trigger, report.repairs.as_slice(), gone.longest_drain),
        (Trigger::Drain, &[][..], Duration::ZERO)
    );
    assert_eq!(kernel.state().full_reads, 0);
}

#[test]
fn an_endpoint_that_drains_for_longer_than_the_timeout_goes_with_its_connections() {
    let kernel = FakeKernel::new();
    let running = leaving(&kernel, BRIEF, 3);
    running.status_where(|status| status.draining == 0);
    let writes = kernel.writes();
    let weight = writes.find("edit real server TCP 10.96.0.10:80 -> 10.244.0.2:8080 weight 0\n").unwrap();
    let removal = writes.find("delete real server TCP 10.96.0.10:80 -> 10.244.0.2:8080\n").unwrap();
    assert!(weight < removal, "{writes}");
    assert_eq!(running.handle.status().unwrap().last_sync.unwrap().report.trigger, Trigger::Drain);
    assert!(!is_there(&kernel));
}

#[test]
fn after_a_restart_the_timeout_counts_from_the_first_look() {
    let kernel = FakeKernel::new();
    drop(leaving(&kernel, AT_ONCE, 3));
    assert!(is_there(&kernel));
    kernel.heal();
    let second = Running::timed(&kernel, BRIEF);
    let web = service("web", "10.96.0.10", Tcp);
    second.lists(vec![web], vec![slice("web", Tcp, &["10.244.0.1"])]);
    second.kernel_where(|state| !has_leaving(state));
    assert_eq!(
        second.status_where(|status| status.draining == 0).last_sync.unwrap().report.trigger,
        Trigger::Drain
    );
}

#[test]
fn a_removal_at_the_timeout_that_fails_is_tried_again() {
    let kernel = FakeKernel::new();
    let running = leaving(&kernel, BRIEF, 3);
    // One call reads the real servers, the next removes one.
    kernel.fail_call(1, Errno::ENOMEM);
    running.status_where(|status| status.last_sync.as_ref().unwrap().report.failed == 1);
    assert!(is_there(&kernel));
    running.status_where(|status| status.draining == 0);
    assert!(!is_there(&kernel));
}

#[test]
fn an_endpoint_that_comes_back_drains_from_the_beginning_when_it_leaves_again() {
    let kernel = FakeKernel::new();
    let running = leaving(&kernel, AT_ONCE, 1);
    let before =
        running.status_where(|status| status.longest_drain > Duration::from_millis(200)).longest_drain;
    running.tell(Change::Slices(Event::Apply(slice("web", Tcp, &["10.244.0.1", LEAVING]))));
    running.settled();
    assert_eq!(running.handle.status().unwrap().draining, 0);
    running.tell(Change::Slices(Event::Apply(slice("web", Tcp, &["10.244.0.1"]))));
    running.settled();
    let status = running.handle.status().unwrap();
    assert_eq!(status.draining, 1);
    assert!(status.longest_drain < before, "{status:?}");
}
