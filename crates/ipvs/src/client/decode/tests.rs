//! Captured from a 7.2 kernel (x86-64), except where a test says what it made up.
#![cfg(target_endian = "little")]

use netlink::{Batch, Encoder};
use proptest::prelude::*;

use super::*;

/// The empty counters that end every entry: STATS, then STATS64.
const STATS: &str = "5c000a000800010000000000080002000000000008000300000000000c00040000000000000000000c\
    0005000000000000000000080006000000000008000700000000000800080000000000080009000000000008000a00000000007c\
    000c000c00010000000000000000000c00020000000000000000000c00030000000000000000000c00040000000000000000000c\
    00050000000000000000000c00060000000000000000000c00070000000000000000000c00080000000000000000000c00090000\
    000000000000000c000a000000000000000000";

/// `-A -t 10.96.0.1:443 -s rr -p 10800`
const PERSISTENT: &str = "2c01010006000100020000000600020006000000140003000a600001000000000000000000000000\
    0600040001bb000007000600727200000c00070003000000ffffffff08000800302a000008000900ffffffff";

/// `-A -f 42 -6 -s mh -b mh-port -p 60 -M 64`
const MARK: &str = "1001010006000100\
    0a000000080005002a000000070006006d6800000c00070013000000ffffffff080008003c0000000800090040000000";

/// `-a -t 10.96.0.1:443 -r 192.168.7.9:6443 -m -w 70000 -x 9 -y 4`
const MASQUERADED: &str = "5001020014000100c0a8070900000000000000000000000006000200192b00000800030000000000\
    080004007011010005000d000000000006000e000000000006000f00000000000800050009000000080006000400000008000700\
    00000000080008000000000008000900000000\
    0006000b0002000000";

/// `-a -t 10.96.0.1:443 -r 192.168.7.10 -i --tun-type gue --tun-port 6080 --tun-csum`
const TUNNELLED: &str = "5001020014000100c0a8070a0000000000000000000000000600020001bb00000800030002000000\
    080004000100000005000d000100000006000e0017c0000006000f000100000008000500000000000800060000000000\
    080007000000000008000800000000000800090000000000\
    06000b0002000000";

fn captured(hex: &str) -> Vec<u8> {
    let hex: Vec<u8> = hex.bytes().chain(STATS.bytes()).collect();
    hex.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Attributes made up by a test.
fn made_up(content: impl FnOnce(&mut Encoder<'_>)) -> Vec<u8> {
    let mut batch = Batch::default();
    batch.generic(0, 0, 1, content);
    batch.as_bytes()[20..].to_vec()
}

fn made_up_service(content: impl FnOnce(&mut Encoder<'_>)) -> Vec<u8> {
    made_up(|e| {
        e.nest(message::SERVICE, |e| {
            e.u16(service::AF, uapi::AF_INET);
            e.u16(service::PROTOCOL, 6);
            e.bytes(service::ADDR, &[10, 96, 0, 1]);
            e.string(service::SCHED_NAME, "rr");
            content(e);
        });
    })
}

fn made_up_dest(content: impl FnOnce(&mut Encoder<'_>)) -> Vec<u8> {
    made_up(|e| {
        e.nest(message::DEST, |e| {
            e.bytes(dest::ADDR, &[9; 16]);
            e.u32(dest::FWD_METHOD, 0);
            content(e);
        });
    })
}

#[test]
fn an_ipv4_virtual_server_has_its_address_in_the_first_of_16_bytes() {
    let read = virtual_server(&captured(PERSISTENT)).unwrap();
    let vip = ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 1].into(), port: 443 };
    assert_eq!(read.config, VirtualServer::new(vip, Scheduler::RR).persistent(10_800));
    assert_eq!(read.stats, Stats::default());
}

#[test]
fn a_firewall_mark_is_a_virtual_server_without_protocol_address_and_port() {
    let read = virtual_server(&captured(MARK)).unwrap().config;
    let mut expected =
        VirtualServer::new(VirtualServerId::Mark { family: Family::V6, mark: 42 }, Scheduler::MH)
            .persistent(60);
    expected.flags |= ServiceFlags::SCHEDULER_2;
    expected.prefix_length = 64;
    assert_eq!(read, expected);
}

#[test]
fn a_weight_above_65535_is_read_whole() {
    let read = real_server(&captured(MASQUERADED), Family::V4).unwrap();
    let mut expected = RealServer::masquerade([192, 168, 7, 9].into(), 6443).weight(70_000);
    (expected.upper_threshold, expected.lower_threshold) = (9, 4);
    assert_eq!(read.config, expected);
}

#[test]
fn a_tunnels_encapsulation_is_read() {
    let read = real_server(&captured(TUNNELLED), Family::V4).unwrap().config;
    assert_eq!(read.forwarding, Forwarding::Tunnel);
    assert_eq!(read.tunnel, Tunnel { kind: TunnelKind::Gue, port: 6080, flags: 1 });
}

#[test]
fn a_real_server_has_its_virtual_servers_family_unless_it_says_otherwise() {
    let silent = made_up_dest(|_| {});
    assert_eq!(real_server(&silent, Family::V4).unwrap().config.address.ip, IpAddr::from([9, 9, 9, 9]));
    assert_eq!(real_server(&silent, Family::V6).unwrap().config.address.ip, IpAddr::from([9u8; 16]));
    let other = made_up_dest(|e| e.u16(dest::ADDR_FAMILY, uapi::AF_INET6));
    assert_eq!(real_server(&other, Family::V4).unwrap().config.address.ip, IpAddr::from([9u8; 16]));
}

#[test]
fn an_ipv4_mask_is_read_in_network_order() {
    let reply = made_up_service(|e| e.bytes(service::NETMASK, &[255, 255, 240, 0]));
    assert_eq!(virtual_server(&reply).unwrap().config.prefix_length, 20);
}

#[test]
fn a_persistence_engine_is_read() {
    let reply = made_up_service(|e| e.string(service::PE_NAME, "sip"));
    assert_eq!(virtual_server(&reply).unwrap().config.persistence_engine.as_deref(), Some("sip"));
}

/// STATS as kernels before 4.1 send it alone: 32 bits, bytes 64.
fn narrow_stats(e: &mut Encoder<'_>) {
    e.nest(service::STATS, |e| {
        for kind in [1, 2, 3, 6, 7, 8, 9, 10] {
            e.u32(kind, kind.into());
        }
        e.bytes(stats::INBYTES, &(1u64 << 40).to_ne_bytes());
        e.bytes(stats::OUTBYTES, &5u64.to_ne_bytes());
    });
}

#[test]
fn old_kernels_counters_are_read() {
    let read = virtual_server(&made_up_service(narrow_stats)).unwrap().stats;
    let expected = Stats {
        connections: 1,
        packets_in: 2,
        packets_out: 3,
        bytes_in: 1 << 40,
        bytes_out: 5,
        connections_per_second: 6,
        packets_in_per_second: 7,
        packets_out_per_second: 8,
        bytes_in_per_second: 9,
        bytes_out_per_second: 10,
    };
    assert_eq!(read, expected);
}

#[test]
fn the_wide_counters_win_over_the_narrow_ones() {
    let wide = |e: &mut Encoder<'_>| {
        e.nest(service::STATS64, |e| e.bytes(stats::CONNS, &(1u64 << 32 | 1).to_ne_bytes()));
        narrow_stats(e);
    };
    assert_eq!(virtual_server(&made_up_service(wide)).unwrap().stats.connections, 1 << 32 | 1);
}

#[test]
fn what_is_not_understood_is_an_error_that_names_it() {
    let errors = [
        virtual_server(&made_up_service(|e| e.u16(service::PROTOCOL, 50))).unwrap_err(),
        virtual_server(&made_up_service(|e| e.u16(service::AF, 1))).unwrap_err(),
        virtual_server(&[]).unwrap_err(),
        real_server(&made_up_dest(|e| e.u32(dest::FWD_METHOD, 7)), Family::V4).unwrap_err(),
        real_server(&made_up_dest(|e| e.u8(dest::TUN_TYPE, 3)), Family::V4).unwrap_err(),
    ];
    let shown = errors.map(|error| error.to_string().replace("malformed netlink message: ", ""));
    assert_eq!(
        shown,
        [
            "IPVS does not balance protocol 50",
            "address family 1",
            "no attribute 1",
            "forwarding method 7",
            "tunnel type 3"
        ]
    );
}

#[test]
fn bits_of_a_connection_are_no_part_of_the_forwarding_method() {
    let reply = made_up_dest(|e| e.u32(dest::FWD_METHOD, 0x0103));
    assert_eq!(real_server(&reply, Family::V4).unwrap().config.forwarding, Forwarding::Route);
}

#[test]
fn timeouts_and_info_are_read() {
    let reply = [8, 0, 4, 0, 0x84, 3, 0, 0, 8, 0, 5, 0, 0x78, 0, 0, 0, 8, 0, 6, 0, 0x2c, 1, 0, 0];
    assert_eq!(timeouts(&reply).unwrap(), Timeouts { tcp: 900, tcp_fin: 120, udp: 300 });
    let reply = [8, 0, 1, 0, 1, 2, 1, 0, 8, 0, 2, 0, 0, 0x10, 0, 0];
    assert_eq!(super::info(&reply).unwrap(), Info { version: (1, 2, 1), connection_table_size: 4096 });
}

/// Decodes with everything; what counts is that it returns.
fn decode(reply: &[u8]) {
    let _ = virtual_server(reply);
    let _ = real_server(reply, Family::V4);
    let _ = real_server(reply, Family::V6);
    let _ = timeouts(reply);
    let _ = super::info(reply);
}

#[test]
fn a_reply_cut_anywhere_does_not_panic() {
    for hex in [PERSISTENT, MARK, MASQUERADED, TUNNELLED] {
        let whole = captured(hex);
        for length in 0..whole.len() {
            assert!(virtual_server(&whole[..length]).is_err());
            assert!(real_server(&whole[..length], Family::V4).is_err());
            decode(&whole[..length]);
        }
    }
}

proptest! {
    #[test]
    fn garbage_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        decode(&bytes);
    }

    #[test]
    fn garbage_in_the_right_containers_does_not_panic(
        entries in proptest::collection::vec((0u16..20, proptest::collection::vec(any::<u8>(), 0..24)), 0..20)
    ) {
        for kind in [message::SERVICE, message::DEST] {
            decode(&made_up(|e| e.nest(kind, |e| entries.iter().for_each(|(kind, payload)| e.bytes(*kind, payload)))));
        }
    }

    #[test]
    fn a_damaged_reply_does_not_panic(at in 0usize..336, value: u8) {
        for hex in [PERSISTENT, MARK, MASQUERADED, TUNNELLED] {
            let mut reply = captured(hex);
            if let Some(byte) = reply.get_mut(at) {
                *byte = value;
            }
            decode(&reply);
        }
    }
}
