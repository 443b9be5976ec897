//! A checked status: what differs although nothing is under way.

use std::time::Duration;

use crate::common::{AT_ONCE, LONG, Running, at, real, service, slice};
use ipvs::Protocol::Tcp;
use reconciler::{KernelDifference, Timing};
use service::{Change, Event};
use testkit::FakeKernel;

fn served(timing: Timing) -> Running {
    let running = Running::timed(&FakeKernel::new(), timing);
    running.lists(vec![service("web", "10.96.0.10", Tcp)], vec![slice("web", Tcp, &["10.244.0.1"])]);
    running
}

fn difference(running: &Running) -> KernelDifference {
    running.handle.checked_status().unwrap().difference.unwrap()
}

#[test]
fn what_another_program_removed_is_counted_by_kind_and_service_and_stays_removed() {
    let running = served(AT_ONCE);
    assert_eq!(difference(&running), KernelDifference::default());
    let web = at("10.96.0.10", Tcp).into();
    running.kernel.state().virtual_servers.get_mut(&web).unwrap().1.remove(&real("10.244.0.1"));
    let found = difference(&running);
    assert_eq!(found.first, ["add real server TCP 10.96.0.10:80 -> 10.244.0.1:8080 weight 1"]);
    assert_eq!(found.by_kind.into_values().sum::<usize>(), 1);
    assert_eq!(found.services.to_string(), "default/web");
    assert_eq!(difference(&running).first, found.first, "it is not repaired");
}

#[test]
fn a_change_that_waits_for_its_sync_is_not_counted() {
    let running = served(Timing { min_sync_period: Duration::from_secs(60), ..AT_ONCE });
    assert_eq!(running.handle.compare().unwrap().len(), 0);
    running.handle.change(Change::Slices(Event::Apply(slice("web", Tcp, &["10.244.0.1", "10.244.0.2"]))));
    assert_eq!(difference(&running), KernelDifference::default());
    assert!(!running.handle.compare().unwrap().is_empty(), "which diff shows");
}

#[test]
fn nothing_is_compared_before_the_lists_have_arrived() {
    let running = Running::timed(&FakeKernel::new(), Timing { sync_period: LONG, ..AT_ONCE });
    assert_eq!(running.handle.checked_status().unwrap().difference, None);
    assert_eq!(running.kernel.state().full_reads, 0);
}
