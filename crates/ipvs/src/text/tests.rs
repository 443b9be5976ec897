use super::*;
use crate::{RealServer, Scheduler, ServiceAddress, Stats, Tunnel};

fn at(protocol: Protocol, ip: &str, port: u16) -> VirtualServer {
    VirtualServer::new(ServiceAddress { protocol, ip: ip.parse().unwrap(), port }, Scheduler::RR)
}

/// The line of a virtual server, and those of its real servers.
fn lines(server: &VirtualServer, real_servers: Vec<ObservedRealServer>) -> Vec<String> {
    let servers = [(ObservedVirtualServer::new(server.clone()), real_servers)];
    let listing = Listing::new(Info::new((1, 2, 1), 4096), &servers).to_string();
    listing.lines().skip(3).map(str::to_owned).collect()
}

fn line(server: &VirtualServer) -> String {
    lines(server, vec![]).remove(0)
}

fn real_server_line(server: ObservedRealServer) -> String {
    lines(&at(Protocol::Tcp, "10.0.0.1", 80), vec![server]).remove(1)
}

fn observed(config: RealServer) -> ObservedRealServer {
    ObservedRealServer {
        config,
        active_connections: 3,
        inactive_connections: 12,
        persistent_connections: 1,
        stats: Stats::default(),
    }
}

#[test]
fn protocols_fill_four_columns() {
    assert_eq!(line(&at(Protocol::Tcp, "10.0.0.1", 80)), "TCP  10.0.0.1:80 rr");
    assert_eq!(line(&at(Protocol::Udp, "fd00::1", 53)), "UDP  [fd00::1]:53 rr");
    assert_eq!(line(&at(Protocol::Sctp, "10.0.0.1", 5060)), "SCTP 10.0.0.1:5060 rr");
}

#[test]
fn marks_are_signed_and_name_ipv6() {
    let mark = |family, mark| VirtualServer::new(VirtualServerId::Mark { family, mark }, Scheduler::WLC);
    assert_eq!(line(&mark(Family::V4, 7)), "FWM  7 wlc");
    assert_eq!(line(&mark(Family::V6, u32::MAX)), "FWM  -1 IPv6 wlc");
}

#[test]
fn persistence_shows_its_mask_only_where_it_is_not_whole_then_its_engine() {
    let mut server = at(Protocol::Udp, "10.0.0.1", 5060).persistent(300);
    assert_eq!(line(&server), "UDP  10.0.0.1:5060 rr persistent 300");
    server.prefix_length = 24;
    server.persistence_engine = Some("sip".into());
    server.flags |= ServiceFlags::ONE_PACKET;
    assert_eq!(line(&server), "UDP  10.0.0.1:5060 rr persistent 300 mask 255.255.255.0 pe sip ops");
    let mut server = at(Protocol::Tcp, "fd00::1", 80).persistent(300);
    server.prefix_length = 64;
    assert_eq!(line(&server), "TCP  [fd00::1]:80 rr persistent 300 mask 64");
}

#[test]
fn hashing_schedulers_name_their_flags() {
    let both = ServiceFlags::SCHEDULER_1 | ServiceFlags::SCHEDULER_2;
    let mut server = at(Protocol::Tcp, "10.0.0.1", 80);
    for (scheduler, flags, shown) in [
        (Scheduler::MH, both, "mh (mh-fallback,mh-port)"),
        (Scheduler::SH, ServiceFlags::SCHEDULER_2, "sh (sh-port)"),
        (Scheduler::SH, ServiceFlags::SCHEDULER_3, "sh ()"),
        (Scheduler::RR, both | ServiceFlags::SCHEDULER_3, "rr (flag-1,flag-2,flag-3)"),
    ] {
        (server.scheduler, server.flags) = (scheduler, flags);
        assert_eq!(line(&server), format!("TCP  10.0.0.1:80 {shown}"));
    }
}

#[test]
fn real_servers_are_in_columns_and_end_in_blanks() {
    let server = observed(RealServer::masquerade([10, 1, 0, 4].into(), 8080).weight(70_000));
    assert_eq!(
        real_server_line(server),
        "  -> 10.1.0.4:8080                Masq    70000  3          12        "
    );
    let wide = "fd01:1111:2222:3333:4444:5555:6666:7777";
    let mut config = RealServer::masquerade(wide.parse().unwrap(), 8080);
    (config.forwarding, config.tunnel) = (Forwarding::Tunnel, Tunnel::default());
    assert_eq!(
        real_server_line(observed(config)),
        format!("  -> [{wide}]:8080 Tunnel  1      3          12        ")
    );
}

#[test]
fn addresses_are_spelled_as_inet_ntop_spells_them() {
    for (ip, shown) in [
        ("::", "[::]:1"),
        ("::1", "[::1]:1"),
        ("::1:2", "[::0.1.0.2]:1"),
        ("::ffff:1.2.3.4", "[::ffff:1.2.3.4]:1"),
        ("1:0:0:2:0:0:0:3", "[1:0:0:2::3]:1"),
        ("1:0:2:3:4:5:6:7", "[1:0:2:3:4:5:6:7]:1"),
    ] {
        assert_eq!(Endpoint(ip.parse().unwrap(), 1).to_string(), shown);
    }
}

#[test]
fn a_label_is_at_the_end_of_its_virtual_server_s_line() {
    let (web, other) = (at(Protocol::Tcp, "10.0.0.1", 80).persistent(300), at(Protocol::Udp, "10.0.0.2", 53));
    let labels = HashMap::from([(web.id, "default/web".to_owned())]);
    let real_server = observed(RealServer::masquerade("10.1.0.1".parse().unwrap(), 8080));
    let servers = [
        (ObservedVirtualServer::new(web), vec![real_server]),
        (ObservedVirtualServer::new(other), Vec::new()),
    ];
    let listed = |columns| {
        let listing = Listing::new(Info::new((1, 2, 1), 4096), &servers).columns(columns).labels(&labels);
        listing
            .to_string()
            .lines()
            .filter(|line| !line.starts_with("  ->"))
            .skip(2)
            .collect::<Vec<_>>()
            .join("\n")
    };
    assert_eq!(
        listed(Columns::Configuration),
        "TCP  10.0.0.1:80 rr persistent 300 default/web\nUDP  10.0.0.2:53 rr"
    );
    assert_eq!(
        listed(Columns::Counters),
        "TCP  10.0.0.1:80                         0        0        0        0        0 default/web\n\
         UDP  10.0.0.2:53                         0        0        0        0        0"
    );
}

#[test]
fn large_numbers_are_cut_as_ipvsadm_cuts_them() {
    let columns =
        CounterColumns([99_999_999, 100_000_000, 1_000_000_000, 100_000_000_000, 100_000_000_000_000]);
    assert_eq!(columns.to_string(), " 99999999  100000K    1000M     100G     100T");
}
