//! Whatever call to the kernel fails, the next sync makes everything as desired, and no real server
//! that serves is removed on the way.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on must stop")]

mod common;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use common::{Running, real, service, slice};
use ipvs::Protocol::{Tcp, Udp};
use netlink::Errno;
use service::{Change, EndpointSlice, Service};
use testkit::FakeKernel;

const ERRNOS: [Errno; 4] = [Errno::ENOMEM, Errno::EPERM, Errno::EINTR, Errno::EINVAL];

/// A Service at a port of the node and at an external address too.
fn web() -> Service {
    let mut web = service("web", "10.96.0.10", Tcp);
    web.external_ips = vec!["203.0.113.7".parse().unwrap()];
    web.ports.iter_mut().for_each(|port| port.node_port = 30080.try_into().ok());
    web
}

fn before() -> (Vec<Service>, Vec<EndpointSlice>) {
    let services = vec![
        service("kubernetes", "10.96.0.1", Tcp),
        service("web", "10.96.0.10", Tcp),
        service("gone", "10.96.0.11", Tcp),
        service("dns", "10.96.0.53", Udp),
    ];
    let slices = vec![
        slice("kubernetes", Tcp, &["192.168.0.1"]),
        slice("web", Tcp, &["10.244.0.1", "10.244.0.2"]),
        slice("gone", Tcp, &["10.244.0.3"]),
        slice("dns", Udp, &["10.244.0.4", "10.244.0.5"]),
    ];
    (services, slices)
}

fn after() -> (Vec<Service>, Vec<EndpointSlice>) {
    let services = vec![
        service("kubernetes", "10.96.0.1", Tcp),
        web(),
        service("dns", "10.96.0.53", Udp),
        service("new", "fd00::1", Tcp),
    ];
    let slices = vec![
        slice("kubernetes", Tcp, &["192.168.0.1"]),
        slice("web", Tcp, &["10.244.0.2", "10.244.0.6"]),
        slice("dns", Udp, &["10.244.0.5"]),
        slice("new", Tcp, &["fd00::a"]),
    ];
    (services, slices)
}

/// What a kernel looks like that was never disturbed, as text.
fn picture(kernel: &FakeKernel) -> String {
    let state = kernel.state();
    let elements: BTreeSet<_> = state.elements.iter().map(ToString::to_string).collect();
    format!("{:#?}\n{:#?}\n{:?}\n{elements:#?}", state.virtual_servers, state.links, state.tables)
}

/// A kernel whose node has an address.
fn kernel() -> FakeKernel {
    let kernel = FakeKernel::new();
    kernel.state().links.node_addresses.insert("192.0.2.1".parse().unwrap());
    kernel
}

fn undisturbed() -> String {
    let kernel = kernel();
    let running = Running::on(&kernel);
    let (services, slices) = after();
    running.lists(services, slices);
    picture(&kernel)
}

/// Real servers wanted both before and after: they serve all the time.
fn always_live() -> [String; 3] {
    [
        format!("delete real server TCP 10.96.0.10:80 -> {}", real("10.244.0.2")),
        format!("delete real server UDP 10.96.0.53:80 -> {}", real("10.244.0.5")),
        format!("delete real server TCP 10.96.0.1:80 -> {}", real("192.168.0.1")),
    ]
}

/// Programs the state before, then disturbs the kernel and tells the state after.
fn disturbed(disturb: impl Fn(&FakeKernel)) -> FakeKernel {
    let kernel = kernel();
    let running = Running::on(&kernel);
    let (services, slices) = before();
    running.lists(services, slices);
    kernel.heal();
    disturb(&kernel);
    let (services, slices) = after();
    running.tell(Change::ReplaceServices(services));
    running.tell(Change::ReplaceSlices(slices));
    forced_until_clean(&running);
    kernel
}

/// Forces syncs until one leaves nothing undone.
fn forced_until_clean(running: &Running) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let report = running.handle.resync().unwrap();
        if report.failed == 0 {
            return;
        }
        assert!(Instant::now() < deadline, "{report:?}");
    }
}

#[test]
fn any_single_failed_call_is_healed_by_the_next_sync() {
    let expected = undisturbed();
    let mut call = 0;
    loop {
        let mut reached = false;
        for errno in ERRNOS {
            let kernel = disturbed(|kernel| kernel.fail_call(call, errno));
            assert_eq!(picture(&kernel), expected, "call {call} failed with {errno}");
            let writes = kernel.writes();
            for deletion in always_live() {
                assert!(!writes.contains(&deletion), "call {call}, {errno}: {deletion}\n{writes}");
            }
            reached |= kernel.state().calls > call;
        }
        if !reached {
            break;
        }
        call += 1;
    }
    assert!(call > 20, "only {call} calls were disturbed");
}

#[test]
fn any_single_lost_answer_is_healed_by_the_next_sync() {
    let expected = undisturbed();
    for call in 0..40 {
        let kernel = disturbed(|kernel| kernel.lose_answer(call));
        assert_eq!(picture(&kernel), expected, "the answer to call {call} was lost");
    }
}

#[test]
fn a_kernel_that_was_cleared_behind_our_back_is_restored_by_a_forced_sync() {
    let kernel = FakeKernel::new();
    let running = Running::on(&kernel);
    let (services, slices) = after();
    running.lists(services, slices);
    let expected = picture(&kernel);
    {
        let mut state = kernel.state();
        state.virtual_servers.clear();
        state.links.bound.clear();
        state.links.device = false;
        state.tables.clear();
        state.elements.clear();
    }
    let report = running.handle.resync().unwrap();
    assert_eq!((report.failed, picture(&kernel)), (0, expected));
}

#[test]
fn a_full_read_that_fails_is_made_good_by_the_retry() {
    let kernel = FakeKernel::new();
    let running = Running::on(&kernel);
    let (services, slices) = after();
    running.lists(services, slices);
    let expected = picture(&kernel);
    kernel.state().virtual_servers.clear();
    // The first call of a full read.
    kernel.fail_call(0, Errno::ENOMEM);
    let report = running.handle.resync().unwrap();
    assert_eq!((report.failed, report.full), (1, false), "{report:?}");
    running.settled();
    assert_eq!(picture(&kernel), expected);
}
