//! The first sync of many Services against the raw floor of the same kernel operations.
//!
//! The floor is a batch of requests encoded beforehand and sent with one acknowledgement: what the
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
    net::{IpAddr, Ipv4Addr},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use dummy_interface::{KernelLinks, Links, VipBinding};
use ipvs::{
    Command as Ipvs, Family, KernelIpvs, Protocol, RealServer, Scheduler, ServiceAddress, VirtualServer,
};
use netfilter::{Change, Element, HostFirewall, KernelNetfilter, LocalTraffic, Netfilter, Policy};
use netlink::{Batch, Socket};
use nix::sched::{CloneFlags, unshare};
use reconciler::{Outlets, Timing};
use service::{Endpoint, EndpointPort, EndpointSlice, ObjectName, Options, Service, ServicePort, State};
use watcher::{Kernel, Observed, Ownership, Scope, diff};

const SIZES: [(u32, u32); 2] = [(1_000, 5), (10_000, 5)];

fn main() {
    println!(
        "| Services × endpoints | VIPs as | floor | first sync | ratio | read, diff, IPVS, nf_tables, VIPs |"
    );
    println!("|---|---|---|---|---|---|");
    for (services, endpoints) in SIZES {
        for (name, binding) in bindings() {
            let floor = fresh(move || floor(services, endpoints, binding));
            let sync = fresh(move || sync(services, endpoints, binding));
            let parts = fresh(move || parts(services, endpoints, binding));
            println!(
                "| {services} × {endpoints} | {name} | {} | {} | {:.2} | {} |",
                ms(floor),
                ms(sync),
                sync.as_secs_f64() / floor.as_secs_f64(),
                parts.map(ms).join(", "),
            );
        }
    }
}

fn bindings() -> [(&'static str, VipBinding); 2] {
    let route = VipBinding::Route { source_v4: None, source_v6: None };
    [("addresses", VipBinding::Address), ("routes", route)]
}

/// Runs `work` in a network namespace of its own.
fn fresh<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let namespaced = move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("root is needed");
        // Until the first address there is no local table, and then every address counts as broadcast:
        // IPVS refuses such real servers (`inet_addr_type` in net/ipv4/fib_frontend.c).
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
        assert!(up.is_ok_and(|status| status.success()), "ip link set lo up");
        work()
    };
    thread::spawn(namespaced).join().expect("the measurement failed")
}

fn ms(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}

fn vip(number: u32) -> IpAddr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 96, 0, 1)) + number).into()
}

fn pod(number: u32) -> IpAddr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 244, 0, 1)) + number).into()
}

fn address(number: u32) -> ServiceAddress {
    ServiceAddress { protocol: Protocol::Tcp, ip: vip(number), port: 80 }
}

fn commands(services: u32, endpoints: u32) -> Vec<Ipvs> {
    let mut commands = Vec::new();
    for number in 0..services {
        let server = VirtualServer::new(address(number), Scheduler::RR);
        let id = server.id;
        commands.push(Ipvs::AddVirtualServer(server));
        let real = |endpoint| RealServer::masquerade(pod(number * endpoints + endpoint), 8080);
        commands.extend((0..endpoints).map(|endpoint| Ipvs::AddRealServer(id, real(endpoint))));
    }
    commands
}

fn elements(services: u32) -> Vec<Change> {
    (0..services).map(|number| Change::AddElement(Element::ClusterIp(address(number)))).collect()
}

fn policy() -> Policy {
    let local_traffic = LocalTraffic::Source { ipv4: "10.244.0.0/16".parse().ok(), ipv6: None };
    Policy { masquerade_all: false, mark: 1 << 14, local_traffic, host_firewall: HostFirewall::Warn }
}

/// The same operations, encoded before the clock starts: elements, virtual and real servers, VIPs.
fn floor(services: u32, endpoints: u32, binding: VipBinding) -> Duration {
    let mut ipvs = KernelIpvs::open().unwrap();
    let mut encoded = Batch::default();
    ipvs.encode(&commands(services, endpoints), &mut encoded);
    let mut generic = Socket::open(netlink::Protocol::Generic).unwrap();

    let mut tables = KernelNetfilter::open(&policy()).unwrap();
    tables.apply(&[Change::InstallTable(Family::V4)]).unwrap();
    let mut transaction = tables.encode(&elements(services));
    let mut netfilter = Socket::open(netlink::Protocol::Netfilter).unwrap();

    let mut links = KernelLinks::open(binding).unwrap();
    links.apply(&[dummy_interface::Change::EnsureDevice]).unwrap();
    let mut vips = raw_vips(services, binding);
    let mut route = Socket::open(netlink::Protocol::Route).unwrap();

    ipvs.info().unwrap();
    let start = Instant::now();
    netfilter.transact(&mut transaction).unwrap();
    assert_eq!(generic.pipeline(&mut encoded).unwrap(), []);
    assert_eq!(route.pipeline(&mut vips).unwrap(), []);
    start.elapsed()
}

/// The bare requests for the VIPs: include/uapi/linux/{if_addr,rtnetlink}.h.
fn raw_vips(services: u32, binding: VipBinding) -> Batch {
    const CREATE_EXCLUSIVE: u16 = 0x600;
    let device = nix::net::if_::if_nametoindex(dummy_interface::DEVICE).unwrap();
    let mut batch = Batch::default();
    for number in 0..services {
        let IpAddr::V4(vip) = vip(number) else { continue };
        if binding == VipBinding::Address {
            batch.add(20, CREATE_EXCLUSIVE, |e| {
                e.raw(&[&[2, 32, 0, 0][..], &device.to_ne_bytes()].concat());
                e.bytes(2, &vip.octets());
            });
        } else {
            batch.add(24, CREATE_EXCLUSIVE, |e| {
                // AF_INET, /32, table local, protocol static, scope host, type local.
                e.raw(&[2, 32, 0, 0, 255, 4, 254, 2, 0, 0, 0, 0]);
                e.bytes(1, &vip.octets());
                e.u32(4, 1);
            });
        }
    }
    batch
}

fn objects(services: u32, endpoints: u32) -> (Vec<Service>, Vec<EndpointSlice>) {
    let name = |number: u32| ObjectName::new("default", format!("service-{number}"));
    let service = |number| Service {
        created: Some(0),
        cluster_ips: vec![vip(number)],
        ports: vec![ServicePort { name: "".into(), protocol: Protocol::Tcp, port: 80, node_port: None }],
        ..Service::new(name(number))
    };
    let endpoint = |address| Endpoint {
        address,
        ready: true,
        serving: true,
        terminating: false,
        node: Some("elsewhere".into()),
        zone_hints: Box::default(),
        node_hints: Box::default(),
    };
    let slice = |number: u32| EndpointSlice {
        name: ObjectName::new("default", format!("service-{number}-1")),
        service: name(number),
        family: Family::V4,
        ports: vec![EndpointPort { name: "".into(), protocol: Protocol::Tcp, port: 8080 }],
        endpoints: (0..endpoints).map(|index| endpoint(pod(number * endpoints + index))).collect(),
        triggered_at: None,
        problems: Vec::new(),
    };
    ((0..services).map(service).collect(), (0..services).map(slice).collect())
}

fn state() -> State {
    State::new(Options::new("node"))
}

fn kernel(binding: VipBinding) -> Kernel {
    Kernel {
        ipvs: Box::new(KernelIpvs::open().unwrap()),
        netfilter: Box::new(KernelNetfilter::open(&policy()).unwrap()),
        links: Box::new(KernelLinks::open(binding).unwrap()),
    }
}

fn ownership() -> Ownership {
    Ownership { families: BTreeSet::from([Family::V4]), exclude: Vec::new() }
}

/// From the last list to the end of the first sync, by the reconciler itself.
fn sync(services: u32, endpoints: u32, binding: VipBinding) -> Duration {
    let hour = Duration::from_secs(3600);
    let (list, slices) = objects(services, endpoints);
    let timing = Timing { sync_period: hour, min_sync_period: Duration::ZERO, drain_timeout: None };
    let unheard = Outlets::closed();
    let (handle, thread) = reconciler::start(state(), kernel(binding), ownership(), timing, unheard).unwrap();
    handle.change(service::Change::ReplaceServices(list)).unwrap();
    handle.status().unwrap();
    let start = Instant::now();
    handle.change(service::Change::ReplaceSlices(slices)).unwrap();
    while handle.status().unwrap().last_sync.is_none() {
        thread::sleep(Duration::from_micros(200));
    }
    let took = start.elapsed();
    let report = handle.status().unwrap().last_sync.unwrap().report;
    assert_eq!(report.failed, 0, "{report:?}");
    handle.stop().unwrap();
    thread.join().unwrap();
    took
}

/// The phases one by one.
fn parts(services: u32, endpoints: u32, binding: VipBinding) -> [Duration; 5] {
    let (list, slices) = objects(services, endpoints);
    let (mut state, mut kernel) = (state(), kernel(binding));
    state.apply(service::Change::ReplaceServices(list));
    state.apply(service::Change::ReplaceSlices(slices));
    kernel.links.apply(&[dummy_interface::Change::EnsureDevice]).unwrap();
    kernel.netfilter.apply(&[Change::InstallTable(Family::V4)]).unwrap();

    let (read, image) = timed(|| Observed::read(&mut kernel).unwrap());
    let (compared, plan) = timed(|| diff(&state, &image, Scope::All, &ownership()));
    let (mut commands, mut changes, mut vips) = (Vec::new(), Vec::new(), Vec::new());
    for operation in plan.operations {
        match operation {
            watcher::Operation::Ipvs(command) => commands.push(command),
            watcher::Operation::Netfilter(change) => changes.push(change),
            watcher::Operation::Link(change) => vips.push(change),
        }
    }
    let (elements, ()) = timed(|| kernel.netfilter.apply(&changes).unwrap());
    let (servers, _) = timed(|| kernel.ipvs.apply(&commands).unwrap());
    let (bound, _) = timed(|| kernel.links.apply(&vips).unwrap());
    [read, compared, servers, elements, bound]
}

fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let done = work();
    (start.elapsed(), done)
}
