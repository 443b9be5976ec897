//! The table as `ipvsadm -Ln` prints it.

mod order;

use std::{
    collections::HashMap,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::{
    Family, Forwarding, Info, ObservedRealServer, ObservedVirtualServer, Protocol, ServiceFlags, Stats,
    VirtualServer, VirtualServerId, virtual_server::ipv4_mask,
};

/// Virtual servers with their real servers, printed byte for byte as ipvsadm 1.31 prints them with `-Ln`,
/// `-Ln --stats` or `-Ln --rate`: numeric, in its order, blanks at the ends of lines included. Scripts read
/// that.
///
/// ```
/// use ipvs::{Info, ObservedVirtualServer, Protocol, Scheduler, ServiceAddress, VirtualServer, text::Listing};
///
/// let vip = ServiceAddress { protocol: Protocol::Tcp, ip: [10, 96, 0, 1].into(), port: 443 };
/// let config = VirtualServer::new(vip, Scheduler::RR).persistent(10_800);
/// let servers = [(ObservedVirtualServer::new(config), vec![])];
/// assert_eq!(
///     Listing::new(Info::new((1, 2, 1), 4096), &servers).to_string(),
///     "IP Virtual Server version 1.2.1 (size=4096)\n\
///      Prot LocalAddress:Port Scheduler Flags\n\
///      \u{20}\u{20}-> RemoteAddress:Port           Forward Weight ActiveConn InActConn\n\
///      TCP  10.96.0.1:443 rr persistent 10800\n"
/// );
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Listing<'a> {
    /// Version and size, for the first line.
    pub info: Info,
    /// Each virtual server with its real servers, in any order.
    pub servers: &'a [(ObservedVirtualServer, Vec<ObservedRealServer>)],
    /// What is shown of each.
    pub columns: Columns,
    /// What is put at the end of the lines of virtual servers. ipvsadm puts nothing there.
    pub labels: Option<&'a HashMap<VirtualServerId, String>>,
}

impl<'a> Listing<'a> {
    /// The listing of `ipvsadm -Ln`.
    pub fn new(info: Info, servers: &'a [(ObservedVirtualServer, Vec<ObservedRealServer>)]) -> Self {
        Self { info, servers, columns: Columns::Configuration, labels: None }
    }

    /// This listing with other columns.
    #[must_use]
    pub fn columns(mut self, columns: Columns) -> Self {
        self.columns = columns;
        self
    }

    /// This listing with something at the end of the lines of these virtual servers.
    #[must_use]
    pub fn labels(mut self, labels: &'a HashMap<VirtualServerId, String>) -> Self {
        self.labels = Some(labels);
        self
    }
}

/// What is shown of each server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Columns {
    /// Scheduler, flags, forwarding, weight and connections.
    Configuration,
    /// Counters (`--stats`).
    Counters,
    /// Rates per second (`--rate`).
    Rates,
}

/// The lines over the counters.
const HEAD_OF_COUNTERS: &str = "\
Prot LocalAddress:Port               Conns   InPkts  OutPkts  InBytes OutBytes
  -> RemoteAddress:Port
";

/// The lines over the rates.
const HEAD_OF_RATES: &str = "\
Prot LocalAddress:Port                 CPS    InPPS   OutPPS    InBPS   OutBPS
  -> RemoteAddress:Port
";

impl fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor, patch) = self.info.version;
        let size = self.info.connection_table_size;
        writeln!(f, "IP Virtual Server version {major}.{minor}.{patch} (size={size})")?;
        match self.columns {
            Columns::Configuration => {
                writeln!(f, "Prot LocalAddress:Port Scheduler Flags")?;
                writeln!(f, "  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn")?;
            }
            Columns::Counters => f.write_str(HEAD_OF_COUNTERS)?,
            Columns::Rates => f.write_str(HEAD_OF_RATES)?,
        }
        for (virtual_server, real_servers) in order::virtual_servers(self.servers) {
            self.virtual_server(f, virtual_server)?;
            for real_server in order::real_servers(real_servers) {
                self.real_server(f, real_server)?;
            }
        }
        Ok(())
    }
}

impl Listing<'_> {
    fn virtual_server(&self, f: &mut fmt::Formatter<'_>, server: &ObservedVirtualServer) -> fmt::Result {
        let name = name(server.config.id);
        match self.columns {
            Columns::Configuration => {
                write!(f, "{name} {}", server.config.scheduler)?;
                flags(f, &server.config)?;
            }
            Columns::Counters => write!(f, "{name:<33}{}", CounterColumns::totals(&server.stats))?,
            Columns::Rates => write!(f, "{name:<33}{}", CounterColumns::rates(&server.stats))?,
        }
        match self.labels.and_then(|labels| labels.get(&server.config.id)) {
            Some(label) => writeln!(f, " {label}"),
            None => writeln!(f),
        }
    }

    fn real_server(&self, f: &mut fmt::Formatter<'_>, server: &ObservedRealServer) -> fmt::Result {
        let endpoint = Endpoint(server.config.address.ip, server.config.address.port).to_string();
        write!(f, "  -> {endpoint:<28}")?;
        match self.columns {
            Columns::Configuration => configuration(f, server),
            Columns::Counters => writeln!(f, "{}", CounterColumns::totals(&server.stats)),
            Columns::Rates => writeln!(f, "{}", CounterColumns::rates(&server.stats)),
        }
    }
}

fn name(id: VirtualServerId) -> String {
    match id {
        VirtualServerId::Address(address) => {
            let space = if address.protocol == Protocol::Sctp { "" } else { " " };
            format!("{}{space} {}", address.protocol, Endpoint(address.ip, address.port))
        }
        // ipvsadm takes marks as signed.
        VirtualServerId::Mark { family, mark } => {
            let family = if family == Family::V6 { " IPv6" } else { "" };
            format!("FWM  {}{family}", mark.cast_signed())
        }
    }
}

/// The flags of a virtual server, those of its scheduler first.
fn flags(f: &mut fmt::Formatter<'_>, server: &VirtualServer) -> fmt::Result {
    scheduler_flags(f, server)?;
    if server.flags.contains(ServiceFlags::PERSISTENT) {
        write!(f, " persistent {}", server.timeout)?;
        persistence_mask(f, server)?;
        if let Some(engine) = &server.persistence_engine {
            write!(f, " pe {engine}")?;
        }
    }
    if server.flags.contains(ServiceFlags::ONE_PACKET) { f.write_str(" ops") } else { Ok(()) }
}

/// The scheduler's flags, by name. The third has none for `sh` and `mh`.
fn scheduler_flags(f: &mut fmt::Formatter<'_>, server: &VirtualServer) -> fmt::Result {
    if !server.flags.intersects(ServiceFlags::OF_SCHEDULER) {
        return Ok(());
    }
    f.write_str(" (")?;
    for (number, name) in server.scheduler.flag_names(server.flags).enumerate() {
        write!(f, "{}{name}", if number == 0 { "" } else { "," })?;
    }
    f.write_str(")")
}

/// The mask of client addresses, where it is not every bit.
fn persistence_mask(f: &mut fmt::Formatter<'_>, server: &VirtualServer) -> fmt::Result {
    let (family, length) = (server.id.family(), server.prefix_length);
    match family {
        _ if length == family.address_bits() => Ok(()),
        Family::V4 => {
            write!(f, " mask {}", Ipv4Addr::from_bits(ipv4_mask(length)))
        }
        Family::V6 => write!(f, " mask {length}"),
    }
}

/// Forwarding, weight and connections of a real server.
fn configuration(f: &mut fmt::Formatter<'_>, server: &ObservedRealServer) -> fmt::Result {
    let ObservedRealServer { config, active_connections, inactive_connections, .. } = server;
    let forwarding = match config.forwarding {
        Forwarding::Masquerade => "Masq",
        Forwarding::Local => "Local",
        Forwarding::Tunnel => "Tunnel",
        Forwarding::Route => "Route",
        Forwarding::Bypass => "(null)",
    };
    let weight = config.weight.cast_signed();
    writeln!(f, " {forwarding:<7} {weight:<6} {active_connections:<10} {inactive_connections:<10}")
}

/// Address and port, as `inet_ntop` spells addresses.
pub(crate) struct Endpoint(pub(crate) IpAddr, pub(crate) u16);

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(ip, port) = self;
        match ip {
            IpAddr::V4(ip) => write!(f, "{ip}:{port}"),
            IpAddr::V6(ip) => match embedded(*ip) {
                Some(v4) => write!(f, "[::{v4}]:{port}"),
                None => write!(f, "[{ip}]:{port}"),
            },
        }
    }
}

/// The IPv4 address in `::a.b.c.d`, which `inet_ntop` shows as such and Rust does not.
fn embedded(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    match ip.segments() {
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => {
            Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
        }
        _ => None,
    }
}

/// Connections, packets in and out, bytes in and out. Each takes nine columns.
struct CounterColumns([u64; 5]);

impl CounterColumns {
    /// Since the server was made.
    fn totals(stats: &Stats) -> Self {
        Self([stats.connections, stats.packets_in, stats.packets_out, stats.bytes_in, stats.bytes_out])
    }

    /// The rates of the last seconds, per second.
    fn rates(stats: &Stats) -> Self {
        Self([
            stats.connections_per_second,
            stats.packets_in_per_second,
            stats.packets_out_per_second,
            stats.bytes_in_per_second,
            stats.bytes_out_per_second,
        ])
    }
}

impl fmt::Display for CounterColumns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|number| match number {
            0..100_000_000 => write!(f, "{number:>9}"),
            0..1_000_000_000 => write!(f, "{:>8}K", number / 1_000),
            0..100_000_000_000 => write!(f, "{:>8}M", number / 1_000_000),
            0..100_000_000_000_000 => write!(f, "{:>8}G", number / 1_000_000_000),
            _ => write!(f, "{:>8}T", number / 1_000_000_000_000),
        })
    }
}

#[cfg(test)]
mod tests;
