//! Samples for tests.

use std::time::{Duration, Instant};

use ipvs::{
    ObservedRealServer, ObservedVirtualServer, Protocol, RealServer, RealServerAddress, Scheduler,
    ServiceAddress, Stats, VirtualServer, VirtualServerId,
};

use reconciler::VirtualServerOwner;

use super::super::{super::syn_recv::SynRecv, Frame, Sample, meter::Meter, names::Names};

/// `TCP 10.96.0.LAST:PORT`.
pub(in crate::cli::top) fn vip(last: u8, port: u16) -> ServiceAddress {
    ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, last].into(), port }
}

/// So many packets both ways, of a hundred bytes in and a thousand out; a connection for each ten.
pub(in crate::cli::top) fn stats(packets: u64) -> Stats {
    let mut stats = Stats::default();
    stats.connections = packets / 10;
    (stats.packets_in, stats.packets_out) = (packets, packets);
    (stats.bytes_in, stats.bytes_out) = (100 * packets, 1000 * packets);
    stats
}

/// With the packets of the virtual server, and of its real servers 10.244.0.LAST:8080 each the packets, which are its
/// active connections too.
pub(in crate::cli::top) fn server(
    id: impl Into<VirtualServerId>,
    packets: u64,
    real_servers: &[(u8, u32)],
) -> (ObservedVirtualServer, Vec<ObservedRealServer>) {
    let config = VirtualServer::new(id, Scheduler::RR);
    let real_server = |(last, packets): &(u8, u32)| {
        let config = RealServer::masquerade([10, 244, 0, *last].into(), 8080);
        ObservedRealServer::new(config).connections(*packets, 1).stats(stats(u64::from(*packets)))
    };
    let virtual_server = ObservedVirtualServer::new(config).stats(stats(packets));
    (virtual_server, real_servers.iter().map(real_server).collect())
}

/// Two addresses are of default/web, one of default/dns.
pub(in crate::cli::top) fn names() -> Names {
    let owner = |address, service: &str| VirtualServerOwner {
        address,
        service: service.parse().unwrap(),
        real_servers: 1,
    };
    let mut names = Names::default();
    let owners = vec![
        owner(vip(10, 80), "default/web"),
        owner(vip(11, 80), "default/web"),
        owner(vip(20, 53), "default/dns"),
    ];
    names.learn(owners, Instant::now());
    names
}

/// What two samples, two seconds apart, make. There are 30 connections in SYN_RECV, at 10.96.0.10:80 ->
/// 10.244.0.1:8080.
pub(in crate::cli::top) fn frame(
    before: Vec<(ObservedVirtualServer, Vec<ObservedRealServer>)>,
    now: Vec<(ObservedVirtualServer, Vec<ObservedRealServer>)>,
) -> Frame {
    let (begin, names, mut meter) = (Instant::now(), names(), Meter::default());
    let first = Sample { at: begin, servers: before, syn_recv: SynRecv::default() };
    assert!(meter.frame(&first, &names).is_none());
    let real_server = RealServerAddress { ip: [10, 244, 0, 1].into(), port: 8080 };
    let syn_recv = SynRecv::known(vip(10, 80), real_server, 30);
    let later = Sample { at: begin + Duration::from_secs(2), servers: now, syn_recv };
    meter.frame(&later, &names).unwrap()
}

/// The traffic of three Services, and of a firewall mark.
pub(in crate::cli::top) fn traffic() -> Frame {
    let mark = VirtualServerId::Mark { family: ipvs::Family::V4, mark: 7 };
    frame(
        vec![
            server(vip(10, 80), 100, &[(1, 60), (2, 40)]),
            server(vip(11, 80), 0, &[(1, 0)]),
            server(vip(20, 53), 0, &[]),
            server(mark, 0, &[(9, 0)]),
        ],
        vec![
            server(vip(10, 80), 300, &[(1, 160), (2, 140)]),
            server(vip(11, 80), 100, &[(1, 100)]),
            server(vip(20, 53), 3, &[(5, 3)]),
            server(mark, 4_000_000, &[(9, 4_000_000)]),
        ],
    )
}
