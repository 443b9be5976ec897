use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;
use crate::VirtualServerId;

const HERTZ: NonZeroU32 = NonZeroU32::new(100).unwrap();

fn read(text: &[u8]) -> io::Result<Vec<VirtualServerSummary>> {
    virtual_servers(text, HERTZ).collect()
}

fn server(protocol: Protocol, ip: &str, port: u16, scheduler: Scheduler) -> VirtualServerSummary {
    let address = ServiceAddress { protocol, ip: ip.parse().unwrap(), port };
    VirtualServerSummary {
        address,
        scheduler,
        one_packet: false,
        persistence: None,
        real_servers: Vec::new(),
    }
}

fn summary(ip: &str, port: u16, forwarding: Forwarding, weight: u32) -> RealServerSummary {
    let address = RealServerAddress { ip: ip.parse().unwrap(), port };
    RealServerSummary { address, forwarding, weight }
}

const HEAD: &str = "IP Virtual Server version 1.2.1 (size=4096)\n\
                    Prot LocalAddress:Port Scheduler Flags\n  \
                    -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n";

/// What Linux 7.2 printed, as it stands.
#[test]
fn what_a_kernel_printed_is_read() {
    let text = format!(
        "{HEAD}\
UDP  [fd00:0000:0000:0000:0000:0000:0000:0001]:0035 wlc\x20
  -> [fd00:0000:0000:0000:0000:0000:0000:0099]:0035      Masq    0      0          0\x20        \n\
\x20 -> [fd01:0000:0000:0000:0000:0000:0000:0004]:0035      Masq    0      0          0\x20        \n\
TCP  0A600001:01BB rr  persistent 1080000 FFFFFFFF
  -> 0A010005:01BB      Tunnel  70000  0          0\x20        \n\
\x20 -> 0A010004:192B      Masq    1      0          0\x20        \n\
FWM  00000007 wlc\x20
  -> 0A010004:0000      Route   1      0          0\x20        \n"
    );
    let masquerade = |ip, port, weight| summary(ip, port, Forwarding::Masquerade, weight);
    let expected = [
        VirtualServerSummary {
            real_servers: vec![masquerade("fd00::99", 53, 0), masquerade("fd01::4", 53, 0)],
            ..server(Protocol::Udp, "fd00::1", 53, Scheduler::WLC)
        },
        VirtualServerSummary {
            persistence: Some(Persistence { timeout: 10_800, mask: u32::MAX }),
            real_servers: vec![
                masquerade("10.1.0.4", 6443, 1),
                summary("10.1.0.5", 443, Forwarding::Tunnel, 70_000),
            ],
            ..server(Protocol::Tcp, "10.96.0.1", 443, Scheduler::RR)
        },
    ];
    assert_eq!(read(text.as_bytes()).unwrap(), expected);
}

#[test]
fn another_protocol_is_left_out_with_its_real_servers() {
    let text = format!(
        "{HEAD}IP_47  0A600001:0000 rr \n  -> 0A010004:0000      Route   1      0          0 \n\
         SCTP  0A600002:0050 mh \n"
    );
    let expected = [server(Protocol::Sctp, "10.96.0.2", 80, Scheduler::MH)];
    assert_eq!(read(text.as_bytes()).unwrap(), expected);
}

#[test]
fn an_empty_table_and_no_text_show_nothing() {
    assert_eq!(read(HEAD.as_bytes()).unwrap(), []);
    assert_eq!(read(b"").unwrap(), []);
}

#[test]
fn a_line_that_is_not_understood_is_an_error() {
    let long = format!("  -> 0A010004:1F90      Masq    1 {:2000}", "");
    for odd in [
        "  -> 0A010004:1F90      Masq    -1     0          0         ",
        "  -> 0A010004:1F90      Masq    4294967296 0      0         ",
        "  -> 0A010004:1F90      Teleport 1     0          0         ",
        "  -> 0A01004:1F90      Masq    1      0          0         ",
        "  -> 0A010004 1F90      Masq    1      0          0         ",
        "  -> [fd00:1F90      Masq    1      0          0         ",
        "  -> 0A010004:1F90",
        "  -> ",
        "TCP",
        "UDP  0A600001:0050",
        "TCP  0A600001:0050 Round-Robin ",
        "TCP  0A600001:0050 rr persistent 300",
        "TCP  0A600001:0050 rr persistent 300 FFFFFFFFF",
        "TCP  0A600001:0050 rr new-flag",
        long.as_str(),
    ] {
        let text = format!("{HEAD}TCP  0A600002:0050 rr \n{odd}\n");
        let error = read(text.as_bytes()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{odd:?}");
    }
}

#[test]
fn a_text_that_ends_within_a_line_is_an_error() {
    let text = format!("{HEAD}TCP  0A600001:0050 rr \n  -> 0A010001:1F90      Masq    1      0");
    assert_eq!(read(text.as_bytes()).unwrap_err().kind(), io::ErrorKind::InvalidData);
}

#[test]
fn a_summary_is_of_no_virtual_server_that_is_shown_otherwise() {
    let mut config =
        VirtualServer::new(server(Protocol::Tcp, "10.96.0.1", 80, Scheduler::RR).address, Scheduler::RR);
    config = config.persistent(10_800);
    config.prefix_length = 24;
    let shown = VirtualServerSummary {
        persistence: Some(Persistence { timeout: 10_800, mask: 0xFFFF_FF00 }),
        ..server(Protocol::Tcp, "10.96.0.1", 80, Scheduler::RR)
    };
    assert!(shown.matches(&config));
    let changes: [fn(&mut VirtualServer); 7] = [
        |server| server.id = VirtualServerId::Mark { family: crate::Family::V4, mark: 1 },
        |server| server.scheduler = Scheduler::WLC,
        |server| server.timeout = 300,
        |server| server.timeout += 1,
        |server| server.prefix_length = 32,
        |server| server.flags |= ServiceFlags::ONE_PACKET,
        |server| server.flags -= ServiceFlags::PERSISTENT,
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut other = config.clone();
        change(&mut other);
        assert!(!shown.matches(&other), "change {number}");
    }
    assert!(!VirtualServerSummary { persistence: None, ..shown }.matches(&config));
}

fn any_ip() -> impl Strategy<Value = IpAddr> {
    prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from)]
}

fn any_server() -> impl Strategy<Value = VirtualServerSummary> {
    let protocol = prop::sample::select(vec![Protocol::Tcp, Protocol::Udp, Protocol::Sctp]);
    let scheduler = prop::sample::select(Scheduler::ALL.to_vec());
    let persistence = prop::option::of((0..=u32::MAX / HERTZ, any::<u32>()));
    let real_servers = prop::collection::vec(any_summary(), 0..6);
    let of = (protocol, any_ip(), any::<u16>());
    (of, scheduler, any::<bool>(), persistence, real_servers).prop_map(
        |((protocol, ip, port), scheduler, one_packet, persistence, real_servers)| VirtualServerSummary {
            address: ServiceAddress { protocol, ip, port },
            scheduler,
            one_packet: one_packet && ip.is_ipv4(),
            persistence: persistence.map(|(timeout, mask)| Persistence { timeout, mask }),
            real_servers,
        },
    )
}

fn any_summary() -> impl Strategy<Value = RealServerSummary> {
    let shown = [Forwarding::Masquerade, Forwarding::Local, Forwarding::Tunnel, Forwarding::Route];
    let weight = 0..=i32::MAX.unsigned_abs();
    (any_ip(), any::<u16>(), prop::sample::select(shown.to_vec()), weight).prop_map(
        |(ip, port, forwarding, weight)| RealServerSummary {
            address: RealServerAddress { ip, port },
            forwarding,
            weight,
        },
    )
}

/// As `ip_vs_info_seq_show` prints it.
fn print(table: &[VirtualServerSummary]) -> String {
    let mut text = HEAD.to_owned();
    for server in table {
        let ServiceAddress { protocol, ip, port } = server.address;
        let ops = if server.one_packet { "ops " } else { "" };
        // The word "ops" has a place of its own behind the blank, for IPv4 alone.
        let flags = if ip.is_ipv4() { format!(" {ops}") } else { " ".to_owned() };
        write!(text, "{protocol}  {} {}{flags}", shown(ip, port), server.scheduler).unwrap();
        match server.persistence {
            Some(Persistence { timeout, mask }) => {
                writeln!(text, "persistent {} {mask:08X}", timeout * HERTZ.get()).unwrap();
            }
            None => writeln!(text).unwrap(),
        }
        for RealServerSummary { address, forwarding, weight } in &server.real_servers {
            let forwarding = match forwarding {
                Forwarding::Masquerade | Forwarding::Bypass => "Masq",
                Forwarding::Local => "Local",
                Forwarding::Tunnel => "Tunnel",
                Forwarding::Route => "Route",
            };
            let address = shown(address.ip, address.port);
            writeln!(text, "  -> {address}      {forwarding:<7} {weight:<6} {:<10} {:<10}", 3, 12).unwrap();
        }
    }
    text
}

/// `%08X:%04X`, or `[%pI6]:%04X`.
fn shown(ip: IpAddr, port: u16) -> String {
    match ip {
        IpAddr::V4(ip) => format!("{:08X}:{port:04X}", ip.to_bits()),
        IpAddr::V6(ip) => {
            let groups: Vec<_> = ip.segments().iter().map(|group| format!("{group:04x}")).collect();
            format!("[{}]:{port:04X}", groups.join(":"))
        }
    }
}

proptest! {
    #[test]
    fn whatever_the_kernel_prints_is_read_as_it_was(mut table in prop::collection::vec(any_server(), 0..6)) {
        let text = print(&table);
        for server in &mut table {
            server.real_servers.sort_unstable();
        }
        prop_assert_eq!(read(text.as_bytes()).unwrap(), table);
    }

    #[test]
    fn no_bytes_make_it_panic(text in prop::collection::vec(any::<u8>(), 0..3000)) {
        let _ = read(&text);
    }

    #[test]
    fn no_damage_makes_it_panic(
        table in prop::collection::vec(any_server(), 1..4),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut text = print(&table).into_bytes();
        for (place, byte) in damage {
            *place.get_mut(&mut text) = byte;
        }
        let _ = read(&text);
    }
}
