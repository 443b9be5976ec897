//! Many at once, and what holds for all.

use std::{
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

use ipvs::{Command, Ipvs, RealServer, Scheduler, Timeouts, VirtualServer};

use super::support::{apply, in_new_namespace, pod, table, tcp, tcp_id};

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn ten_thousand_real_servers_lose_no_answer() {
    in_new_namespace(|kernel| {
        let servers = || (1..=2_000).map(|port| tcp("10.96.0.1", port));
        apply(kernel, &servers().map(Command::AddVirtualServer).collect::<Vec<_>>());
        let real_servers: Vec<_> = servers()
            .flat_map(|server| {
                (1..=5).map(move |host| {
                    let real_server = RealServer::masquerade(Ipv4Addr::new(10, 1, 0, host).into(), 8080);
                    Command::AddRealServer(server.id, real_server)
                })
            })
            .collect();
        assert_eq!(real_servers.len(), 10_000);
        apply(kernel, &real_servers);
        // Again: now each is refused (EEXIST), answered, and sent with the other verb.
        apply(kernel, &real_servers);
        let found = table(kernel);
        assert_eq!(found.len(), 2_000);
        assert!(found.iter().all(|(_, real_servers)| real_servers.len() == 5));
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn every_failure_of_a_long_list_has_its_position() {
    in_new_namespace(|kernel| {
        let mut commands = vec![Command::AddVirtualServer(tcp("10.96.0.1", 80))];
        commands.extend((1..=5_000).map(|port| {
            // Every third lacks its virtual server.
            let id = tcp_id("10.96.0.1", if port % 3 == 0 { 81 } else { 80 });
            Command::AddRealServer(id, pod("10.1.0.4", port))
        }));
        let failed = kernel.apply(&commands).unwrap();
        let positions: Vec<_> = failed.iter().map(|failure| failure.index).collect();
        assert_eq!(positions, (1..=5_000).filter(|port| port % 3 == 0).collect::<Vec<_>>());
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn what_was_read_can_be_written_again() {
    in_new_namespace(|kernel| {
        for (port, scheduler) in (1..).zip([Scheduler::RR, Scheduler::WRR, Scheduler::SH]) {
            let server = VirtualServer::new(tcp("fd00::1", port).id, scheduler).persistent(60);
            let commands = [
                Command::AddVirtualServer(server.clone()),
                Command::AddRealServer(server.id, pod("fd01::4", port)),
            ];
            apply(kernel, &commands);
        }
        let before = table(kernel);
        kernel.flush().unwrap();
        assert_eq!(table(kernel), []);
        for (server, real_servers) in &before {
            apply(kernel, &[Command::AddVirtualServer(server.config.clone())]);
            let add = |real_server: &ipvs::ObservedRealServer| {
                Command::AddRealServer(server.config.id, real_server.config)
            };
            apply(kernel, &real_servers.iter().map(add).collect::<Vec<_>>());
        }
        assert_eq!(table(kernel).len(), before.len());
        assert!(before.iter().all(|entry| table(kernel).contains(entry)));
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn timeouts_are_set_and_kept_where_0() {
    in_new_namespace(|kernel| {
        kernel.set_timeouts(Timeouts::UNCHANGED.tcp(901).tcp_fin(121).udp(301)).unwrap();
        kernel.set_timeouts(Timeouts::UNCHANGED.tcp_fin(33)).unwrap();
        assert_eq!(kernel.timeouts().unwrap(), Timeouts::UNCHANGED.tcp(901).tcp_fin(33).udp(301));
        kernel.set_timeouts(Timeouts::UNCHANGED.tcp(u32::MAX)).unwrap_err();
        assert_eq!(kernel.timeouts().unwrap().tcp, 901);
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn info_is_the_kernels() {
    in_new_namespace(|kernel| {
        // Kernels that make the table with the first virtual server say 0 before.
        apply(kernel, &[Command::AddVirtualServer(tcp("10.96.0.1", 80))]);
        let info = kernel.info().unwrap();
        assert_eq!(info.version.0, 1);
        assert!(info.connection_table_size.is_power_of_two(), "{info:?}");
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn counters_count_and_can_be_zeroed() {
    in_new_namespace(|kernel| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (near, far) = (tcp_id("127.0.0.9", 80), tcp_id("127.0.0.9", 81));
        for server in [tcp("127.0.0.9", 80), tcp("127.0.0.9", 81)] {
            let real_server = pod("127.0.0.1", listener.local_addr().unwrap().port());
            apply(
                kernel,
                &[Command::AddVirtualServer(server.clone()), Command::AddRealServer(server.id, real_server)],
            );
        }
        let connections =
            ["127.0.0.9:80", "127.0.0.9:81"].map(|vip| std::net::TcpStream::connect(vip).unwrap());
        wait_until(|| (counted(kernel, near), counted(kernel, far)) == ((1, 1, 1), (1, 1, 1)));
        kernel.zero(Some(near)).unwrap();
        assert_eq!((counted(kernel, near), counted(kernel, far)), ((0, 0, 1), (1, 1, 1)));
        kernel.zero(None).unwrap();
        assert_eq!(counted(kernel, far), (0, 0, 1));
        kernel.zero(Some(tcp_id("127.0.0.9", 82))).unwrap_err();
        drop(connections);
    });
}

/// Connections counted by the virtual server and its real server, and those that are there.
fn counted(kernel: &mut ipvs::KernelIpvs, id: ipvs::VirtualServerId) -> (u64, u64, u32) {
    let server = kernel.virtual_server(id).unwrap().unwrap();
    let real_server = kernel.real_servers(id).unwrap().remove(0);
    (server.stats.connections, real_server.stats.connections, real_server.active_connections)
}

/// The kernel adds its counters up every two seconds.
#[track_caller]
fn wait_until(mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < Duration::from_secs(10), "not so after 10 s");
        thread::sleep(Duration::from_millis(50));
    }
}
