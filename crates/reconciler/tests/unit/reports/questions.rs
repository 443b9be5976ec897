//! Questions that the writer thread answers without a change.

use crate::common::{Running, at, real, service, slice};
use ipvs::{Protocol::Tcp, Scheduler, SchedulerSupport};
use netlink::Errno;
use reconciler::Unanswered;
use service::{NotServed, ObjectName};
use testkit::FakeKernel;

#[test]
fn before_both_lists_have_arrived_there_is_no_answer() {
    let running = Running::on(&FakeKernel::new());
    let web = ObjectName::new("default", "web");
    assert!(matches!(running.handle.compare(), Err(Unanswered::NotListed)));
    assert!(matches!(running.handle.explain(web.clone(), None), Err(Unanswered::NotListed)));
    running.lists(Vec::new(), Vec::new());
    assert!(running.handle.compare().unwrap().is_empty());
    assert_eq!(running.handle.explain(web, None).unwrap().not_served, Some(NotServed::Unknown));
}

#[test]
fn comparison_shows_what_a_resync_then_does_and_changes_nothing() {
    let running = Running::on(&FakeKernel::new());
    let endpoints = ["10.244.0.1", "10.244.0.2"];
    running.lists(vec![service("web", "10.96.0.10", Tcp)], vec![slice("web", Tcp, &endpoints)]);
    {
        let mut kernel = running.kernel.state();
        let (_, real_servers) = kernel.virtual_servers.get_mut(&at("10.96.0.10", Tcp).into()).unwrap();
        real_servers.remove(&real("10.244.0.2"));
        kernel.writes.clear();
    }
    let plan = running.handle.compare().unwrap();
    assert_eq!(plan.to_string(), "add real server TCP 10.96.0.10:80 -> 10.244.0.2:8080 weight 1\n");
    assert_eq!(running.kernel.writes(), "");
    assert_eq!(running.handle.resync().unwrap().done, plan.len());
    assert!(running.handle.compare().unwrap().is_empty());
}

#[test]
fn where_the_kernel_cannot_be_read_the_answer_says_so_and_the_daemon_goes_on() {
    let running = Running::on(&FakeKernel::new());
    running.lists(vec![service("web", "10.96.0.10", Tcp)], Vec::new());
    running.kernel.fail_call(1, Errno::EPERM);
    assert!(matches!(running.handle.compare(), Err(Unanswered::Unread(_))));
    running.kernel.heal();
    assert!(running.handle.compare().unwrap().is_empty());
}

#[test]
fn scheduler_is_probed_anew_each_time_and_the_probe_leaves_nothing_behind() {
    let running = Running::on(&FakeKernel::new());
    let find = |scheduler| running.handle.probe_scheduler(scheduler);
    running.kernel.state().missing_schedulers.insert(Scheduler::SED);
    let refused = |found| matches!(found, Ok(SchedulerSupport::Refused(refusal)) if refusal.errno() == Errno::ENOENT as i32);
    assert!(refused(find(Scheduler::SED)), "before the lists too");
    running.lists(vec![service("web", "10.96.0.10", Tcp)], Vec::new());
    assert!(refused(find(Scheduler::SED)));
    running.kernel.heal();
    assert_eq!(find(Scheduler::RR).unwrap(), SchedulerSupport::Supported);
    running.kernel.state().dangerous_schedulers.insert(Scheduler::LBLC);
    assert_eq!(find(Scheduler::LBLC).unwrap(), SchedulerSupport::NotLoaded);
    assert_eq!(running.kernel.writes(), "", "one is in use, the other must not be asked for");
    running.kernel.state().missing_schedulers.clear();
    assert_eq!(find(Scheduler::SED).unwrap(), SchedulerSupport::Supported);
    running.kernel.fail_call(0, Errno::EPERM);
    assert!(matches!(find(Scheduler::SED), Err(Unanswered::Unread(_))));
    assert_eq!(running.kernel.state().virtual_servers.len(), 1);
}
