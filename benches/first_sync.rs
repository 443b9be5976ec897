//! The first sync of many Services against the baseline of the same kernel operations, and the periodic sync that
//! finds nothing to do against the readings that there are of the same kernel.
//!
//! The baseline is a batch of requests that is encoded and sent with one acknowledgement: what the
//! kernel itself needs. Both run in a fresh network namespace on the same kernel. Needs root and
//! ip_vs:
//!
//! ```text
//! cargo xtask vm -- $(cargo bench --no-run … | the executable)
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a measurement that cannot go on must stop, not report"
)]

use std::{
    collections::BTreeSet,
    process::Command,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use dummy_interface::{KernelDummyInterface, VipBinding};
use ipvs::{Family, KernelIpvs, Protocol};
use netfilter::{KernelNetfilter, Operation};
use nix::sched::{CloneFlags, unshare};
use reconciler::{Callbacks, Handle, Timing, Trigger};
use service::{Endpoint, EndpointPort, EndpointSlice, ObjectName, Options, Service, ServicePort, State};
use testkit::kernel_baseline::{self, PORT, Size, TARGET_PORT, pod, policy, vip};
use watcher::{Foreign, Kernel, Observed, Ownership, diff_everything};

const SIZES: [Size; 2] = [Size { services: 1_000, endpoints: 5 }, Size { services: 10_000, endpoints: 5 }];

fn main() {
    println!(
        "| Services × endpoints | VIPs as | baseline | first sync | ratio | read, diff, IPVS, nf_tables, VIPs |"
    );
    println!("|---|---|---|---|---|---|");
    for size in SIZES {
        for (name, binding) in bindings() {
            let baseline = fresh(move || kernel_baseline::write(size, binding).unwrap());
            let sync = fresh(move || sync(size, binding));
            let parts = fresh(move || parts(size, binding));
            let Size { services, endpoints } = size;
            println!(
                "| {services} × {endpoints} | {name} | {} | {} | {:.2} | {} |",
                ms(baseline),
                ms(sync),
                sync.as_secs_f64() / baseline.as_secs_f64(),
                parts.map(ms).join(", "),
            );
        }
    }
    periods();
}

/// Medians of so many.
const PERIODS: usize = 7;

fn periods() {
    println!(
        "\n| Services × endpoints | VIPs as | IPVS by netlink | its virtual servers | as text | the rest | everything read anew | periodic sync | × text and rest |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for size in SIZES {
        for (name, binding) in bindings() {
            let Size { services, endpoints } = size;
            let [netlink, servers, text, rest, anew, period] = fresh(move || period(size, binding));
            println!(
                "| {services} × {endpoints} | {name} | {} | {} | {} | {} | {} | {} | {:.2} |",
                ms(netlink),
                ms(servers),
                ms(text),
                ms(rest),
                ms(anew),
                ms(period),
                period.as_secs_f64() / (text + rest).as_secs_f64(),
            );
        }
    }
}

/// Between two periodic syncs everything is read in every way, so that other work on the machine is a burden to all.
fn period(size: Size, binding: VipBinding) -> [Duration; 6] {
    let (_, handle, thread) = synced(size, binding, Duration::from_secs(2));
    let last_full = || handle.status().unwrap().last_full_sync.map(|last| (last.report, last.age));
    let mut measured: [Vec<Duration>; 6] = Default::default();
    let mut ended = Instant::now();
    while measured[0].len() < PERIODS {
        thread::sleep(Duration::from_millis(5));
        let Some((report, age)) = last_full() else { continue };
        let now = Instant::now().checked_sub(age).unwrap();
        if report.trigger != Trigger::Period || now < ended + Duration::from_millis(100) {
            continue;
        }
        ended = now;
        assert_eq!((report.done, report.failed), (0, 0), "{report:?}");
        let read = kernel_baseline::read(binding).unwrap();
        let anew = handle.resync().unwrap();
        let figures = [
            read.ipvs_by_netlink,
            read.virtual_servers,
            read.ipvs_as_text,
            read.rest,
            anew.took,
            report.took,
        ];
        measured.iter_mut().zip(figures).for_each(|(all, figure)| all.push(figure));
    }
    handle.stop().unwrap();
    thread.join().unwrap();
    measured.map(|mut all| {
        all.sort_unstable();
        all.swap_remove(PERIODS / 2)
    })
}

fn bindings() -> [(&'static str, VipBinding); 2] {
    let route = VipBinding::Route { source_v4: None, source_v6: None };
    [("addresses", VipBinding::Address), ("routes", route)]
}

/// Runs `work` in a network namespace of its own.
fn fresh<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let namespaced = move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("root is needed");
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
        assert!(up.is_ok_and(|status| status.success()), "ip link set lo up");
        work()
    };
    thread::spawn(namespaced).join().expect("the measurement failed")
}

fn ms(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}

fn objects(size: Size) -> (Vec<Service>, Vec<EndpointSlice>) {
    let name = |number: u32| ObjectName::new("default", format!("service-{number}"));
    let service = |number| Service {
        created: Some(0),
        cluster_ips: vec![vip(number).into()],
        ports: vec![ServicePort { name: "".into(), protocol: Protocol::Tcp, port: PORT, node_port: None }],
        ..Service::new(name(number))
    };
    let endpoint = |address| Endpoint { node: Some("elsewhere".into()), ..Endpoint::new(address) };
    let slice = |number: u32| EndpointSlice {
        ports: vec![EndpointPort { name: "".into(), protocol: Protocol::Tcp, port: TARGET_PORT }],
        endpoints: size.endpoints_of(number).map(|number| endpoint(pod(number).into())).collect(),
        ..EndpointSlice::new(
            ObjectName::new("default", format!("service-{number}-1")),
            name(number),
            Family::V4,
        )
    };
    ((0..size.services).map(service).collect(), (0..size.services).map(slice).collect())
}

fn state() -> State {
    State::new(Options::new("node"))
}

fn kernel(binding: VipBinding) -> Kernel {
    Kernel {
        ipvs: Box::new(KernelIpvs::open().unwrap()),
        netfilter: Box::new(KernelNetfilter::open(&policy()).unwrap()),
        dummy_interface: Box::new(KernelDummyInterface::open(binding).unwrap()),
    }
}

fn ownership() -> Ownership {
    Ownership { families: BTreeSet::from([Family::V4]), exclude: Vec::new(), foreign: Foreign::Delete }
}

/// From the last list to the end of the first sync, by the reconciler itself.
fn sync(size: Size, binding: VipBinding) -> Duration {
    let (took, handle, thread) = synced(size, binding, Duration::from_secs(3600));
    handle.stop().unwrap();
    thread.join().unwrap();
    took
}

/// A reconciler after its first sync, and what that took from the last list on.
fn synced(size: Size, binding: VipBinding, sync_period: Duration) -> (Duration, Handle, JoinHandle<()>) {
    let (list, slices) = objects(size);
    let timing = Timing {
        sync_period,
        min_sync_period: Duration::ZERO,
        drain_timeout: None,
        tcp_timeout: Timing::TCP_TIMEOUT,
    };
    let unheard = Callbacks::none();
    let (handle, thread) = reconciler::start(state(), kernel(binding), ownership(), timing, unheard).unwrap();
    handle.change(service::Change::Services(service::Event::Replace(list)));
    handle.status().unwrap();
    let start = Instant::now();
    handle.change(service::Change::Slices(service::Event::Replace(slices)));
    while handle.status().unwrap().last_sync.is_none() {
        thread::sleep(Duration::from_micros(200));
    }
    let took = start.elapsed();
    let report = handle.status().unwrap().last_sync.unwrap().report;
    assert_eq!(report.failed, 0, "{report:?}");
    (took, handle, thread)
}

/// The phases one by one.
fn parts(size: Size, binding: VipBinding) -> [Duration; 5] {
    let (list, slices) = objects(size);
    let (mut state, mut kernel) = (state(), kernel(binding));
    state.apply(service::Change::Services(service::Event::Replace(list)));
    state.apply(service::Change::Slices(service::Event::Replace(slices)));
    kernel.dummy_interface.apply(&[dummy_interface::Operation::EnsureDevice]).unwrap();
    kernel.netfilter.apply(&[Operation::InstallTable(Family::V4)]).unwrap();

    let (read, image) = timed(|| Observed::read(&mut kernel).unwrap());
    let (compared, plan) = timed(|| diff_everything(&state, &image, &ownership()));
    let (mut commands, mut changes, mut vips) = (Vec::new(), Vec::new(), Vec::new());
    for batch in plan.batches {
        match batch {
            watcher::Batch::Ipvs(more) => commands.extend(more),
            watcher::Batch::Netfilter(more) => changes.extend(more),
            watcher::Batch::DummyInterface(more) => vips.extend(more),
        }
    }
    let (elements, ()) = timed(|| kernel.netfilter.apply(&changes).unwrap());
    let (servers, _) = timed(|| kernel.ipvs.apply(&commands).unwrap());
    let (bound, _) = timed(|| kernel.dummy_interface.apply(&vips).unwrap());
    [read, compared, servers, elements, bound]
}

fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let done = work();
    (start.elapsed(), done)
}
