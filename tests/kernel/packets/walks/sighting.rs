//! One look at a packet at a hook.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

/// A hook of netfilter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    Prerouting,
    Input,
    Forward,
    Output,
    Postrouting,
}

impl Hook {
    pub(crate) const ALL: [Self; 5] =
        [Self::Prerouting, Self::Input, Self::Forward, Self::Output, Self::Postrouting];
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Prerouting => "prerouting",
            Self::Input => "input",
            Self::Forward => "forward",
            Self::Output => "output",
            Self::Postrouting => "postrouting",
        })
    }
}

/// A packet as it arrives at a priority of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sighting {
    pub(crate) hook: Hook,
    pub(crate) priority: i32,
    pub(crate) packet: Packet,
    pub(crate) mark: u32,
    /// `new`, `established`, `related`; `invalid` before conntrack has seen it, too.
    pub(crate) state: String,
}

/// What the headers say. ICMP has no port, but quotes the one it goes back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) kind: Kind,
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
}

/// The packets by which a connection is made, or is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Syn,
    SynAck,
    Rst,
    /// ICMP: destination unreachable.
    Unreachable,
}

impl Packet {
    /// Reads an IP packet of either family. None: of another kind.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (protocol, source, destination, payload) = ip(bytes)?;
        let (kind, source_port, destination_port) = match (protocol, payload) {
            (6, tcp) => (tcp_kind(tcp[13])?, port(tcp, 0), port(tcp, 2)),
            // It goes to where the packet came from whose beginning it quotes.
            (1, [3, ..]) | (58, [1, ..]) => (Kind::Unreachable, 0, port(ip(&payload[8..])?.3, 0)),
            _ => return None,
        };
        let source = SocketAddr::new(source, source_port);
        Some(Self { kind, source, destination: SocketAddr::new(destination, destination_port) })
    }
}

/// Protocol, source, destination, and what they enclose.
fn ip(bytes: &[u8]) -> Option<(u8, IpAddr, IpAddr, &[u8])> {
    match bytes.first()? >> 4 {
        4 => {
            let address = |at| <[u8; 4]>::try_from(&bytes[at..at + 4]).unwrap().into();
            let length = usize::from(bytes[0] & 0xf) * 4;
            Some((bytes[9], address(12), address(16), &bytes[length..]))
        }
        6 => {
            let address = |at| <[u8; 16]>::try_from(&bytes[at..at + 16]).unwrap().into();
            Some((bytes[6], address(8), address(24), &bytes[40..]))
        }
        _ => None,
    }
}

fn port(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn tcp_kind(flags: u8) -> Option<Kind> {
    const SYN: u8 = 0x02;
    const RST: u8 = 0x04;
    const ACK: u8 = 0x10;
    match flags & (SYN | RST | ACK) {
        SYN => Some(Kind::Syn),
        flags if flags == SYN | ACK => Some(Kind::SynAck),
        flags if flags & RST != 0 => Some(Kind::Rst),
        _ => None,
    }
}
