//! The listing against the real ipvsadm's, byte for byte.

use ipvs::{
    Command, Family, Forwarding, Ipvs, KernelIpvs, Protocol, RealServer, Scheduler, ServiceFlags, Tunnel,
    TunnelKind, VirtualServer, VirtualServerId,
    text::{Columns, Listing},
};

use nix::errno::Errno;

use super::support::{add_all, address, apply, has_program, in_new_namespace, pod, run, table, tcp};

#[track_caller]
fn assert_same(kernel: &mut KernelIpvs) {
    assert_same_columns(kernel, Columns::Configuration, &[]);
    assert_same_columns(kernel, Columns::Counters, &["--stats"]);
    assert_same_columns(kernel, Columns::Rates, &["--rate"]);
}

#[track_caller]
fn assert_same_columns(kernel: &mut KernelIpvs, columns: Columns, flag: &[&str]) {
    let mut ours = shown(kernel, columns);
    // A kernel that rehashes its table meanwhile changes the order, which the sorted one follows where
    // addresses are far apart.
    let theirs = loop {
        let theirs = run(&[&["ipvsadm", "-Ln"], flag].concat());
        let again = shown(kernel, columns);
        if ours == again {
            break theirs;
        }
        ours = again;
    };
    for (number, (ours, theirs)) in ours.lines().zip(theirs.lines()).enumerate() {
        assert_eq!(ours, theirs, "line {number}");
    }
    assert!(ours == theirs, "{} lines, ipvsadm has {}", ours.lines().count(), theirs.lines().count());
}

fn shown(kernel: &mut KernelIpvs, columns: Columns) -> String {
    let (info, servers) = (kernel.info().unwrap(), table(kernel));
    Listing::new(info, &servers).columns(columns).to_string()
}

/// Adds it if the kernel has its modules; what it lacks, another test says.
fn add(kernel: &mut KernelIpvs, server: &VirtualServer) {
    let failed = kernel.apply(&[Command::AddVirtualServer(server.clone())]).unwrap();
    assert!(
        failed.iter().all(|failed| failed.error.errno() == Errno::ENOENT as i32),
        "{server:?}: {failed:?}"
    );
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn an_empty_table_is_listed_as_ipvsadm_lists_it() {
    in_new_namespace(|kernel| {
        if has_program("ipvsadm") {
            assert_same(kernel);
        }
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn virtual_servers_are_listed_as_ipvsadm_lists_them() {
    in_new_namespace(|kernel| {
        if !has_program("ipvsadm") {
            return;
        }
        for (port, scheduler) in (1..).zip(Scheduler::ALL) {
            for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
                for ip in ["10.96.0.1", "fd00::1"] {
                    let mut server = VirtualServer::new(address(protocol, ip, port), scheduler);
                    add(kernel, &server);
                    // Every combination of flags, each at a port of its own.
                    for bits in (0..0x40).filter(|bits| bits & 2 == 0) {
                        server.id = address(protocol, ip, 100 * port + u16::try_from(bits).unwrap()).into();
                        server.flags = ServiceFlags::from_bits_retain(bits);
                        server.timeout = bits * 100;
                        add(kernel, &server);
                    }
                }
            }
        }
        assert_same(kernel);
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn persistence_is_listed_as_ipvsadm_lists_it() {
    in_new_namespace(|kernel| {
        if !has_program("ipvsadm") {
            return;
        }
        for (ip, bits) in [("10.96.0.1", 32), ("fd00::1", 128)] {
            for prefix_length in 1..=bits {
                let mut server = tcp(ip, prefix_length.into()).persistent(10_800);
                server.prefix_length = prefix_length;
                add(kernel, &server);
                server.id = VirtualServerId::Mark {
                    family: server.id.family(),
                    mark: u32::from(prefix_length) << 24 | 1,
                };
                server.flags |= ServiceFlags::ONE_PACKET;
                add(kernel, &server);
            }
        }
        let mut server =
            VirtualServer::new(address(Protocol::Udp, "10.96.0.1", 5060), Scheduler::RR).persistent(60);
        server.persistence_engine = Some("sip".into());
        add(kernel, &server);
        assert_same(kernel);
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn real_servers_are_listed_as_ipvsadm_lists_them() {
    in_new_namespace(|kernel| {
        if !has_program("ipvsadm") {
            return;
        }
        let tunnel = |kind, port, flags| {
            move |server: RealServer| server.tunnel(Tunnel::new(kind).port(port).flags(flags))
        };
        let by = |forwarding| move |server: RealServer| server.forwarding(forwarding);
        let v4 = [
            pod("10.1.0.4", 8080),
            pod("10.1.0.4", 9).weight(0),
            pod("10.1.0.40", 65_535).weight(999_999),
            pod("10.1.0.5", 80).weight(i32::MAX.unsigned_abs()),
            pod("192.168.255.255", 65_535).weight(1_234_567),
            pod("127.0.0.1", 80),
            by(Forwarding::Local)(pod("10.1.0.6", 80)),
            by(Forwarding::Route)(pod("10.1.0.7", 80)),
            by(Forwarding::Bypass)(pod("10.1.0.8", 80)),
            tunnel(TunnelKind::Ipip, 0, 0)(pod("10.1.0.9", 80)),
            tunnel(TunnelKind::Gue, 6080, 1)(pod("10.1.0.10", 80)),
            tunnel(TunnelKind::Gre, 0, 1)(pod("10.1.0.11", 80)),
        ];
        let v6 = [
            pod("fd01::4", 8080),
            pod("fd01:1111:2222:3333:4444:5555:6666:7777", 65_535).weight(70_000),
            pod("2001:db8::1", 80),
            pod("2001:db8:0:0:1::1", 80),
            pod("::1.2.3.4", 80),
            tunnel(TunnelKind::Ipip, 0, 0)(pod("10.1.0.4", 80)),
            tunnel(TunnelKind::Ipip, 0, 0)(pod("200.1.0.4", 80)),
        ];
        let mark = |family| VirtualServer::new(VirtualServerId::Mark { family, mark: 7 }, Scheduler::WRR);
        let servers = [
            (tcp("10.96.0.1", 80), &v4[..]),
            (mark(Family::V4), &v4[..]),
            (tcp("fd00::1", 80), &v6[..]),
            (mark(Family::V6), &v6[..]),
        ];
        add_all(kernel, servers);
        assert_same(kernel);
    });
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_order_is_ipvsadms_even_where_that_goes_in_circles() {
    in_new_namespace(|kernel| {
        if !has_program("ipvsadm") {
            return;
        }
        // Spread over the whole number range, so that the signed differences overflow.
        let spread = |count: u32, step: u32| (1..=count).map(move |n| n.wrapping_mul(step));
        let commands: Vec<_> = spread(150, 0x9E37_79B1)
            .map(|bits| std::net::Ipv4Addr::from_bits(bits).into())
            .chain(spread(150, 0x85EB_CA77).map(|bits| {
                std::net::Ipv6Addr::from_bits(u128::from(bits) << 96 | u128::from(bits.reverse_bits())).into()
            }))
            .map(|ip| {
                VirtualServer::new(
                    ipvs::ServiceAddress { protocol: Protocol::Tcp, ip, port: 80 },
                    Scheduler::RR,
                )
            })
            .chain(spread(150, 0xC2B2_AE3D).map(|mark| {
                VirtualServer::new(VirtualServerId::Mark { family: Family::V4, mark }, Scheduler::RR)
            }))
            .map(Command::AddVirtualServer)
            .collect();
        apply(kernel, &commands);
        // Unicast addresses of classes A to C, for the real servers.
        let real_servers: Vec<_> = spread(150, 0x9E37_79B1)
            .filter(|bits| matches!(bits >> 24, 1..=126 | 128..=223))
            .map(|bits| RealServer::masquerade(std::net::Ipv4Addr::from_bits(bits).into(), 80))
            .map(|real_server| Command::AddRealServer(commands[0].virtual_server(), real_server))
            .collect();
        apply(kernel, &real_servers);
        assert_same(kernel);
    });
}
