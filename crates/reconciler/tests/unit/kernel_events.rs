//! Changes that the kernel reports are checked at once, and nothing else is.

use crate::common::{Running, at, service, slice};
use dummy_interface::Changed;
use ipvs::{Family, Protocol::Tcp};
use netfilter::Element;
use netlink::Errno;
use reconciler::{SyncReport, Trigger};
use testkit::FakeKernel;

const VIP: &str = "10.96.0.10";

fn web() -> Running {
    let running = Running::on(&FakeKernel::new());
    running.lists(vec![service("web", VIP, Tcp)], vec![slice("web", Tcp, &["10.244.0.1"])]);
    running.kernel.heal();
    running
}

/// The report of the last sync that was about something.
fn last(running: &Running) -> SyncReport {
    running.handle.status().unwrap().last_sync.unwrap().report
}

/// Deletes one of our tables as another program would.
fn delete_table(running: &Running, family: Family) {
    let mut kernel = running.kernel.state();
    kernel.tables.remove(&family);
    kernel.elements.retain(|element| element.family() != family);
}

fn tables_are_whole(kernel: &testkit::fake_kernel::State) -> bool {
    kernel.tables.len() == 2 && kernel.elements.contains(&Element::ClusterIp(at(VIP, Tcp)))
}

#[test]
fn deleted_table_is_restored_with_its_elements_and_nothing_else_is_read() {
    let running = web();
    delete_table(&running, Family::V4);
    running.handle.tables_changed();
    running.kernel_where(tables_are_whole);
    let writes = running.kernel.writes();
    assert!(writes.starts_with("prepare table IPv4\nadd element "), "{writes}");
    assert!(writes.ends_with("\ninstall table IPv4\n"), "{writes}");
    assert!(writes.lines().all(|line| line.contains(" table IPv4") || line.starts_with("add element")));
    let reads = running.kernel.state().calls - writes.lines().count();
    assert_eq!((reads, running.kernel.state().full_reads), (1, 0));
    let report = last(&running);
    assert_eq!((report.trigger, report.full), (Trigger::TablesChanged, false));
    assert_eq!(report.repairs, writes.lines().collect::<Vec<_>>());
}

#[test]
fn a_foreign_element_is_removed() {
    let running = web();
    let foreign = Element::ClusterIp(at("10.96.0.99", Tcp));
    running.kernel.state().elements.insert(foreign);
    running.handle.tables_changed();
    running.kernel_where(|kernel| !kernel.elements.contains(&foreign));
    assert_eq!(running.kernel.writes(), "delete element cluster-ips TCP 10.96.0.99:80\n");
}

#[test]
fn kube_ipvs0_and_a_table_that_go_at_the_same_time_come_back_together() {
    let running = web();
    delete_table(&running, Family::V4);
    {
        let mut kernel = running.kernel.state();
        kernel.dummy_interface.device = false;
        kernel.dummy_interface.bound.clear();
    }
    running.handle.kernel_changed(Changed { everything: true, ..Changed::default() });
    running.handle.tables_changed();
    running.kernel_where(|kernel| tables_are_whole(kernel) && kernel.is_bound(VIP.parse().unwrap()));
    assert_eq!(running.kernel.state().full_reads, 0);
}

#[test]
fn tables_that_could_not_be_read_are_read_by_the_retry() {
    let running = web();
    delete_table(&running, Family::V6);
    running.kernel.fail_call(0, Errno::ENOBUFS);
    running.handle.tables_changed();
    running.kernel_where(tables_are_whole);
}

#[test]
fn echo_of_the_kernel_is_not_the_last_sync_of_the_status() {
    let running = web();
    assert_eq!(last(&running).trigger, Trigger::Start);
    let everything = Changed { everything: true, ..Changed::default() };
    running.handle.kernel_changed(everything.clone());
    running.kernel_where(|kernel| kernel.calls > 0);
    running.settled();
    assert_eq!(last(&running).trigger, Trigger::Start);

    // But that a failure is over is worth knowing.
    running.kernel.state().dummy_interface.bound.clear();
    running.kernel.fail_call(1, Errno::EPERM);
    running.handle.kernel_changed(everything.clone());
    running.status_where(|status| !status.synced);
    running.kernel.state().dummy_interface.bound.insert(VIP.parse().unwrap());
    running.handle.kernel_changed(everything);
    running.settled();
    assert_eq!((last(&running).done, last(&running).failed), (0, 0));
}
