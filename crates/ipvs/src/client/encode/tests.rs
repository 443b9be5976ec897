//! Every byte of every request, written out. Numbers in host order are little-endian here.
#![cfg(target_endian = "little")]

use super::*;
use crate::{Protocol, Scheduler, ServiceAddress, ServiceFlags, TunnelKind};

const REQUESTS: Requests = Requests { family: 0x20 };

fn bytes(command: &Command, verb: Verb) -> Vec<u8> {
    let mut batch = Batch::default();
    REQUESTS.change(&mut batch, command, verb);
    batch.as_bytes().to_vec()
}

/// A message: netlink header, generic header, attributes.
fn message(command: u8, attributes: &[&[u8]]) -> Vec<u8> {
    let attributes = attributes.concat();
    let length = u8::try_from(20 + attributes.len()).unwrap();
    let header = [length, 0, 0, 0, 0x20, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, command, 1, 0, 0];
    [&header[..], &attributes].concat()
}

fn tcp(ip: &str, port: u16) -> ServiceAddress {
    ServiceAddress { protocol: Protocol::Tcp, ip: ip.parse().unwrap(), port }
}

/// 10.96.0.1:443/TCP as a nested SERVICE, for requests that name it and no more.
const NAMED: &[u8] = &[
    36, 0, 1, 0x80, // SERVICE
    6, 0, 1, 0, 2, 0, 0, 0, // AF
    6, 0, 2, 0, 6, 0, 0, 0, // PROTOCOL
    8, 0, 3, 0, 10, 96, 0, 1, // ADDR
    6, 0, 4, 0, 1, 187, 0, 0, // PORT 443
];

#[test]
fn an_ipv4_virtual_server_carries_its_mask_in_network_order() {
    let mut server = VirtualServer::new(tcp("10.96.0.1", 443), Scheduler::RR).persistent(10_800);
    server.prefix_length = 24;
    let expected = message(
        1,
        &[
            &[72, 0, 1, 0x80],
            &NAMED[4..],
            &[7, 0, 6, 0, b'r', b'r', 0, 0],                // SCHED_NAME
            &[12, 0, 7, 0, 1, 0, 0, 0, 255, 255, 255, 255], // FLAGS and mask
            &[8, 0, 8, 0, 0x30, 0x2a, 0, 0],                // TIMEOUT
            &[8, 0, 9, 0, 255, 255, 255, 0],                // NETMASK
        ],
    );
    assert_eq!(bytes(&Command::AddVirtualServer(server.clone()), Verb::New), expected);
    let set = bytes(&Command::EditVirtualServer(server), Verb::Set);
    assert_eq!((set[16], &set[20..]), (2, &expected[20..]), "SET differs in its command alone");
}

#[test]
fn an_ipv6_virtual_server_carries_its_prefix_length_in_host_order() {
    let mut server = VirtualServer::new(tcp("fd00::1", 80), Scheduler::LBLCR);
    server.flags = ServiceFlags::SCHEDULER_1 | ServiceFlags::SCHEDULER_2 | ServiceFlags::from_bits_retain(2);
    server.persistence_engine = Some("sip".into());
    let expected = message(
        1,
        &[
            &[96, 0, 1, 0x80],
            &[6, 0, 1, 0, 10, 0, 0, 0],
            &[6, 0, 2, 0, 6, 0, 0, 0],
            &[20, 0, 3, 0, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
            &[6, 0, 4, 0, 0, 80, 0, 0],
            &[10, 0, 6, 0, b'l', b'b', b'l', b'c', b'r', 0, 0, 0],
            &[12, 0, 7, 0, 0x18, 0, 0, 0, 255, 255, 255, 255], // without HASHED
            &[8, 0, 8, 0, 0, 0, 0, 0],
            &[8, 0, 9, 0, 128, 0, 0, 0],
            &[8, 0, 11, 0, b's', b'i', b'p', 0], // PE_NAME
        ],
    );
    assert_eq!(bytes(&Command::AddVirtualServer(server), Verb::New), expected);
}

#[test]
fn a_firewall_mark_takes_the_place_of_protocol_address_and_port() {
    let id = VirtualServerId::Mark { family: Family::V6, mark: 0x2a };
    let expected = message(3, &[&[20, 0, 1, 0x80, 6, 0, 1, 0, 10, 0, 0, 0, 8, 0, 5, 0, 42, 0, 0, 0]]);
    assert_eq!(bytes(&Command::DeleteVirtualServer(id), Verb::Delete), expected);
}

#[test]
fn a_real_server_follows_its_virtual_servers_name() {
    let mut server = RealServer::masquerade([192, 168, 7, 9].into(), 6443).weight(70_000);
    (server.upper_threshold, server.lower_threshold) = (9, 4);
    let expected = message(
        5,
        &[
            NAMED,
            &[60, 0, 2, 0x80], // DEST
            &[8, 0, 1, 0, 192, 168, 7, 9],
            &[6, 0, 2, 0, 0x19, 0x2b, 0, 0],
            &[6, 0, 11, 0, 2, 0, 0, 0],      // ADDR_FAMILY
            &[8, 0, 3, 0, 0, 0, 0, 0],       // FWD_METHOD
            &[8, 0, 4, 0, 0x70, 0x11, 1, 0], // WEIGHT
            &[8, 0, 5, 0, 9, 0, 0, 0],       // U_THRESH
            &[8, 0, 6, 0, 4, 0, 0, 0],       // L_THRESH
        ],
    );
    let id = tcp("10.96.0.1", 443).into();
    assert_eq!(bytes(&Command::AddRealServer(id, server), Verb::New), expected);
    let set = bytes(&Command::EditRealServer(id, server), Verb::Set);
    assert_eq!((set[16], &set[20..]), (6, &expected[20..]));
}

#[test]
fn a_tunnel_carries_its_encapsulation() {
    let mut server = RealServer::masquerade("fd01::9".parse().unwrap(), 443);
    server.forwarding = Forwarding::Tunnel;
    server.tunnel = Tunnel { kind: TunnelKind::Gue, port: 6080, flags: 1 };
    let expected = message(
        5,
        &[
            NAMED,
            &[96, 0, 2, 0x80],
            &[20, 0, 1, 0, 0xfd, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9],
            &[6, 0, 2, 0, 1, 187, 0, 0],
            &[6, 0, 11, 0, 10, 0, 0, 0], // of the other family than the virtual server
            &[8, 0, 3, 0, 2, 0, 0, 0],
            &[8, 0, 4, 0, 1, 0, 0, 0],
            &[8, 0, 5, 0, 0, 0, 0, 0],
            &[8, 0, 6, 0, 0, 0, 0, 0],
            &[5, 0, 13, 0, 1, 0, 0, 0],       // TUN_TYPE
            &[6, 0, 14, 0, 0x17, 0xc0, 0, 0], // TUN_PORT
            &[6, 0, 15, 0, 1, 0, 0, 0],       // TUN_FLAGS
        ],
    );
    assert_eq!(bytes(&Command::AddRealServer(tcp("10.96.0.1", 443).into(), server), Verb::New), expected);
}

#[test]
fn a_deleted_real_server_is_named_and_no_more() {
    let address = RealServerAddress { ip: [192, 168, 7, 9].into(), port: 6443 };
    let named =
        [28, 0, 2, 0x80, 8, 0, 1, 0, 192, 168, 7, 9, 6, 0, 2, 0, 0x19, 0x2b, 0, 0, 6, 0, 11, 0, 2, 0, 0, 0];
    let delete = Command::DeleteRealServer(tcp("10.96.0.1", 443).into(), address);
    assert_eq!(bytes(&delete, Verb::Delete), message(7, &[NAMED, &named]));
}

#[test]
fn timeouts_of_0_are_left_out() {
    let mut batch = Batch::default();
    REQUESTS.timeouts(&mut batch, Timeouts { tcp: 900, tcp_fin: 0, udp: 300 });
    let expected = message(12, &[&[8, 0, 4, 0, 0x84, 3, 0, 0], &[8, 0, 6, 0, 0x2c, 1, 0, 0]]);
    assert_eq!(batch.as_bytes(), expected);
}

#[test]
fn a_request_about_everything_has_no_attributes() {
    let mut batch = Batch::default();
    REQUESTS.about_all(&mut batch, uapi::command::FLUSH);
    assert_eq!(batch.as_bytes(), message(17, &[]));
}

#[test]
fn masks_go_from_nothing_to_all() {
    assert_eq!([0, 1, 24, 32, 255].map(ipv4_mask), [0, 0x8000_0000, 0xffff_ff00, u32::MAX, u32::MAX]);
}

#[test]
fn too_long_persistence_engine_is_sent_for_the_kernel_to_refuse() {
    let mut server = VirtualServer::new(tcp("10.96.0.1", 443), Scheduler::RR);
    server.persistence_engine = Some("e".repeat(100_000).into());
    let bytes = bytes(&Command::AddVirtualServer(server), Verb::New);
    assert_eq!(bytes[92..116], [&[21, 0, 11, 0][..], &[b'e'; 17], &[0; 3]].concat());
}
