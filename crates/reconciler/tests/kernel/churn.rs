//! Thousands of Services of which each changes every second, on a real kernel.

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, Ipv4Addr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::common::{service, slice};
use dummy_interface::{KernelDummyInterface, VipBinding};
use ipvs::{Family, Ipvs as _, KernelIpvs, Protocol, ServiceAddress, VirtualServerId};
use netfilter::{KernelNetfilter, LocalTraffic, Policy};
use reconciler::{Callbacks, Handle, Observer, SyncEvent, Timing, Trigger, start};
use service::{Change, EndpointSlice, Event, Options, Service, State};
use testkit::{
    lab::{Host, Lab},
    patience::patience,
};
use watcher::{Foreign, Kernel, Ownership};

const SERVICES: u16 = 5_000;
/// How often each of them changes, once a second.
const ROUNDS: u32 = 10;
/// How long they change after that, as fast as they can be sent.
const FLOOD: Duration = Duration::from_secs(5);
/// One in so many gets another endpoint each time; each gets another timeout.
const MOVES: u16 = 20;
/// The most memory, in KiB, that this takes beyond what the Services themselves take.
const ROOM: u64 = 16 << 10;
/// How long the kernel may take for the first sync, and for the last.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often the kernel was synced, and what the last sync had no time for.
#[derive(Clone, Default)]
pub(crate) struct Syncs {
    count: Arc<AtomicUsize>,
    left: Arc<AtomicUsize>,
    /// How often it was compared with its image.
    comparisons: Arc<AtomicUsize>,
    /// What seemed to be changed by another program.
    repairs: Arc<Mutex<Vec<String>>>,
}

impl Observer for Syncs {
    fn on_sync(&mut self, sync: &SyncEvent<'_>) {
        self.left.store(sync.report.left, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.comparisons.fetch_add(usize::from(sync.report.trigger == Trigger::Period), Ordering::Relaxed);
        self.repairs.lock().unwrap().extend(sync.report.repairs.iter().cloned());
    }
}

impl Syncs {
    fn so_far(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }
}

fn vip(number: u16) -> Ipv4Addr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(10, 97, high, low)
}

/// The Service as it is in this round.
fn wanted(number: u16, round: u32) -> Service {
    let session_affinity = Some(1 + (round + u32::from(number)) % 80_000);
    Service { session_affinity, ..service(&format!("web-{number}"), &vip(number).to_string(), Protocol::Tcp) }
}

/// Its pod: in the round before, it had another.
fn pod(number: u16, round: u32) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    let [.., place] = round.to_be_bytes();
    IpAddr::from([10, 128 | place, high, low])
}

fn endpoints(number: u16, round: u32) -> EndpointSlice {
    slice(&format!("web-{number}"), Protocol::Tcp, &[&pod(number, round).to_string()])
}

fn moves(number: u16) -> bool {
    number.is_multiple_of(MOVES)
}

/// Starts the writer thread on this node.
pub(crate) fn on(node: &Host, sync_period: Duration, syncs: Syncs) -> Handle {
    let policy =
        Policy::new(LocalTraffic::Source { ipv4: Some("10.128.0.0/9".parse().unwrap()), ipv6: None });
    node.inside(move || {
        let kernel = Kernel {
            ipvs: Box::new(KernelIpvs::open().unwrap()),
            netfilter: Box::new(KernelNetfilter::open(&policy).unwrap()),
            dummy_interface: Box::new(KernelDummyInterface::open(VipBinding::Address).unwrap()),
        };
        let ours = Ownership { families: [Family::V4].into(), exclude: Vec::new(), foreign: Foreign::Delete };
        let timing = Timing {
            sync_period,
            min_sync_period: Duration::ZERO,
            drain_timeout: None,
            tcp_timeout: Timing::TCP_TIMEOUT,
        };
        let callbacks = Callbacks {
            notices: Box::new(drop),
            stale_flows: Box::new(drop),
            observers: vec![Box::new(syncs)],
        };
        start(State::new(Options::new("node")), kernel, ours, timing, callbacks).unwrap().0
    })
    .unwrap()
}

/// A number of KiB in the status of this process.
fn kibibytes(what: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap();
    line.split_whitespace().find_map(|word| word.parse().ok()).unwrap()
}

/// The timeout and the real servers of each virtual server.
type Table = BTreeMap<ServiceAddress, (u32, Vec<IpAddr>)>;

fn table(node: &Host) -> Table {
    node.inside(|| {
        let mut ipvs = KernelIpvs::open().unwrap();
        let mut table = Table::new();
        for server in ipvs.virtual_servers().unwrap() {
            let VirtualServerId::Address(address) = server.config.id else { continue };
            let real = ipvs.real_servers(server.config.id).unwrap();
            let real = real.iter().map(|real| real.config.address.ip).collect();
            table.insert(address, (server.config.timeout, real));
        }
        table
    })
    .unwrap()
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn thousands_of_services_changing_every_second_are_programmed_in_bounded_memory() {
    let lab = Lab::new(0, 8080).unwrap();
    let syncs = Syncs::default();
    // Changes interrupt the comparisons.
    let handle = on(&lab.node, Duration::from_secs(2), syncs.clone());
    let tell = |change| handle.change(change);
    tell(Change::Services(Event::Replace((0..SERVICES).map(|number| wanted(number, 0)).collect())));
    tell(Change::Slices(Event::Replace((0..SERVICES).map(|number| endpoints(number, 0)).collect())));
    let settled = || {
        let deadline = Instant::now() + patience(PATIENCE);
        loop {
            let status = handle.status().unwrap();
            if status.synced && status.draining == 0 {
                break;
            }
            assert!(Instant::now() < deadline, "{status:?}");
            thread::sleep(Duration::from_millis(20));
        }
    };
    settled();
    assert_eq!(table(&lab.node).len(), usize::from(SERVICES));

    // What the highest mark was so far is forgotten.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let (before, syncs_before) = (kibibytes("VmRSS:"), syncs.so_far());
    let comparisons_before = syncs.comparisons.load(Ordering::Relaxed);
    let change_all = |round| {
        for number in 0..SERVICES {
            tell(Change::Services(Event::Apply(wanted(number, round))));
            if moves(number) {
                tell(Change::Slices(Event::Apply(endpoints(number, round))));
            }
        }
    };
    let begun = Instant::now();
    for round in 1..=ROUNDS {
        change_all(round);
        thread::sleep(Duration::from_secs(1));
    }
    let (took, synced) = (begun.elapsed(), syncs.so_far() - syncs_before);
    // How many there are is a matter of the machine: one for thousands of changes takes seconds on a busy one.
    assert!(synced > 0, "no sync in {took:?}: the changes put them off");

    let (begun, mut round, syncs_before) = (Instant::now(), ROUNDS, syncs.so_far());
    // On a busy machine a sync takes longer than that.
    let has_synced = || syncs.so_far() > syncs_before;
    while begun.elapsed() < FLOOD || !has_synced() && begun.elapsed() < patience(PATIENCE) {
        round += 1;
        change_all(round);
    }
    assert!(has_synced(), "no sync in {:?} of changes without a pause", begun.elapsed());
    let comparisons = syncs.comparisons.load(Ordering::Relaxed) - comparisons_before;
    settled();
    let grown = kibibytes("VmHWM:").saturating_sub(before);
    println!(
        "{synced} syncs in {took:?}, {round} rounds, {comparisons} comparisons, {grown} KiB more than {before}, {:?}",
        begun.elapsed()
    );
    assert!(comparisons > 0, "changes put off the comparison with the kernel");
    assert_eq!(*syncs.repairs.lock().unwrap(), [""; 0], "our own changes look like those of another program");
    assert!(grown < ROOM, "{grown} KiB more than {before}, after {round} rounds");

    let expected: Table = (0..SERVICES)
        .map(|number| {
            let address = ServiceAddress { protocol: Protocol::Tcp, ip: vip(number).into(), port: 80 };
            let timeout = wanted(number, round).session_affinity.unwrap();
            (address, (timeout, vec![pod(number, if moves(number) { round } else { 0 })]))
        })
        .collect();
    let found = table(&lab.node);
    let wrong: Vec<_> =
        expected.iter().filter(|(address, server)| found.get(address) != Some(server)).collect();
    assert!(
        wrong.is_empty() && found.len() == expected.len(),
        "{} are wrong: {:?}",
        wrong.len(),
        wrong.first()
    );
    handle.stop().unwrap();
}
