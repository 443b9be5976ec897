//! An emptied table of virtual servers, of which the kernel sends no notification, is noticed long before the period.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use crate::common::{Running, Setup, at, service, slice};
use ipvs::{Protocol::Tcp, Scheduler};
use netlink::Errno;
use reconciler::{Observer, SyncEvent, Timing, Trigger};
use service::{Change, Event};
use testkit::FakeKernel;

/// No other reason leads to a sync in time.
const SLOW: Timing = Timing {
    sync_period: Duration::from_secs(3_600),
    min_sync_period: Duration::from_secs(60),
    drain_timeout: None,
    tcp_timeout: Timing::TCP_TIMEOUT,
};

/// What observers are called for: a loss as `None`, after it each sync with the number of virtual servers still lost.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<Option<usize>>>>);

impl Observer for Seen {
    fn on_loss(&mut self) {
        self.0.lock().unwrap().push(None);
    }

    fn on_sync(&mut self, sync: &SyncEvent<'_>) {
        self.0.lock().unwrap().push(Some(sync.stats.lost_virtual_servers));
    }
}

/// Two Services, and the kernel as they want it.
fn served() -> (Running, Seen) {
    let seen = Seen::default();
    let setup = Setup { timing: SLOW, observers: vec![Box::new(seen.clone())], ..Setup::default() };
    let running = Running::with(&FakeKernel::new(), setup);
    running.lists(
        vec![service("web", "10.96.0.10", Tcp), service("dns", "10.96.0.53", Tcp)],
        vec![slice("web", Tcp, &["10.244.0.1"]), slice("dns", Tcp, &["10.244.0.5"])],
    );
    running.kernel.heal();
    seen.0.lock().unwrap().clear();
    (running, seen)
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
    let (running, seen) = served();
    let before = running.kernel.state().virtual_servers.clone();
    running.kernel.state().virtual_servers.clear();
    repaired_within(&running, 2);
    assert_eq!(running.kernel.state().virtual_servers, before);
    assert_eq!(*seen.0.lock().unwrap(), [None, Some(0)]);
}

#[test]
fn each_virtual_server_is_looked_for_in_turn() {
    let (running, _) = served();
    _ = running.kernel.state().virtual_servers.remove(&at("10.96.0.53", Tcp).into());
    repaired_within(&running, 4);
}

#[test]
fn what_was_lost_counts_until_the_kernel_takes_it_back() {
    let (running, seen) = served();
    running.kernel.state().missing_schedulers.insert(Scheduler::RR);
    running.kernel.state().virtual_servers.clear();
    running.status_where(|_| seen.0.lock().unwrap().contains(&Some(2)));
    running.kernel.state().missing_schedulers.clear();
    running.handle.resync().unwrap();
    running.status_where(|_| seen.0.lock().unwrap().last() == Some(&Some(0)));
    assert_eq!(running.kernel.state().virtual_servers.len(), 2);
    assert_eq!(seen.0.lock().unwrap().first(), Some(&None));
}

#[test]
fn what_the_kernel_refused_before_a_loss_does_not_count_as_lost() {
    let (running, seen) = served();
    // The fake kernel refuses a real server with a multicast address.
    running.tell(Change::Slices(Event::Apply(slice("dns", Tcp, &["10.244.0.5", "224.0.0.1"]))));
    running.handle.resync().unwrap();
    seen.0.lock().unwrap().clear();
    running.kernel.state().virtual_servers.clear();
    running.status_where(|_| seen.0.lock().unwrap().last() == Some(&Some(0)));
    assert!(running.handle.status().unwrap().last_sync.unwrap().report.failed > 0);
}

#[test]
fn a_kernel_that_does_not_say_what_it_has_is_compared_and_has_lost_nothing() {
    let (running, seen) = served();
    running.kernel.fail_call(0, Errno::ENODEV);
    let full = |running: &Running| running.kernel.state().summary_reads;
    running.status_where(|_| full(&running) == 1);
    assert_eq!(running.kernel.writes(), "");
    running.status_where(|_| !seen.0.lock().unwrap().is_empty());
    assert_eq!(*seen.0.lock().unwrap(), [Some(0)]);
}
