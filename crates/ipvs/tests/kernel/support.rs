//! Namespaces, and short spellings.

use std::{process::Command as Process, thread};

use ipvs::{
    Command, Ipvs, KernelIpvs, ObservedRealServer, ObservedVirtualServer, Protocol, RealServer, Scheduler,
    ServiceAddress, VirtualServer, VirtualServerId,
};
use nix::{
    errno::Errno,
    sched::{CloneFlags, unshare},
};

/// Runs the test in a fresh network namespace with `lo` up, on a thread that ends with it.
pub(super) fn in_new_namespace(test: impl FnOnce(&mut KernelIpvs) + Send + 'static) {
    let run = move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a new network namespace needs root");
        // Without a local routing table every IPv4 address is a broadcast address to IPVS.
        run(&["ip", "link", "set", "lo", "up"]);
        test(&mut KernelIpvs::open().expect("the kernel should have IPVS"));
    };
    if let Err(panic) = thread::spawn(run).join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs a program in the namespace and returns what it prints.
pub(super) fn run(words: &[&str]) -> String {
    let (program, arguments) = words.split_first().unwrap();
    let output =
        Process::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", words.join(" "));
    String::from_utf8(output.stdout).unwrap()
}

/// Whether a program is there; says so if it isn't.
pub(super) fn has_program(program: &str) -> bool {
    let there = Process::new(program).arg("--version").output().is_ok();
    if !there {
        println!("SKIP: {program} is not installed");
    }
    there
}

/// Applies commands of which none may fail.
pub(super) fn apply(kernel: &mut KernelIpvs, commands: &[Command]) {
    let failed = kernel.apply(commands).unwrap();
    let shown: Vec<_> =
        failed.iter().map(|failure| format!("{}: {failure}", commands[failure.index])).collect();
    assert!(shown.is_empty(), "{}", shown.join("\n"));
}

/// Adds virtual servers with their real servers.
pub(super) fn add_all<'a>(
    kernel: &mut KernelIpvs,
    servers: impl IntoIterator<Item = (VirtualServer, &'a [RealServer])>,
) {
    for (server, real_servers) in servers {
        let add = |real_server: &RealServer| Command::AddRealServer(server.id, *real_server);
        let mut commands = vec![Command::AddVirtualServer(server.clone())];
        commands.extend(real_servers.iter().map(add));
        apply(kernel, &commands);
    }
}

/// Adds a virtual server and returns what the kernel made of it; nothing if its modules are missing.
pub(super) fn added(kernel: &mut KernelIpvs, server: &VirtualServer) -> Option<ObservedVirtualServer> {
    match kernel.apply(&[Command::AddVirtualServer(server.clone())]).unwrap().pop() {
        None => kernel.virtual_server(server.id).unwrap(),
        Some(failed) if failed.error.errno() == Errno::ENOENT as i32 => {
            println!("ABSENT: {}", failed.error.cause());
            None
        }
        Some(failed) => panic!("{server:?}: {failed}"),
    }
}

/// Adds a virtual server and a real server and returns what the kernel made of the latter.
pub(super) fn added_real_server(
    kernel: &mut KernelIpvs,
    server: &VirtualServer,
    real_server: RealServer,
) -> ObservedRealServer {
    let commands =
        [Command::AddVirtualServer(server.clone()), Command::AddRealServer(server.id, real_server)];
    apply(kernel, &commands);
    let found = kernel.real_servers(server.id).unwrap();
    found.into_iter().find(|found| found.config.address == real_server.address).expect("it was added")
}

/// The whole table.
pub(super) fn table(kernel: &mut KernelIpvs) -> Vec<(ObservedVirtualServer, Vec<ObservedRealServer>)> {
    let servers = kernel.virtual_servers().unwrap();
    servers
        .into_iter()
        .map(|server| {
            let real_servers = kernel.real_servers(server.config.id).unwrap();
            (server, real_servers)
        })
        .collect()
}

pub(super) fn address(protocol: Protocol, ip: &str, port: u16) -> ServiceAddress {
    ServiceAddress { protocol, ip: ip.parse().unwrap(), port }
}

/// A round robin virtual server for TCP.
pub(super) fn tcp(ip: &str, port: u16) -> VirtualServer {
    VirtualServer::new(address(Protocol::Tcp, ip, port), Scheduler::RR)
}

pub(super) fn tcp_id(ip: &str, port: u16) -> VirtualServerId {
    tcp(ip, port).id
}

pub(super) fn pod(ip: &str, port: u16) -> RealServer {
    RealServer::masquerade(ip.parse().unwrap(), port)
}
