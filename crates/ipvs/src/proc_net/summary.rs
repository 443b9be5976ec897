//! The summary of the table in `/proc/net/ip_vs`.
//!
//! One file with everything, at a fraction of the cost of netlink, which has to be asked for the real servers
//! of each virtual server separately. It cannot replace netlink: it lacks a virtual server's scheduler flags
//! and persistence engine, and a real server's thresholds and kind of tunnel. The format is that of
//! `ip_vs_info_seq_show` in net/netfilter/ipvs/ip_vs_ctl.c, the same in all kernels since IPv6 came to IPVS:
//!
//! ```text
//! IP Virtual Server version 1.2.1 (size=4096)
//! Prot LocalAddress:Port Scheduler Flags
//!   -> RemoteAddress:Port Forward Weight ActiveConn InActConn
//! TCP  0A600001:01BB rr  persistent 1080000 FFFFFFFF
//!   -> 0A010004:192B      Masq    1      0          0
//! TCP  [fd00:0000:0000:0000:0000:0000:0000:0001]:01BB rr
//! FWM  00000007 wlc
//! ```

use std::{
    io::{self, BufRead},
    iter, mem,
    net::IpAddr,
    num::NonZeroU32,
    str,
};

use super::{Lines, decimal, hexadecimal, invalid, word};
use crate::{
    Family, Forwarding, Protocol, RealServer, RealServerAddress, Scheduler, ServiceAddress, ServiceFlags,
    VirtualServer, VirtualServerId, virtual_server::ipv4_mask,
};

/// A virtual server that balances an address, as far as `/proc/net/ip_vs` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VirtualServerSummary {
    /// Its name.
    pub address: ServiceAddress,
    /// How it picks a real server.
    pub scheduler: Scheduler,
    /// Whether it has the flag [`ServiceFlags::ONE_PACKET`]. For IPv6 the kernel does not say.
    pub one_packet: bool,
    /// Its persistence, if it has one.
    pub persistence: Option<Persistence>,
    /// Its real servers in the order of their addresses.
    pub real_servers: Vec<RealServerSummary>,
}

/// How long a client stays with its real server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Persistence {
    /// In seconds.
    pub timeout: u32,
    /// The mask for a client's address, in host order. For IPv6 the prefix length, with its bytes reversed on
    /// a little-endian machine: the kernel prints it as if it were in network order.
    pub mask: u32,
}

/// A real server, as far as `/proc/net/ip_vs` shows it; its connections are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct RealServerSummary {
    /// Its name within its virtual server.
    pub address: RealServerAddress,
    /// How packets reach it. [`Forwarding::Bypass`] is shown as [`Forwarding::Masquerade`].
    pub forwarding: Forwarding,
    /// Its share of new connections.
    pub weight: u32,
}

impl VirtualServerSummary {
    /// The summary that the kernel shows of a virtual server with these real servers; `None` if it balances a
    /// firewall mark.
    pub fn new<'a>(
        config: &VirtualServer,
        real_servers: impl IntoIterator<Item = &'a RealServer>,
    ) -> Option<Self> {
        let VirtualServerId::Address(address) = config.id else { return None };
        let summary = Self {
            address,
            scheduler: config.scheduler,
            one_packet: config.flags.contains(ServiceFlags::ONE_PACKET) && address.ip.is_ipv4(),
            persistence: Persistence::new(config),
            real_servers: real_servers.into_iter().map(RealServerSummary::new).collect(),
        };
        Some(summary.sorted())
    }

    fn sorted(mut self) -> Self {
        self.real_servers.sort_unstable();
        self
    }

    /// Whether the kernel shows this of a virtual server of that configuration, its real servers aside.
    pub fn matches(&self, config: &VirtualServer) -> bool {
        let one_packet = config.flags.contains(ServiceFlags::ONE_PACKET);
        config.id == self.address.into()
            && config.scheduler == self.scheduler
            && (one_packet == self.one_packet || self.address.ip.is_ipv6())
            && Persistence::new(config) == self.persistence
    }
}

impl Persistence {
    fn new(config: &VirtualServer) -> Option<Self> {
        let mask = match config.id.family() {
            Family::V4 => ipv4_mask(config.prefix_length),
            Family::V6 => u32::from_be(config.prefix_length.into()),
        };
        let persistent = config.flags.contains(ServiceFlags::PERSISTENT);
        persistent.then_some(Self { timeout: config.timeout, mask })
    }
}

impl RealServerSummary {
    /// The summary that the kernel shows of a real server.
    pub fn new(config: &RealServer) -> Self {
        // ip_vs_fwd_name in include/net/ip_vs.h has no word for it.
        let forwarding = match config.forwarding {
            Forwarding::Bypass => Forwarding::Masquerade,
            other => other,
        };
        Self { address: config.address, forwarding, weight: config.weight }
    }
}

/// The virtual servers in a text like `/proc/net/ip_vs` that balance an address, in its order. Firewall marks and
/// other protocols are left out. Each step reads only as far as its virtual server.
///
/// The kernel measures timeouts in ticks of its clock, of which a second has `hertz` (`CONFIG_HZ`). A line
/// that is not understood is an error ([`io::ErrorKind::InvalidData`]): anything could be in it, and the items
/// after it are meaningless.
///
/// ```
/// use std::num::NonZeroU32;
///
/// let text = "\
/// IP Virtual Server version 1.2.1 (size=4096)
/// Prot LocalAddress:Port Scheduler Flags
///   -> RemoteAddress:Port Forward Weight ActiveConn InActConn
/// TCP  0A600001:01BB rr  persistent 2700000 FFFFFFFF
///   -> 0A010004:192B      Masq    1      0          0
/// ";
/// let hertz = NonZeroU32::new(250).ok_or(std::io::ErrorKind::InvalidInput)?;
/// for server in ipvs::proc_net::virtual_servers(text.as_bytes(), hertz) {
///     let server = server?;
///     assert_eq!(server.address.to_string(), "TCP 10.96.0.1:443");
///     assert_eq!(server.persistence.map(|persistence| persistence.timeout), Some(10_800));
///     assert_eq!(server.real_servers.len(), 1);
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn virtual_servers<T: BufRead>(
    text: T,
    hertz: NonZeroU32,
) -> impl Iterator<Item = io::Result<VirtualServerSummary>> + use<T> {
    let mut reader = Reader { lines: Lines::new(text), hertz, current: None };
    iter::from_fn(move || reader.next().transpose())
}

/// Reads one virtual server after another.
struct Reader<T> {
    lines: Lines<T>,
    hertz: NonZeroU32,
    /// The virtual server whose line was read last. Its real servers come after it.
    current: Option<VirtualServerSummary>,
}

impl<T: BufRead> Reader<T> {
    fn next(&mut self) -> io::Result<Option<VirtualServerSummary>> {
        while let Some(line) = self.lines.next()? {
            match (line.strip_prefix(b"  -> "), &mut self.current) {
                (Some(rest), Some(current)) => {
                    current.real_servers.push(real_server(rest).ok_or_else(invalid)?);
                }
                // Of a firewall mark, or the head.
                (Some(_), None) => {}
                (None, current) => {
                    let next = protocol(line).map(|(protocol, rest)| {
                        virtual_server(protocol, rest, self.hertz).ok_or_else(invalid)
                    });
                    if let Some(whole) = mem::replace(current, next.transpose()?) {
                        return Ok(Some(whole.sorted()));
                    }
                }
            }
        }
        Ok(self.current.take().map(VirtualServerSummary::sorted))
    }
}

/// The protocol that the line of a virtual server begins with, and the rest. `None`: it is another line.
fn protocol(line: &[u8]) -> Option<(Protocol, &[u8])> {
    let (name, rest) = word(line)?;
    Some((str::from_utf8(name).ok()?.parse().ok()?, rest))
}

/// `  0A600001:01BB rr ops persistent 1080000 FFFFFFFF`
fn virtual_server(protocol: Protocol, line: &[u8], hertz: NonZeroU32) -> Option<VirtualServerSummary> {
    let (ip, port, rest) = endpoint(line.strip_prefix(b"  ")?)?;
    let (scheduler, mut rest) = word(rest)?;
    let mut summary = VirtualServerSummary {
        address: ServiceAddress { protocol, ip, port },
        scheduler: str::from_utf8(scheduler).ok()?.parse().ok()?,
        one_packet: false,
        persistence: None,
        real_servers: Vec::new(),
    };
    while let Some((flag, after)) = word(rest) {
        rest = match flag {
            b"ops" => {
                summary.one_packet = true;
                after
            }
            b"persistent" => {
                let (ticks, after) = word(after)?;
                let (mask, after) = word(after)?;
                let (ticks, mask) = (unsigned(ticks)?, hexadecimal(mask)?);
                summary.persistence = Some(Persistence { timeout: ticks / hertz, mask });
                after
            }
            _ => return None,
        };
    }
    Some(summary)
}

/// `0A010004:192B      Masq    1      0          0         `, the connections left alone.
fn real_server(line: &[u8]) -> Option<RealServerSummary> {
    let (ip, port, rest) = endpoint(line)?;
    let (forwarding, rest) = word(rest)?;
    // ip_vs_fwd_name in include/net/ip_vs.h.
    let forwarding = match forwarding {
        b"Masq" => Forwarding::Masquerade,
        b"Local" => Forwarding::Local,
        b"Tunnel" => Forwarding::Tunnel,
        b"Route" => Forwarding::Route,
        _ => return None,
    };
    let weight = decimal(word(rest)?.0)?;
    Some(RealServerSummary { address: RealServerAddress { ip, port }, forwarding, weight })
}

/// An address in hexadecimal, or in brackets if it is IPv6, a colon, the port in hexadecimal, a blank; and
/// what follows.
fn endpoint(text: &[u8]) -> Option<(IpAddr, u16, &[u8])> {
    let (ip, rest) = match text.strip_prefix(b"[") {
        Some(text) => {
            let (ip, rest) = text.split_at_checked(text.iter().position(|byte| *byte == b']')?)?;
            (IpAddr::V6(str::from_utf8(ip).ok()?.parse().ok()?), rest.strip_prefix(b"]")?)
        }
        None => {
            let (ip, rest) = text.split_first_chunk::<8>()?;
            (IpAddr::V4(hexadecimal(ip)?.into()), rest)
        }
    };
    let (port, rest) = rest.strip_prefix(b":")?.split_first_chunk::<4>()?;
    Some((ip, u16::try_from(hexadecimal(port)?).ok()?, rest.strip_prefix(b" ")?))
}

/// The kernel prints it as if it had a sign (`%d` in ip_vs_info_seq_show).
fn unsigned(word: &[u8]) -> Option<u32> {
    decimal(word).or_else(|| decimal(word).map(i32::cast_unsigned))
}

#[cfg(test)]
mod tests;
