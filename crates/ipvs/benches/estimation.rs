//! What it takes to add 10,000 virtual servers with 5 real servers each, and to remove them, with and without
//! the kernel's rate estimation (`net.ipv4.vs.run_estimation`).
//!
//! Each line is measured in a network namespace of its own. Needs root and ip_vs; a guest is a good place:
//!
//! ```text
//! cargo xtask vm --memory 2048 -- $(cargo bench -p linux-ipvs --no-run … | the executable)
//! ```
#![allow(clippy::expect_used, reason = "a measurement that cannot go on must stop, not report")]

use std::{
    fs,
    net::Ipv4Addr,
    process::Command as Program,
    thread,
    time::{Duration, Instant},
};

use ipvs::{Command, Ipvs, KernelIpvs, Protocol, RealServer, Scheduler, ServiceAddress, VirtualServer};
use nix::sched::{CloneFlags, unshare};

const VIRTUAL_SERVERS: u32 = 10_000;
const REAL_SERVERS_OF_EACH: u32 = 5;
const TIMES: usize = 3;

const FIRST_VIP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
const FIRST_POD: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 1);

const SWITCH: &str = "/proc/sys/net/ipv4/vs/run_estimation";

fn main() {
    println!("| run_estimation | add | remove |");
    println!("|---|---|---|");
    for _ in 0..TIMES {
        for estimation in ["1", "0"] {
            let measured = thread::spawn(move || measure(estimation)).join();
            let [add, remove] = measured.expect("measured");
            println!("| {estimation} | {add} | {remove} |");
        }
    }
}

fn measure(estimation: &str) -> [String; 2] {
    unshare(CloneFlags::CLONE_NEWNET).expect("root is needed");
    // Without an address there is no local table, and every real server counts as broadcast.
    let up = Program::new("ip").args(["link", "set", "lo", "up"]).status();
    assert!(up.is_ok_and(|status| status.success()), "ip link set lo up");
    let mut kernel = KernelIpvs::open().expect("ip_vs");
    fs::write(SWITCH, estimation).expect("the kernel parameter");
    let commands = commands();
    let added = timed(|| assert!(kernel.apply(&commands).expect("added").is_empty()));
    let removed = timed(|| kernel.flush().expect("removed"));
    [added, removed]
}

fn commands() -> Vec<Command> {
    let of_one = |number: u32| {
        let vip = ServiceAddress { protocol: Protocol::Tcp, ip: after(FIRST_VIP, number).into(), port: 80 };
        let pods = number * REAL_SERVERS_OF_EACH..(number + 1) * REAL_SERVERS_OF_EACH;
        let pods = pods.map(move |pod| RealServer::masquerade(after(FIRST_POD, pod).into(), 8080));
        let servers = pods.map(move |pod| Command::AddRealServer(vip.into(), pod));
        [Command::AddVirtualServer(VirtualServer::new(vip, Scheduler::RR))].into_iter().chain(servers)
    };
    (0..VIRTUAL_SERVERS).flat_map(of_one).collect()
}

fn after(first: Ipv4Addr, number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(first) + number)
}

fn timed(work: impl FnOnce()) -> String {
    let start = Instant::now();
    work();
    milliseconds(start.elapsed())
}

fn milliseconds(time: Duration) -> String {
    format!("{:.0} ms", time.as_secs_f64() * 1000.0)
}
