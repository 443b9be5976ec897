//! The statements of rules, in the terms of nft's language.

use std::net::IpAddr;

use ipnet::IpNet;
use ipvs::Family;
use netlink::Encoder;

use super::{
    expression::{Base, Comparison, ConntrackKey, Direction, List, MetaKey, Register},
    parts::Verdict,
};
use crate::PacketCounter;

/// A part of a packet that a set's key is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Saddr,
    Daddr,
    L4Proto,
    ThSport,
    ThDport,
    /// What [`Statement::SetPriorityToDaddr`] stored there.
    Priority,
    /// Where the first packet of the connection came from and went, as conntrack saw it. An ICMP error has those of
    /// the connection that it is about.
    OriginalSaddr,
    OriginalProtocol,
    OriginalSport,
    OriginalDaddr,
    OriginalDport,
}

/// The interfaces that a rule matches. Names have 1 to 15 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Interface {
    Name(Box<str>),
    Prefix(Box<str>),
}

/// The state of a packet's connection in conntrack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CtState {
    /// This is the first packet, or there was no answer so far. Neighbour discovery is not tracked and so not
    /// new (`nf_conntrack_icmpv6.c`).
    New,
    /// Packets in both directions were seen, or this is an error message about such a connection.
    EstablishedOrRelated,
    /// It fits no connection, or is not tracked.
    InvalidOrUntracked,
    /// It is not tracked.
    Untracked,
}

/// One statement. Matches come first; a rule ends where one does not match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Statement {
    /// The source lies in this network.
    Saddr(IpNet),
    /// The source lies outside of it.
    SaddrNot(IpNet),
    /// The destination lies in this network.
    Daddr(IpNet),
    /// The destination is not an address of this node.
    DaddrElsewhere,
    /// The packet has another of its family inside.
    Encapsulates,
    /// The packet has another of its family inside, by generic UDP encapsulation at this port, without any
    /// option: the kernel would hand whatever else is said to be inside to the node's own programs.
    EncapsulatesByGue(u16),
    /// The packet came in through this interface.
    IifName(Interface),
    /// The packet came in through another interface than those by which its source is reached: a strict
    /// reverse path check.
    FailsReversePath,
    /// The set holds these fields of the packet.
    InSet { fields: &'static [Field], set: &'static str },
    /// The set does not hold these fields of the packet.
    NotInSet { fields: &'static [Field], set: &'static str },
    /// The packet's connection is in this state.
    CtState(CtState),
    /// The packet is an answer.
    IsReply,
    /// The packet has the TCP flag SYN: it opens a connection, or is the answer to that.
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
    /// Makes the map's value for these fields, an address with a port, the connection's destination.
    DnatTo { fields: &'static [Field], map: &'static str },
    /// Replaces the destination of this packet alone.
    SetDaddr(IpAddr),
    /// Stores the last four bytes of the destination as the packet's priority. It keeps that
    /// while it decapsulates the packet, and forgets it when it forwards the content (`ip_forward` in
    /// net/ipv4/ip_forward.c).
    SetPriorityToDaddr,
    /// Keeps the packet from conntrack.
    Notrack,
    /// Counts the packet in a counter of the table.
    Count(PacketCounter),
    /// Lowers the maximum segment size that a TCP SYN announces to the map's value for these fields.
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
    /// Matches so many packets in a second, and so many more at once.
    LimitRate { per_second: u32, burst: u32 },
    /// Adds these fields of the packet to the set, if it has room.
    AddToSet { fields: &'static [Field], set: &'static str },
    /// Has the kernel report the packet's way from here on. It changes nothing else about the packet.
    Trace,
}

impl Field {
    /// How many bytes it has in a packet of `family`. In a register, and in a set's key, it takes
    /// the next multiple of four.
    pub(crate) const fn length(self, family: Family) -> u8 {
        match self {
            Self::Saddr | Self::Daddr | Self::OriginalSaddr | Self::OriginalDaddr => {
                family.address_bits() / 8
            }
            Self::L4Proto | Self::OriginalProtocol => 1,
            Self::ThSport | Self::ThDport | Self::OriginalSport | Self::OriginalDport => 2,
            Self::Priority => 4,
        }
    }

    fn load(self, family: Family, to: Register, list: &mut List<'_, '_>) {
        let length = self.length(family);
        let original = Some(Direction::Original);
        match (self, family) {
            (Self::Saddr, Family::V4) => list.payload(Base::Network, 12, length, to),
            (Self::Saddr, Family::V6) => list.payload(Base::Network, 8, length, to),
            (Self::Daddr, _) => list.payload(Base::Network, daddr_offset(family), length, to),
            (Self::L4Proto, _) => list.meta(MetaKey::L4Protocol, to),
            // The same places in TCP, UDP and SCTP.
            (Self::ThSport, _) => list.payload(Base::Transport, 0, length, to),
            (Self::ThDport, _) => list.payload(Base::Transport, 2, length, to),
            (Self::Priority, _) => list.meta(MetaKey::Priority, to),
            (Self::OriginalSaddr, Family::V4) => list.conntrack(ConntrackKey::SourceV4, original, to),
            (Self::OriginalSaddr, Family::V6) => list.conntrack(ConntrackKey::SourceV6, original, to),
            (Self::OriginalProtocol, _) => list.conntrack(ConntrackKey::Protocol, original, to),
            (Self::OriginalSport, _) => list.conntrack(ConntrackKey::SourcePort, original, to),
            (Self::OriginalDaddr, Family::V4) => list.conntrack(ConntrackKey::DestinationV4, original, to),
            (Self::OriginalDaddr, Family::V6) => list.conntrack(ConntrackKey::DestinationV6, original, to),
            (Self::OriginalDport, _) => list.conntrack(ConntrackKey::DestinationPort, original, to),
        }
    }
}

pub(super) const fn daddr_offset(family: Family) -> u8 {
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

const IPPROTO_TCP: u8 = 6;
const IPPROTO_UDP: u8 = 17;
/// The first byte behind the header of UDP: version 0, no control message, no options (include/net/gue.h).
/// The protocol follows.
pub(super) const GUE_PLAIN: u8 = 0;

const FIRST: Register = Register(0);

impl Statement {
    /// Appends the instructions that do what the statement says to packets of `family` to a rule's list of
    /// expressions.
    pub(crate) fn encode(&self, family: Family, list: &mut Encoder<'_>) {
        let list = &mut List(list);
        match self {
            Self::Saddr(net) => in_network(Field::Saddr, *net, Comparison::Equal, list),
            Self::SaddrNot(net) => in_network(Field::Saddr, *net, Comparison::NotEqual, list),
            Self::Daddr(net) => in_network(Field::Daddr, *net, Comparison::Equal, list),
            Self::DaddrElsewhere => daddr_elsewhere(list),
            Self::Encapsulates => is_protocol(encapsulation(family).0, family, list),
            Self::EncapsulatesByGue(port) => {
                is_protocol(IPPROTO_UDP, family, list);
                Field::ThDport.load(family, FIRST, list);
                equal(&port.to_be_bytes(), list);
                list.payload(Base::Transport, 8, 2, FIRST);
                equal(&[GUE_PLAIN, encapsulation(family).0], list);
            }
            Self::IifName(interface) => {
                list.meta(MetaKey::InputInterfaceName, FIRST);
                equal(&interface.pattern(), list);
            }
            Self::FailsReversePath => {
                list.reverse_path(FIRST);
                equal(&[0; 4], list);
            }
            Self::InSet { fields, set } => {
                load(fields, family, list);
                list.lookup(set, FIRST, None);
            }
            Self::NotInSet { fields, set } => {
                load(fields, family, list);
                list.lookup_missing(set, FIRST);
            }
            Self::CtState(connection) => {
                list.conntrack(ConntrackKey::State, None, FIRST);
                mask(connection.bits(), 0, list);
                list.compare(FIRST, Comparison::NotEqual, &[0; 4]);
            }
            Self::IsReply => {
                list.conntrack(ConntrackKey::Direction, None, FIRST);
                equal(&[Direction::Reply as u8], list);
            }
            Self::TcpSyn => {
                const SYN: u8 = 0x02;
                is_protocol(IPPROTO_TCP, family, list);
                list.payload(Base::Transport, 13, 1, FIRST);
                list.bitwise(FIRST, &[SYN], &[0]);
                list.compare(FIRST, Comparison::NotEqual, &[0]);
            }
            Self::EchoRequest => echo_request(family, list),
            Self::HasMark(bit) => {
                list.meta(MetaKey::Mark, FIRST);
                mask(*bit, 0, list);
                equal(&bit.to_ne_bytes(), list);
            }
            Self::SetMark(bit) => change_mark(!bit, *bit, list),
            Self::ClearMark(bit) => change_mark(!bit, 0, list),
            Self::DnatToDaddr => {
                Field::Daddr.load(family, FIRST, list);
                list.destination_nat(family, FIRST, None);
            }
            Self::DnatTo { fields, map } => {
                load(fields, family, list);
                list.lookup(map, FIRST, Some(FIRST));
                let port = FIRST.after(Field::Daddr.length(family));
                list.destination_nat(family, FIRST, Some(port));
            }
            Self::SetDaddr(ip) => {
                list.immediate(&octets(*ip), FIRST);
                let checksum = (family == Family::V4).then_some(10);
                list.set_network_header(daddr_offset(family), Field::Daddr.length(family), checksum, FIRST);
            }
            Self::SetPriorityToDaddr => {
                let length = Field::Priority.length(family);
                let offset = daddr_offset(family) + Field::Daddr.length(family) - length;
                list.payload(Base::Network, offset, length, FIRST);
                list.set_meta(MetaKey::Priority, FIRST);
            }
            Self::Notrack => list.notrack(),
            Self::Count(counter) => list.count_in(counter.name()),
            Self::ClampMaxSegmentSize { fields, map } => {
                load(fields, family, list);
                list.lookup(map, FIRST, Some(FIRST));
                list.set_max_segment_size(FIRST);
            }
            Self::Masquerade { fully_random } => list.masquerade(*fully_random),
            Self::Jump(chain) => list.verdict(Verdict::Jump(chain)),
            Self::Goto(chain) => list.verdict(Verdict::Goto(chain)),
            Self::Return => list.verdict(Verdict::Return),
            Self::Drop => list.verdict(Verdict::Drop),
            // ICMP_PORT_UNREACH, ICMPV6_PORT_UNREACH.
            Self::Reject => list.reject(if family == Family::V4 { 3 } else { 4 }),
            Self::LimitRate { per_second, burst } => list.limit(*per_second, *burst),
            Self::AddToSet { fields, set } => {
                load(fields, family, list);
                list.add_to_set(set, FIRST);
            }
            Self::Trace => {
                list.immediate(&[1], FIRST);
                list.set_meta(MetaKey::Trace, FIRST);
            }
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
            Self::Untracked => 1 << 6,
        }
    }
}

/// Loads fields into registers one after the other.
fn load(fields: &[Field], family: Family, list: &mut List<'_, '_>) {
    let mut register = FIRST;
    for field in fields {
        field.load(family, register, list);
        register = register.after(field.length(family));
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().into(),
        IpAddr::V6(ip) => ip.octets().into(),
    }
}

fn echo_request(family: Family, list: &mut List<'_, '_>) {
    let (protocol, echo_request) = match family {
        Family::V4 => (1, 8),
        Family::V6 => (58, 128),
    };
    is_protocol(protocol, family, list);
    list.payload(Base::Transport, 0, 1, FIRST);
    equal(&[echo_request], list);
}

fn is_protocol(number: u8, family: Family, list: &mut List<'_, '_>) {
    Field::L4Proto.load(family, FIRST, list);
    equal(&[number], list);
}

fn in_network(field: Field, net: IpNet, how: Comparison, list: &mut List<'_, '_>) {
    let net = net.trunc();
    let family = Family::from(net.addr());
    field.load(family, FIRST, list);
    if net.prefix_len() < net.max_prefix_len() {
        let mask = octets(net.netmask());
        list.bitwise(FIRST, &mask, &vec![0; mask.len()]);
    }
    list.compare(FIRST, how, &octets(net.addr()));
}

fn daddr_elsewhere(list: &mut List<'_, '_>) {
    /// The type of the node's own addresses (include/uapi/linux/rtnetlink.h).
    const RTN_LOCAL: u32 = 2;
    list.destination_type(FIRST);
    list.compare(FIRST, Comparison::NotEqual, &RTN_LOCAL.to_ne_bytes());
}

fn equal(value: &[u8], list: &mut List<'_, '_>) {
    list.compare(FIRST, Comparison::Equal, value);
}

/// Marks are compared and changed in host order.
fn mask(mask: u32, xor: u32, list: &mut List<'_, '_>) {
    list.bitwise(FIRST, &mask.to_ne_bytes(), &xor.to_ne_bytes());
}

fn change_mark(keep: u32, xor: u32, list: &mut List<'_, '_>) {
    list.meta(MetaKey::Mark, FIRST);
    mask(keep, xor, list);
    list.set_meta(MetaKey::Mark, FIRST);
}

#[cfg(test)]
mod tests;
