//! An emptied table of virtual servers, of which the kernel sends no notification, is noticed long before the period.

use std::time::{Duration, Instant};

use crate::common::{Running, at, service, slice};
use ipvs::Protocol::Tcp;
use netlink::Errno;
use reconciler::{Timing, Trigger};
use testkit::FakeKernel;

/// No other reason leads to a sync in time.
const SLOW: Timing = Timing {
    sync_period: Duration::from_secs(3_600),
    min_sync_period: Duration::from_secs(60),
    drain_timeout: None,
    tcp_timeout: Timing::TCP_TIMEOUT,
};

/// Two Services, and the kernel as they want it.
fn served() -> Running {
    let running = Running::timed(&FakeKernel::new(), SLOW);
    running.lists(
        vec![service("web", "10.96.0.10", Tcp), service("dns", "10.96.0.53", Tcp)],
        vec![slice("web", Tcp, &["10.244.0.1"]), slice("dns", Tcp, &["10.244.0.5"])],
    );
    running.kernel.heal();
    running
}

/// Waits for the repair, and expects it within this many seconds.
fn repaired_within(running: &Running, seconds: u64) {
    let begin = Instant::now();
    let status = running.status_where(|status| status.last_repair.is_some());
    assert_eq!(status.last_repair.unwrap().report.trigger, Trigger::VirtualServerLost);
    assert!(begin.elapsed() < Duration::from_secs(seconds), "{:?}", begin.elapsed());
}

#[test]
fn an_emptied_table_is_repaired_within_two_seconds_whatever_the_period() {
    let running = served();
    let before = running.kernel.state().virtual_servers.clone();
    running.kernel.state().virtual_servers.clear();
    repaired_within(&running, 2);
    assert_eq!(running.kernel.state().virtual_servers, before);
}

#[test]
fn each_virtual_server_is_looked_for_in_turn() {
    let running = served();
    _ = running.kernel.state().virtual_servers.remove(&at("10.96.0.53", Tcp).into());
    repaired_within(&running, 4);
}

#[test]
fn a_kernel_that_does_not_say_what_it_has_is_compared() {
    let running = served();
    running.kernel.fail_call(0, Errno::ENODEV);
    let full = |running: &Running| running.kernel.state().summary_reads;
    running.status_where(|_| full(&running) == 1);
    assert_eq!(running.kernel.writes(), "");
}
