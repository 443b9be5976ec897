//! The summary of the table says what netlink says.

use std::{collections::BTreeMap, thread, time::Duration};

use ipvs::{
    Command, Family, Forwarding, Ipvs, KernelIpvs, PROBE_ADDRESS, Protocol, Scheduler, ServiceAddress,
    ServiceFlags, VirtualServer, VirtualServerId, proc_net::VirtualServerSummary, wire::first_piece,
};
use nix::sched::{CloneFlags, unshare};

use super::support::{add_all, address, apply, in_new_namespace, pod, table, tcp, tcp_id};

type Table = BTreeMap<ServiceAddress, VirtualServerSummary>;

/// Reads until each of `count` virtual servers is shown once. While the kernel makes its table larger, some
/// time after thousands were added, it shows some twice (seen on Linux 7.2).
fn summaries(kernel: &mut KernelIpvs, count: usize) -> Table {
    for _ in 0..250 {
        let shown: Vec<_> = kernel.summaries().unwrap().map(Result::unwrap).collect();
        let lines = shown.len();
        let table: Table = shown.into_iter().map(|shown| (shown.address, shown)).collect();
        if (lines, table.len()) == (count, count) {
            return table;
        }
        thread::sleep(Duration::from_millis(20));
    }
    panic!("not once each of {count}");
}

/// Compares the summary with the table over netlink, of `count` virtual servers.
#[track_caller]
fn assert_same(kernel: &mut KernelIpvs, count: usize) {
    let mut shown = summaries(kernel, count);
    for (server, real_servers) in table(kernel) {
        let VirtualServerId::Address(address) = server.config.id else { continue };
        let summary = shown.remove(&address).unwrap_or_else(|| panic!("{address} is not shown"));
        assert!(summary.matches(&server.config), "{summary:?}\n{:?}", server.config);
        let real_servers: Vec<_> = real_servers.iter().map(|server| server.config).collect();
        let expected = VirtualServerSummary::new(&server.config, &real_servers);
        assert_eq!(Some(&summary.real_servers), expected.as_ref().map(|it| &it.real_servers), "{address}");
    }
    assert_eq!(shown, Table::new());
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn every_kind_of_virtual_and_real_server_has_the_same_summary() {
    in_new_namespace(|kernel| {
        assert_same(kernel, 0);
        let v4 = [
            pod("10.1.0.4", 8080),
            pod("10.1.0.4", 9).weight(0),
            pod("10.1.0.40", 65_535).weight(999_999),
            pod("192.168.255.255", 80).weight(i32::MAX.unsigned_abs()),
            pod("127.0.0.1", 80),
            pod("10.1.0.7", 80).forwarding(Forwarding::Route),
            pod("10.1.0.8", 80).forwarding(Forwarding::Bypass),
            pod("10.1.0.9", 80).forwarding(Forwarding::Tunnel),
        ];
        let v6 = [
            pod("fd01::4", 8080).weight(70_000),
            pod("2001:db8:1111:2222:3333:4444:5555:6666", 65_535),
            pod("10.1.0.4", 80).forwarding(Forwarding::Tunnel),
        ];
        let flagged = tcp("10.96.0.4", 80).persistent(10_800).prefix_length(24);
        let one_packet = VirtualServer::new(address(Protocol::Udp, "10.96.0.1", 53), Scheduler::RR)
            .flags(ServiceFlags::ONE_PACKET);
        let mark = |family| VirtualServer::new(VirtualServerId::Mark { family, mark: 7 }, Scheduler::RR);
        let servers = [
            (tcp("10.96.0.1", 80), &v4[..]),
            (one_packet, &v4[..]),
            (VirtualServer::new(address(Protocol::Sctp, "10.96.0.1", 65_535), Scheduler::RR), &[][..]),
            (flagged, &v4[..2]),
            (mark(Family::V4), &v4[..]),
            (tcp("fd00::1", 80), &v6[..]),
            (tcp("fd00::2", 80).persistent(60), &v6[..1]),
            (mark(Family::V6), &v6[..]),
        ];
        add_all(kernel, servers);
        assert_same(kernel, 6);
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn thousands_are_all_shown_though_the_kernel_gives_a_page_at_a_time() {
    in_new_namespace(|kernel| {
        let servers = || (1..=2_000).map(|port| tcp("10.96.0.1", port));
        apply(kernel, &servers().map(Command::AddVirtualServer).collect::<Vec<_>>());
        // One has more than a page for itself.
        let many =
            (1..=300).map(|port| Command::AddRealServer(tcp("10.96.0.1", 7).id, pod("10.1.0.4", port)));
        let each = servers().map(|server| Command::AddRealServer(server.id, pod("10.1.0.5", 8080)));
        apply(kernel, &many.chain(each).collect::<Vec<_>>());
        let shown = summaries(kernel, 2_000);
        assert_eq!(shown.values().map(|server| server.real_servers.len()).sum::<usize>(), 2_300);
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn what_is_shown_is_of_the_namespace_in_which_it_was_opened() {
    in_new_namespace(|kernel| {
        apply(kernel, &[Command::AddVirtualServer(tcp("10.96.0.1", 80))]);
        thread::scope(|scope| {
            let elsewhere = scope.spawn(|| {
                unshare(CloneFlags::CLONE_NEWNET).unwrap();
                let mut other = KernelIpvs::open().unwrap();
                summaries(&mut other, 0);
                summaries(kernel, 1);
            });
            elsewhere.join().unwrap();
        });
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_kernel_that_is_prepared_returns_the_summary_in_large_pieces() {
    in_new_namespace(|kernel| {
        let ids: Vec<_> = (1..=2_000).map(|port| tcp_id("10.96.0.1", port)).collect();
        let servers = (1..=2_000).map(|port| Command::AddVirtualServer(tcp("10.96.0.1", port)));
        let real_servers = ids.iter().map(|id| Command::AddRealServer(*id, pod("10.1.0.4", 80)));
        apply(kernel, &servers.chain(real_servers).collect::<Vec<_>>());
        let before = summaries(kernel, ids.len());
        assert!(first_piece(kernel).unwrap() <= 4 << 10, "a page");

        assert!(kernel.widen_summaries(Scheduler::RR).unwrap());
        assert!(first_piece(kernel).unwrap() > 32 << 10);
        assert_eq!(summaries(kernel, ids.len()), before, "nothing is left");
        assert!(first_piece(kernel).unwrap() > 32 << 10, "it stays so");
        assert!(!kernel.widen_summaries(Scheduler::RR).unwrap(), "nothing is left to do");
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_virtual_server_of_another_program_is_not_replaced_for_large_pieces() {
    in_new_namespace(|kernel| {
        let theirs = VirtualServer::new(PROBE_ADDRESS, Scheduler::WRR);
        apply(kernel, &[Command::AddVirtualServer(theirs.clone())]);
        assert!(!kernel.widen_summaries(Scheduler::RR).unwrap());
        let there = kernel.virtual_server(theirs.id).unwrap().map(|found| found.config);
        assert_eq!(there, Some(theirs));
    });
}
