//! Deleting ten stale flows from a conntrack table of a million entries, and what a sync beside it feels of that.
//!
//! In a fresh network namespace. Needs root, ip_vs, 1 GiB of memory and a limit (`nf_conntrack_max`) that lets so
//! many entries in; a guest is a good place:
//!
//! ```text
//! cargo xtask vm --memory 4096 -- sh -c '
//!     echo 262144 >/sys/module/nf_conntrack/parameters/hashsize
//!     echo 2000000 >/proc/sys/net/netfilter/nf_conntrack_max
//!     $(cargo bench --no-run … | the executable)'
//! ```
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a measurement that cannot go on must stop, not report"
)]

use std::{
    collections::BTreeSet,
    net::Ipv4Addr,
    process::Command,
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use dummy_interface::{KernelDummyInterface, VipBinding};
use ipvs::{Family, KernelIpvs, Protocol, ServiceAddress};
use netfilter::{
    HostFirewall, KernelNetfilter, LocalTraffic, Policy,
    conntrack::{Conntrack, KernelConntrack, StaleFlows},
};
use netlink::{Batch, Encoder, Socket};
use nix::sched::{CloneFlags, unshare};
use reconciler::{Callbacks, Handle, Timing};
use service::{
    Change, Endpoint, EndpointPort, EndpointSlice, Event, ObjectName, Options, Service, ServicePort, State,
};
use watcher::{Foreign, Kernel, Ownership};

const SIZES: [u32; 3] = [10_000, 100_000, 1_000_000];
const STALE: u32 = 10;
const SYNCS: u8 = 100;
const PAUSE: Duration = Duration::from_millis(10);

fn main() {
    unshare(CloneFlags::CLONE_NEWNET).expect("root is needed");
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
    assert!(up.is_ok_and(|status| status.success()), "ip link set lo up");
    let reconciler = start();
    println!(
        "| entries | {STALE} deleted in | a sync alone, median (longest) | a sync beside, median (longest) |"
    );
    println!("|---|---|---|---|");
    let mut filled = 0;
    for size in SIZES {
        fill(filled..size);
        filled = size;
        let deletion = delete(size);
        let alone = syncs(&reconciler);
        let beside = beside_deletions(|| syncs(&reconciler));
        println!("| {size} | {} | {} | {} |", ms(deletion), spread(alone), spread(beside));
    }
}

fn ms(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}

fn spread(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    format!("{} ({})", ms(times[times.len() / 2]), ms(times[times.len() - 1]))
}

/// Flows of UDP and TCP clients, three of ten by UDP, to the Services of a cluster.
fn fill(numbers: std::ops::Range<u32>) {
    let mut socket = Socket::open(netlink::Protocol::Netfilter).unwrap();
    let numbers: Vec<_> = numbers.collect();
    for some in numbers.chunks(2_000) {
        let mut batch = Batch::default();
        for number in some {
            let client = Ipv4Addr::from(0x0b00_0000 + number);
            let [.., third, fourth] = number.to_be_bytes();
            let vip = Ipv4Addr::new(10, 97, third, fourth);
            let protocol = if number % 10 < 3 { 17 } else { 6 };
            insert(&mut batch, protocol, client, vip, Ipv4Addr::new(10, 244, third, 9));
        }
        let refused = socket.pipeline(&mut batch).unwrap();
        assert!(refused.is_empty(), "is nf_conntrack_max too low? {:?}", refused[0]);
    }
}

/// Appends what creates an entry (include/uapi/linux/netfilter/nfnetlink_conntrack.h).
fn insert(batch: &mut Batch, protocol: u8, client: Ipv4Addr, vip: Ipv4Addr, pod: Ipv4Addr) {
    const CREATE: u16 = 0x400;
    const CONFIRMED_AND_ANSWERED: u32 = 0xe;
    let tuple = |encoder: &mut Encoder<'_>, kind, from: (Ipv4Addr, u16), to: (Ipv4Addr, u16)| {
        encoder.nest(kind, |tuple| {
            tuple.nest(1, |ip| {
                ip.bytes(1, &from.0.octets());
                ip.bytes(2, &to.0.octets());
            });
            tuple.nest(2, |proto| {
                proto.u8(1, protocol);
                proto.u16_be(2, from.1);
                proto.u16_be(3, to.1);
            });
        });
    };
    batch.add(0x100, CREATE, |encoder| {
        encoder.raw(&[2, 0, 0, 0]);
        tuple(encoder, 1, (client, 40_000), (vip, 53));
        tuple(encoder, 2, (pod, 8053), (client, 40_000));
        encoder.u32_be(3, CONFIRMED_AND_ANSWERED);
        encoder.u32_be(7, 100_000);
        if protocol == 6 {
            encoder.nest(4, |info| info.nest(1, |tcp| tcp.u8(1, 3)));
        }
    });
}

/// How long it takes to delete the flows of ten clients from a table of this size.
fn delete(size: u32) -> Duration {
    let (vip, pod) = (Ipv4Addr::new(10, 96, 0, 53), Ipv4Addr::new(10, 244, 1, 2));
    let mut batch = Batch::default();
    (0..STALE).for_each(|client| insert(&mut batch, 17, Ipv4Addr::from(0x0a80_0000 + client), vip, pod));
    Socket::open(netlink::Protocol::Netfilter).unwrap().pipeline(&mut batch).unwrap();
    let to = ServiceAddress { protocol: Protocol::Udp, ip: vip.into(), port: 53 };
    let flows = StaleFlows::from_iter([(to, BTreeSet::new())]);
    let (mut conntrack, start) = (KernelConntrack::open().unwrap(), Instant::now());
    let deleted = conntrack.delete(&flows).unwrap().total();
    assert_eq!(deleted, 10, "of {size}");
    start.elapsed()
}

/// Does `work` while one deletion after the other goes on, without the rest that the daemon takes.
fn beside_deletions<T>(work: impl FnOnce() -> T) -> T {
    let (begin, done) = (Barrier::new(2), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            begin.wait();
            while !done.load(Ordering::Relaxed) {
                delete(0);
            }
        });
        begin.wait();
        let result = work();
        done.store(true, Ordering::Relaxed);
        result
    })
}

/// A reconciler that has programmed one UDP Service.
fn start() -> Handle {
    let local_traffic = LocalTraffic::Source { ipv4: "10.244.0.0/16".parse().ok(), ipv6: None };
    let policy = Policy {
        masquerade_all: false,
        mark: 1 << 14,
        local_traffic,
        host_firewall: HostFirewall::default(),
        gue: false,
    };
    let kernel = Kernel {
        ipvs: Box::new(KernelIpvs::open().unwrap()),
        netfilter: Box::new(KernelNetfilter::open(&policy).unwrap()),
        dummy_interface: Box::new(KernelDummyInterface::open(VipBinding::Address).unwrap()),
    };
    let ours =
        Ownership { families: BTreeSet::from([Family::V4]), exclude: Vec::new(), foreign: Foreign::Delete };
    let hour = Duration::from_secs(3600);
    let timing = Timing {
        sync_period: hour,
        min_sync_period: Duration::ZERO,
        drain_timeout: None,
        tcp_timeout: Timing::TCP_TIMEOUT,
    };
    let state = State::new(Options::new("node"));
    let (handle, _thread) = reconciler::start(state, kernel, ours, timing, Callbacks::none()).unwrap();
    let service = Service {
        cluster_ips: vec![Ipv4Addr::new(10, 96, 0, 53).into()],
        ports: vec![ServicePort { name: "".into(), protocol: Protocol::Udp, port: 53, node_port: None }],
        ..Service::new(ObjectName::new("default", "dns"))
    };
    handle.change(Change::Services(Event::Replace(vec![service])));
    handle.change(Change::Slices(Event::Replace(vec![slice(0)])));
    synced(&handle);
    handle
}

/// The times from a changed endpoint to the end of its sync, a hundred times, with pauses: a deletion takes longer
/// than a hundred syncs.
fn syncs(handle: &Handle) -> Vec<Duration> {
    let sync = |endpoint| {
        thread::sleep(PAUSE);
        let start = Instant::now();
        handle.change(Change::Slices(Event::Apply(slice(endpoint))));
        synced(handle);
        start.elapsed()
    };
    (1..=SYNCS).map(sync).collect()
}

/// Waits for the sync of all earlier changes: the writer answers only after it.
fn synced(handle: &Handle) {
    while !handle.status().unwrap().synced {
        thread::yield_now();
    }
}

fn slice(endpoint: u8) -> EndpointSlice {
    EndpointSlice {
        ports: vec![EndpointPort { name: "".into(), protocol: Protocol::Udp, port: 8053 }],
        endpoints: vec![Endpoint::new(Ipv4Addr::new(10, 244, 2, endpoint).into())],
        ..EndpointSlice::new(
            ObjectName::new("default", "dns-1"),
            ObjectName::new("default", "dns"),
            Family::V4,
        )
    }
}
