//! What it takes to bind VIPs, to read them back, to list the node's addresses beside them, and to unbind them: as
//! addresses and as routes, in both families.
//!
//! Each line is measured in a network namespace of its own. Needs root and the dummy device; a guest is a good place:
//!
//! ```text
//! cargo xtask vm -- $(cargo bench -p kube-ipvs-dummy-interface --no-run … | the executable)
//! ```
#![allow(clippy::expect_used, reason = "a measurement that cannot go on must stop, not report")]

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use dummy_interface::{DummyInterface, KernelDummyInterface, Operation, VipBinding};
use nix::{
    ifaddrs::getifaddrs,
    sched::{CloneFlags, unshare},
};

const SIZES: [u32; 3] = [1_000, 5_000, 10_000];

const FIRST_V4: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
const FIRST_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 1);

const BINDINGS: [(&str, VipBinding); 2] =
    [("addresses", VipBinding::Address), ("routes", VipBinding::Route { source_v4: None, source_v6: None })];

fn main() {
    println!("| VIPs | as | bind | read back | getifaddrs(3) | unbind |");
    println!("|---|---|---|---|---|---|");
    for size in SIZES {
        for family in ["IPv4", "IPv6"] {
            for (name, binding) in BINDINGS {
                let [bind, read, list, unbind] =
                    thread::spawn(move || measure(&vips(family, size), binding)).join().expect("measured");
                println!("| {size} {family} | {name} | {bind} | {read} | {list} | {unbind} |");
            }
        }
    }
}

fn vips(family: &str, size: u32) -> Vec<IpAddr> {
    let vip = |number: u32| match family {
        "IPv4" => Ipv4Addr::from(u32::from(FIRST_V4) + number).into(),
        _ => Ipv6Addr::from(u128::from(FIRST_V6) + u128::from(number)).into(),
    };
    (0..size).map(vip).collect()
}

fn measure(vips: &[IpAddr], binding: VipBinding) -> [String; 4] {
    unshare(CloneFlags::CLONE_NEWNET).expect("root is needed");
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
    assert!(up.is_ok_and(|status| status.success()), "ip link set lo up");
    let mut dummy_interface = KernelDummyInterface::open(binding).expect("a socket");
    assert!(dummy_interface.apply(&[Operation::EnsureDevice]).expect("a device").is_empty());

    let changes = |change: fn(IpAddr) -> Operation| vips.iter().copied().map(change).collect::<Vec<_>>();
    let (bind, unbind) = (changes(Operation::Bind), changes(Operation::Unbind));
    let bound = timed(|| assert!(dummy_interface.apply(&bind).expect("bound").is_empty()));
    let read = timed(|| assert_eq!(dummy_interface.observe().expect("observed").bound.len(), vips.len()));
    let listed = timed(|| assert!(getifaddrs().expect("listed").count() > 0));
    let unbound = timed(|| assert!(dummy_interface.apply(&unbind).expect("unbound").is_empty()));
    [bound, read, listed, unbound]
}

fn timed(work: impl FnOnce()) -> String {
    let start = Instant::now();
    work();
    milliseconds(start.elapsed())
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}
