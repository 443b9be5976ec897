//! What a rule says, in the terms of nft's language.

use std::net::IpAddr;

use ipnet::IpNet;
use ipvs::Family;

use super::expression::{
    Base, Comparison, ConntrackKey, Direction, Expression, HeaderChecksum, MetaKey, Register, Verdict,
};

/// A part of a packet that a set's key is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Saddr,
    Daddr,
    L4Proto,
    ThDport,
    /// What [`Statement::SetPriorityToDaddr`] has put there.
    Priority,
    /// Where the first packet of the connection went, as conntrack saw it.
    OriginalDaddr,
    OriginalDport,
}

/// The interfaces that a rule matches. Names have 1 to 15 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Interface {
    Name(Box<str>),
    Prefix(Box<str>),
}

/// What conntrack says about a packet's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CtState {
    /// This is the first packet, or there was no answer so far. Neighbour discovery is not tracked and so not
    /// new (`nf_conntrack_icmpv6.c`).
    New,
    /// Packets in both directions were seen, or this is an error message about such a connection.
    EstablishedOrRelated,
    /// It fits no connection, or is not tracked.
    InvalidOrUntracked,
}

/// One statement. Matches come first; a rule ends where one does not match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Statement {
    /// The source lies in this network.
    Saddr(IpNet),
    /// The source lies outside of it.
    SaddrNot(IpNet),
    /// The destination is this address.
    Daddr(IpAddr),
    /// The packet has another of its family inside.
    Encapsulates,
    /// The packet has another of its family inside, by generic UDP encapsulation at this port, without any option: the
    /// kernel would hand whatever else is said to be inside to the node's own programs.
    EncapsulatesByGue(u16),
    /// The packet came in through this interface.
    IifName(Interface),
    /// The packet came in through another interface than those by which its source is reached: a strict reverse path
    /// check.
    NoWayBack,
    /// The set holds these fields of the packet.
    InSet { fields: &'static [Field], set: &'static str },
    /// The packet's connection is in this state.
    CtState(CtState),
    /// The packet is an answer.
    IsReply,
    /// The packet opens a TCP connection, or says that it is open.
    TcpSyn,
    /// The packet asks for an echo, as ping sends it.
    EchoRequest,
    /// The packet's mark has this bit.
    HasMark(u32),
    /// Sets this bit of the mark.
    SetMark(u32),
    /// Clears this bit of the mark.
    ClearMark(u32),
    /// Fixes the connection's destination as it is: the first destination NAT of a connection, by any table,
    /// is the only one (`nf_nat_inet_fn` in net/netfilter/nf_nat_core.c).
    DnatToDaddr,
    /// Makes the connection's destination what the map has for these fields: an address with a port.
    DnatTo { fields: &'static [Field], map: &'static str },
    /// Replaces the destination of this packet alone.
    SetDaddr(IpAddr),
    /// Notes the last four bytes of the destination where the kernel has the packet's priority. It keeps that while it
    /// decapsulates the packet, and forgets it when it forwards the content (`ip_forward` in net/ipv4/ip_forward.c).
    SetPriorityToDaddr,
    /// Keeps the packet from conntrack.
    Notrack,
    /// Counts the packet.
    Counter,
    /// Lowers the maximum segment size that a TCP SYN announces to what the map has for these fields.
    ClampMaxSegmentSize { fields: &'static [Field], map: &'static str },
    /// Replaces the source by the node's own address.
    Masquerade { fully_random: bool },
    /// Goes through another chain, then on.
    Jump(&'static str),
    /// Goes through another chain, and does not come back.
    Goto(&'static str),
    /// Leaves this chain.
    Return,
    /// Drops the packet silently.
    Drop,
    /// Drops the packet and answers that the port is unreachable.
    Reject,
}

impl Field {
    /// How many bytes it has in a packet of `family`. In a register, and in a set's key, it takes
    /// the next multiple of four.
    pub(crate) const fn length(self, family: Family) -> u8 {
        match self {
            Self::Saddr | Self::Daddr | Self::OriginalDaddr => family.address_bits() / 8,
            Self::L4Proto => 1,
            Self::ThDport | Self::OriginalDport => 2,
            Self::Priority => 4,
        }
    }

    fn load(self, family: Family, to: Register) -> Expression {
        let length = self.length(family);
        let header = |offset| Expression::Payload { base: Base::Network, offset, length, to };
        let original = |key| Expression::Conntrack { key, direction: Some(Direction::Original), to };
        match (self, family) {
            (Self::Saddr, Family::V4) => header(12),
            (Self::Saddr, Family::V6) => header(8),
            (Self::Daddr, _) => header(daddr_offset(family)),
            (Self::L4Proto, _) => Expression::Meta { key: MetaKey::L4Protocol, to },
            // The same place in TCP, UDP and SCTP.
            (Self::ThDport, _) => Expression::Payload { base: Base::Transport, offset: 2, length, to },
            (Self::Priority, _) => Expression::Meta { key: MetaKey::Priority, to },
            (Self::OriginalDaddr, Family::V4) => original(ConntrackKey::DestinationV4),
            (Self::OriginalDaddr, Family::V6) => original(ConntrackKey::DestinationV6),
            (Self::OriginalDport, _) => original(ConntrackKey::DestinationPort),
        }
    }
}

const fn daddr_offset(family: Family) -> u8 {
    match family {
        Family::V4 => 16,
        Family::V6 => 24,
    }
}

/// The protocol number of a packet inside another of the same family, and what nft calls it.
pub(super) const fn encapsulation(family: Family) -> (u8, &'static str) {
    match family {
        Family::V4 => (4, "ipencap"),
        Family::V6 => (41, "ipv6"),
    }
}

const IPPROTO_UDP: u8 = 17;
/// The first byte behind the header of UDP: version 0, no control message, no options (include/net/gue.h). The protocol
/// follows.
pub(super) const GUE_PLAIN: u8 = 0;

const FIRST: Register = Register(0);

impl Statement {
    /// The instructions that do what the statement says to packets of `family`.
    pub(crate) fn expressions(&self, family: Family) -> Vec<Expression> {
        match self {
            Self::Saddr(net) => source(*net, Comparison::Equal),
            Self::SaddrNot(net) => source(*net, Comparison::NotEqual),
            Self::Daddr(ip) => vec![Field::Daddr.load(family, FIRST), equal(octets(*ip))],
            Self::Encapsulates => {
                let (number, _) = encapsulation(family);
                vec![Field::L4Proto.load(family, FIRST), equal(vec![number])]
            }
            Self::EncapsulatesByGue(port) => encapsulates_by_gue(*port, family),
            Self::IifName(interface) => vec![
                Expression::Meta { key: MetaKey::InputInterfaceName, to: FIRST },
                equal(interface.pattern()),
            ],
            Self::NoWayBack => vec![Expression::WayBack { to: FIRST }, equal(vec![0; 4])],
            Self::InSet { fields, set } => {
                let mut expressions = loaded(fields, family);
                expressions.push(Expression::Lookup { set, key: FIRST, value: None });
                expressions
            }
            Self::CtState(connection) => vec![
                Expression::Conntrack { key: ConntrackKey::State, direction: None, to: FIRST },
                masked(connection.bits(), 0),
                Expression::Compare { register: FIRST, how: Comparison::NotEqual, value: vec![0; 4] },
            ],
            Self::IsReply => vec![
                Expression::Conntrack { key: ConntrackKey::Direction, direction: None, to: FIRST },
                equal(vec![Direction::Reply as u8]),
            ],
            Self::TcpSyn => tcp_syn(family),
            Self::EchoRequest => echo_request(family),
            Self::HasMark(bit) => vec![
                Expression::Meta { key: MetaKey::Mark, to: FIRST },
                masked(*bit, 0),
                equal(bit.to_ne_bytes().into()),
            ],
            Self::SetMark(bit) => change_mark(!bit, *bit),
            Self::ClearMark(bit) => change_mark(!bit, 0),
            Self::DnatToDaddr => vec![
                Field::Daddr.load(family, FIRST),
                Expression::DestinationNat { family, address: FIRST, port: None },
            ],
            Self::DnatTo { fields, map } => {
                let mut expressions = loaded(fields, family);
                let port = Some(FIRST.after(Field::Daddr.length(family)));
                expressions.extend([
                    Expression::Lookup { set: map, key: FIRST, value: Some(FIRST) },
                    Expression::DestinationNat { family, address: FIRST, port },
                ]);
                expressions
            }
            Self::SetDaddr(ip) => set_daddr(*ip, family),
            Self::SetPriorityToDaddr => set_priority_to_daddr(family),
            Self::Notrack => vec![Expression::Notrack],
            Self::Counter => vec![Expression::Counter],
            Self::ClampMaxSegmentSize { fields, map } => {
                let mut expressions = loaded(fields, family);
                expressions.extend([
                    Expression::Lookup { set: map, key: FIRST, value: Some(FIRST) },
                    Expression::SetMaxSegmentSize { from: FIRST },
                ]);
                expressions
            }
            Self::Masquerade { fully_random } => {
                vec![Expression::Masquerade { fully_random: *fully_random }]
            }
            Self::Jump(chain) => vec![Expression::Verdict(Verdict::Jump(chain))],
            Self::Goto(chain) => vec![Expression::Verdict(Verdict::Goto(chain))],
            Self::Return => vec![Expression::Verdict(Verdict::Return)],
            Self::Drop => vec![Expression::Verdict(Verdict::Drop)],
            // ICMP_PORT_UNREACH, ICMPV6_PORT_UNREACH.
            Self::Reject => vec![Expression::Reject { icmp_code: if family == Family::V4 { 3 } else { 4 } }],
        }
    }
}

impl Interface {
    /// The bytes to compare the name with: up to the padding for a whole name, fewer for a prefix.
    fn pattern(&self) -> Vec<u8> {
        const IFNAMSIZ: usize = 16;
        match self {
            Self::Name(name) => {
                let mut pattern = name.as_bytes().to_vec();
                pattern.resize(IFNAMSIZ.max(pattern.len()), 0);
                pattern
            }
            Self::Prefix(prefix) => prefix.as_bytes().to_vec(),
        }
    }
}

impl CtState {
    /// `NF_CT_STATE_BIT` of each state.
    const fn bits(self) -> u32 {
        match self {
            Self::New => 1 << 3,
            Self::EstablishedOrRelated => 1 << 1 | 1 << 2,
            Self::InvalidOrUntracked => 1 | 1 << 6,
        }
    }
}

/// Loads fields into registers one after the other.
fn loaded(fields: &[Field], family: Family) -> Vec<Expression> {
    let mut register = FIRST;
    let load = |field: &Field| {
        let load = field.load(family, register);
        register = register.after(field.length(family));
        load
    };
    fields.iter().map(load).collect()
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().into(),
        IpAddr::V6(ip) => ip.octets().into(),
    }
}

fn encapsulates_by_gue(port: u16, family: Family) -> Vec<Expression> {
    vec![
        Field::L4Proto.load(family, FIRST),
        equal(vec![IPPROTO_UDP]),
        Field::ThDport.load(family, FIRST),
        equal(port.to_be_bytes().to_vec()),
        Expression::Payload { base: Base::Transport, offset: 8, length: 2, to: FIRST },
        equal(vec![GUE_PLAIN, encapsulation(family).0]),
    ]
}

fn tcp_syn(family: Family) -> Vec<Expression> {
    const SYN: u8 = 0x02;
    vec![
        Field::L4Proto.load(family, FIRST),
        equal(vec![6]),
        Expression::Payload { base: Base::Transport, offset: 13, length: 1, to: FIRST },
        Expression::Bitwise { register: FIRST, mask: vec![SYN], xor: vec![0] },
        Expression::Compare { register: FIRST, how: Comparison::NotEqual, value: vec![0] },
    ]
}

fn echo_request(family: Family) -> Vec<Expression> {
    let (protocol, echo_request) = match family {
        Family::V4 => (1, 8),
        Family::V6 => (58, 128),
    };
    vec![
        Field::L4Proto.load(family, FIRST),
        equal(vec![protocol]),
        Expression::Payload { base: Base::Transport, offset: 0, length: 1, to: FIRST },
        equal(vec![echo_request]),
    ]
}

fn set_daddr(ip: IpAddr, family: Family) -> Vec<Expression> {
    let (offset, length) = (daddr_offset(family), Field::Daddr.length(family));
    let checksum = match family {
        Family::V4 => HeaderChecksum::At(10),
        Family::V6 => HeaderChecksum::None,
    };
    vec![
        Expression::Immediate { value: octets(ip), to: FIRST },
        Expression::SetNetworkHeader { offset, length, checksum, from: FIRST },
    ]
}

fn set_priority_to_daddr(family: Family) -> Vec<Expression> {
    let (base, length) = (Base::Network, Field::Priority.length(family));
    let offset = daddr_offset(family) + Field::Daddr.length(family) - length;
    vec![
        Expression::Payload { base, offset, length, to: FIRST },
        Expression::SetMeta { key: MetaKey::Priority, from: FIRST },
    ]
}

fn source(net: IpNet, how: Comparison) -> Vec<Expression> {
    let (family, address, mask) = match net.trunc() {
        IpNet::V4(net) => (Family::V4, net.addr().octets().to_vec(), net.netmask().octets().to_vec()),
        IpNet::V6(net) => (Family::V6, net.addr().octets().to_vec(), net.netmask().octets().to_vec()),
    };
    let mut expressions = vec![Field::Saddr.load(family, FIRST)];
    if net.prefix_len() < net.max_prefix_len() {
        let xor = vec![0; mask.len()];
        expressions.push(Expression::Bitwise { register: FIRST, mask, xor });
    }
    expressions.push(Expression::Compare { register: FIRST, how, value: address });
    expressions
}

fn equal(value: Vec<u8>) -> Expression {
    Expression::Compare { register: FIRST, how: Comparison::Equal, value }
}

/// Marks are compared and changed in host order.
fn masked(mask: u32, xor: u32) -> Expression {
    Expression::Bitwise { register: FIRST, mask: mask.to_ne_bytes().into(), xor: xor.to_ne_bytes().into() }
}

fn change_mark(mask: u32, xor: u32) -> Vec<Expression> {
    vec![
        Expression::Meta { key: MetaKey::Mark, to: FIRST },
        masked(mask, xor),
        Expression::SetMeta { key: MetaKey::Mark, from: FIRST },
    ]
}

#[cfg(test)]
mod tests;
