//! What a rule says, in the terms of nft's language.

use std::fmt;

use ipnet::IpNet;
use ipvs::Family;

use super::expression::{Base, Comparison, ConntrackKey, Expression, MetaKey, Register, Verdict};

/// A part of a packet that a set's key is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Saddr,
    Daddr,
    L4Proto,
    ThDport,
}

/// The interfaces that a rule speaks of. Names have 1 to 15 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Interface {
    Name(Box<str>),
    Prefix(Box<str>),
}

/// What conntrack says about a packet's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CtState {
    /// This is the first packet, or nobody has answered yet. Neighbour discovery is not tracked and so not
    /// new (`nf_conntrack_icmpv6.c`).
    New,
    /// Packets in both directions were seen, or this is an error message about such a connection.
    EstablishedOrRelated,
}

/// One statement. Matches come first; a rule ends where one does not match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Statement {
    /// The source lies in this network.
    Saddr(IpNet),
    /// The source lies outside of it.
    SaddrNot(IpNet),
    /// The packet came in through this interface.
    IifName(Interface),
    /// The set holds these fields of the packet.
    InSet { fields: &'static [Field], set: &'static str },
    /// The packet's connection is in this state.
    CtState(CtState),
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
    /// Replaces the source by the node's own address.
    Masquerade { fully_random: bool },
    /// Goes through another chain, then on.
    Jump(&'static str),
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
            Self::Saddr | Self::Daddr => family.address_bits() / 8,
            Self::L4Proto => 1,
            Self::ThDport => 2,
        }
    }

    fn load(self, family: Family, to: Register) -> Expression {
        let length = self.length(family);
        let header = |offset| Expression::Payload { base: Base::Network, offset, length, to };
        match (self, family) {
            (Self::Saddr, Family::V4) => header(12),
            (Self::Saddr, Family::V6) => header(8),
            (Self::Daddr, Family::V4) => header(16),
            (Self::Daddr, Family::V6) => header(24),
            (Self::L4Proto, _) => Expression::Meta { key: MetaKey::L4Protocol, to },
            // The same place in TCP, UDP and SCTP.
            (Self::ThDport, _) => Expression::Payload { base: Base::Transport, offset: 2, length, to },
        }
    }

    fn name(self, family: Family) -> &'static str {
        match (self, family) {
            (Self::Saddr, Family::V4) => "ip saddr",
            (Self::Saddr, Family::V6) => "ip6 saddr",
            (Self::Daddr, Family::V4) => "ip daddr",
            (Self::Daddr, Family::V6) => "ip6 daddr",
            (Self::L4Proto, _) => "meta l4proto",
            (Self::ThDport, _) => "th dport",
        }
    }
}

const FIRST: Register = Register(0);

impl Statement {
    /// The instructions that do what the statement says to packets of `family`.
    pub(crate) fn expressions(&self, family: Family) -> Vec<Expression> {
        match self {
            Self::Saddr(net) => source(*net, Comparison::Equal),
            Self::SaddrNot(net) => source(*net, Comparison::NotEqual),
            Self::IifName(interface) => vec![
                Expression::Meta { key: MetaKey::InputInterfaceName, to: FIRST },
                equal(interface.pattern()),
            ],
            Self::InSet { fields, set } => {
                let mut register = FIRST;
                let mut expressions = Vec::with_capacity(fields.len() + 1);
                for field in *fields {
                    expressions.push(field.load(family, register));
                    register = register.after(field.length(family));
                }
                expressions.push(Expression::Lookup { set, key: FIRST });
                expressions
            }
            Self::CtState(connection) => vec![
                Expression::Conntrack { key: ConntrackKey::State, to: FIRST },
                masked(connection.bits(), 0),
                Expression::Compare { register: FIRST, how: Comparison::NotEqual, value: vec![0; 4] },
            ],
            Self::EchoRequest => {
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
            Self::HasMark(bit) => vec![
                Expression::Meta { key: MetaKey::Mark, to: FIRST },
                masked(*bit, 0),
                equal(bit.to_ne_bytes().into()),
            ],
            Self::SetMark(bit) => change_mark(!bit, *bit),
            Self::ClearMark(bit) => change_mark(!bit, 0),
            Self::DnatToDaddr => {
                vec![Field::Daddr.load(family, FIRST), Expression::DestinationNat { family, address: FIRST }]
            }
            Self::Masquerade { fully_random } => {
                vec![Expression::Masquerade { fully_random: *fully_random }]
            }
            Self::Jump(chain) => vec![Expression::Verdict(Verdict::Jump(chain))],
            Self::Return => vec![Expression::Verdict(Verdict::Return)],
            Self::Drop => vec![Expression::Verdict(Verdict::Drop)],
            // ICMP_PORT_UNREACH, ICMPV6_PORT_UNREACH.
            Self::Reject => vec![Expression::Reject { icmp_code: if family == Family::V4 { 3 } else { 4 } }],
        }
    }

    /// Writes its text in a table of `family`.
    pub(crate) fn write(&self, family: Family, f: &mut impl fmt::Write) -> fmt::Result {
        match self {
            Self::Saddr(net) => {
                write!(f, "{} ", Field::Saddr.name(family))?;
                write_net(*net, f)
            }
            Self::SaddrNot(net) => {
                write!(f, "{} != ", Field::Saddr.name(family))?;
                write_net(*net, f)
            }
            Self::IifName(Interface::Name(name)) => write!(f, "iifname \"{name}\""),
            Self::IifName(Interface::Prefix(prefix)) => write!(f, "iifname \"{prefix}*\""),
            Self::InSet { fields, set } => {
                for (position, field) in fields.iter().enumerate() {
                    let separator = if position == 0 { "" } else { " . " };
                    write!(f, "{separator}{}", field.name(family))?;
                }
                write!(f, " @{set}")
            }
            Self::CtState(CtState::New) => f.write_str("ct state new"),
            Self::CtState(CtState::EstablishedOrRelated) => f.write_str("ct state established,related"),
            Self::EchoRequest if family == Family::V4 => f.write_str("icmp type echo-request"),
            Self::EchoRequest => f.write_str("icmpv6 type echo-request"),
            Self::HasMark(bit) => write!(f, "meta mark & {bit:#010x} == {bit:#010x}"),
            Self::SetMark(bit) => write!(f, "meta mark set meta mark | {bit:#010x}"),
            Self::ClearMark(bit) => write!(f, "meta mark set meta mark & {:#010x}", !bit),
            Self::DnatToDaddr => write!(f, "dnat to {}", Field::Daddr.name(family)),
            Self::Masquerade { fully_random: false } => f.write_str("masquerade"),
            Self::Masquerade { fully_random: true } => f.write_str("masquerade fully-random"),
            Self::Jump(chain) => write!(f, "jump {chain}"),
            Self::Return => f.write_str("return"),
            Self::Drop => f.write_str("drop"),
            Self::Reject => f.write_str("reject"),
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
        }
    }
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

fn write_net(net: IpNet, f: &mut impl fmt::Write) -> fmt::Result {
    let net = net.trunc();
    if net.prefix_len() < net.max_prefix_len() { write!(f, "{net}") } else { write!(f, "{}", net.addr()) }
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
