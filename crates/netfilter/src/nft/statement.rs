//! What a rule says, in the terms of nft's language.

use std::fmt;

use ipnet::IpNet;
use ipvs::Family;

use super::expression::{Base, Comparison, ConntrackKey, Expression, MetaKey, Register, Verdict};

/// A part of a packet that a set's key is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    SourceAddress,
    DestinationAddress,
    L4Protocol,
    DestinationPort,
}

/// The interfaces that a rule speaks of. Names have 1 to 15 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Interface {
    Named(Box<str>),
    StartingWith(Box<str>),
}

/// What conntrack says about a packet's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Connection {
    /// This is the first packet, or nobody has answered yet. Neighbour discovery is not tracked and so not
    /// new (`nf_conntrack_icmpv6.c`).
    New,
    /// Packets in both directions were seen, or this is an error message about such a connection.
    Known,
}

/// One statement. Matches come first; a rule ends where one does not match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Statement {
    /// The source lies in this network.
    From(IpNet),
    /// The source lies outside of it.
    NotFrom(IpNet),
    /// The packet came in through this interface.
    CameInThrough(Interface),
    /// The set holds these fields of the packet.
    InSet { fields: &'static [Field], set: &'static str },
    /// The packet's connection is in this state.
    Is(Connection),
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
    KeepDestination,
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
            Self::SourceAddress | Self::DestinationAddress => family.address_bits() / 8,
            Self::L4Protocol => 1,
            Self::DestinationPort => 2,
        }
    }

    fn load(self, family: Family, to: Register) -> Expression {
        let length = self.length(family);
        let header = |offset| Expression::Payload { base: Base::Network, offset, length, to };
        match (self, family) {
            (Self::SourceAddress, Family::V4) => header(12),
            (Self::SourceAddress, Family::V6) => header(8),
            (Self::DestinationAddress, Family::V4) => header(16),
            (Self::DestinationAddress, Family::V6) => header(24),
            (Self::L4Protocol, _) => Expression::Meta { key: MetaKey::L4Protocol, to },
            // The same place in TCP, UDP and SCTP.
            (Self::DestinationPort, _) => {
                Expression::Payload { base: Base::Transport, offset: 2, length, to }
            }
        }
    }

    fn name(self, family: Family) -> &'static str {
        match (self, family) {
            (Self::SourceAddress, Family::V4) => "ip saddr",
            (Self::SourceAddress, Family::V6) => "ip6 saddr",
            (Self::DestinationAddress, Family::V4) => "ip daddr",
            (Self::DestinationAddress, Family::V6) => "ip6 daddr",
            (Self::L4Protocol, _) => "meta l4proto",
            (Self::DestinationPort, _) => "th dport",
        }
    }
}

const FIRST: Register = Register(0);

impl Statement {
    /// The instructions that do what the statement says to packets of `family`.
    pub(crate) fn expressions(&self, family: Family) -> Vec<Expression> {
        match self {
            Self::From(net) => source(*net, Comparison::Equal),
            Self::NotFrom(net) => source(*net, Comparison::NotEqual),
            Self::CameInThrough(interface) => vec![
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
            Self::Is(connection) => vec![
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
                    Field::L4Protocol.load(family, FIRST),
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
            Self::KeepDestination => vec![
                Field::DestinationAddress.load(family, FIRST),
                Expression::DestinationNat { family, address: FIRST },
            ],
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
            Self::From(net) => {
                write!(f, "{} ", Field::SourceAddress.name(family))?;
                write_net(*net, f)
            }
            Self::NotFrom(net) => {
                write!(f, "{} != ", Field::SourceAddress.name(family))?;
                write_net(*net, f)
            }
            Self::CameInThrough(Interface::Named(name)) => write!(f, "iifname \"{name}\""),
            Self::CameInThrough(Interface::StartingWith(prefix)) => write!(f, "iifname \"{prefix}*\""),
            Self::InSet { fields, set } => {
                for (position, field) in fields.iter().enumerate() {
                    let separator = if position == 0 { "" } else { " . " };
                    write!(f, "{separator}{}", field.name(family))?;
                }
                write!(f, " @{set}")
            }
            Self::Is(Connection::New) => f.write_str("ct state new"),
            Self::Is(Connection::Known) => f.write_str("ct state established,related"),
            Self::EchoRequest if family == Family::V4 => f.write_str("icmp type echo-request"),
            Self::EchoRequest => f.write_str("icmpv6 type echo-request"),
            Self::HasMark(bit) => write!(f, "meta mark & {bit:#010x} == {bit:#010x}"),
            Self::SetMark(bit) => write!(f, "meta mark set meta mark | {bit:#010x}"),
            Self::ClearMark(bit) => write!(f, "meta mark set meta mark & {:#010x}", !bit),
            Self::KeepDestination => write!(f, "dnat to {}", Field::DestinationAddress.name(family)),
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
            Self::Named(name) => {
                let mut pattern = name.as_bytes().to_vec();
                pattern.resize(IFNAMSIZ.max(pattern.len()), 0);
                pattern
            }
            Self::StartingWith(prefix) => prefix.as_bytes().to_vec(),
        }
    }
}

impl Connection {
    /// `NF_CT_STATE_BIT` of each state.
    const fn bits(self) -> u32 {
        match self {
            Self::New => 1 << 3,
            Self::Known => 1 << 1 | 1 << 2,
        }
    }
}

fn source(net: IpNet, how: Comparison) -> Vec<Expression> {
    let (family, address, mask) = match net.trunc() {
        IpNet::V4(net) => (Family::V4, net.addr().octets().to_vec(), net.netmask().octets().to_vec()),
        IpNet::V6(net) => (Family::V6, net.addr().octets().to_vec(), net.netmask().octets().to_vec()),
    };
    let mut expressions = vec![Field::SourceAddress.load(family, FIRST)];
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
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_key_lie_in_consecutive_registers() {
        let fields = &[Field::DestinationAddress, Field::L4Protocol, Field::DestinationPort];
        let statement = Statement::InSet { fields, set: "s" };
        let registers = |family| {
            let loads = statement.expressions(family);
            loads
                .into_iter()
                .map(|expression| match expression {
                    Expression::Payload { to, .. } | Expression::Meta { to, .. } => to.0,
                    Expression::Lookup { key, .. } => key.0,
                    other => panic!("{other:?}"),
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(registers(Family::V4), [0, 1, 2, 0]);
        assert_eq!(registers(Family::V6), [0, 4, 5, 0]);
    }

    #[test]
    fn setting_and_clearing_a_bit_keeps_the_others() {
        for (statement, before, after) in [
            (Statement::SetMark(0x4000), 0xffff_0001, 0xffff_4001u32),
            (Statement::SetMark(0x4000), 0x0000_4001, 0x0000_4001),
            (Statement::ClearMark(0x4000), 0xffff_ffff, 0xffff_bfff),
            (Statement::ClearMark(0x4000), 0x0000_0001, 0x0000_0001),
        ] {
            let expressions = statement.expressions(Family::V4);
            let Expression::Bitwise { mask, xor, .. } = &expressions[1] else { panic!("{expressions:?}") };
            let word = |bytes: &[u8]| u32::from_ne_bytes(bytes.try_into().unwrap());
            assert_eq!(before & word(mask) ^ word(xor), after, "{statement:?}");
        }
    }

    #[test]
    fn a_network_with_host_bits_means_the_network() {
        let with = Statement::From("10.1.2.3/14".parse().unwrap());
        let without = Statement::From("10.0.0.0/14".parse().unwrap());
        assert_eq!(with.expressions(Family::V4), without.expressions(Family::V4));
    }

    #[test]
    fn a_single_address_needs_no_mask() {
        let statement = Statement::From("::1/128".parse().unwrap());
        assert_eq!(statement.expressions(Family::V6).len(), 2);
        assert_eq!(text(&statement, Family::V6), "ip6 saddr ::1");
    }

    fn text(statement: &Statement, family: Family) -> String {
        let mut text = String::new();
        statement.write(family, &mut text).unwrap();
        text
    }

    #[test]
    fn outside_of_a_network_is_the_same_comparison_turned_round() {
        let net: IpNet = "127.0.0.0/8".parse().unwrap();
        let (mut inside, outside) =
            (Statement::From(net).expressions(Family::V4), Statement::NotFrom(net).expressions(Family::V4));
        let Some(Expression::Compare { how, .. }) = inside.last_mut() else { panic!("{inside:?}") };
        *how = Comparison::NotEqual;
        assert_eq!(inside, outside);
        assert_eq!(text(&Statement::NotFrom(net), Family::V4), "ip saddr != 127.0.0.0/8");
    }

    #[test]
    fn a_connections_state_is_one_of_several_bits() {
        for (connection, bits) in [(Connection::New, 8), (Connection::Known, 6u32)] {
            let expressions = Statement::Is(connection).expressions(Family::V4);
            let [Expression::Conntrack { .. }, mask, Expression::Compare { how, value, .. }] = &*expressions
            else {
                panic!("{expressions:?}")
            };
            assert_eq!(*mask, masked(bits, 0));
            assert_eq!((*how, value.as_slice()), (Comparison::NotEqual, &[0; 4][..]));
        }
    }

    #[test]
    fn an_echo_request_is_told_by_protocol_and_type() {
        for (family, protocol, kind) in [(Family::V4, 1, 8), (Family::V6, 58, 128)] {
            let expressions = Statement::EchoRequest.expressions(family);
            let compared: Vec<_> = expressions
                .iter()
                .filter_map(|expression| match expression {
                    Expression::Compare { value, .. } => Some(value.as_slice()),
                    _ => None,
                })
                .collect();
            assert_eq!(compared, [[protocol], [kind]]);
        }
    }

    #[test]
    fn a_whole_interface_name_is_compared_with_its_padding() {
        assert_eq!(Interface::Named("cbr0".into()).pattern(), b"cbr0\0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(Interface::StartingWith("veth".into()).pattern(), b"veth");
    }
}
