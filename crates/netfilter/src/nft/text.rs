//! The text of statements, rules, chains, sets and elements, in the syntax of nft. It is what the log and
//! errors show of a transaction, and what tests compare with `nft list ruleset`.

use std::fmt;

use ipnet::IpNet;
use ipvs::{Family, Protocol};

use super::{
    chain::{Chain, Hook, Point},
    element::{Key, Part},
    family_name,
    rule::Rule,
    set::{Datatype, Recent, Set},
    statement::{CtState, Field, GUE_PLAIN, Interface, Statement, encapsulation},
};
use crate::PacketCounter;

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, point, priority } = self;
        // Which names nft has for priorities depends on its version: 1.1 calls -101 of output `dstnat - 1`.
        write!(f, "type {} hook {} priority {priority}; policy accept;", kind.name(), point.name())
    }
}

impl Point {
    const fn name(self) -> &'static str {
        match self {
            Self::Prerouting => "prerouting",
            Self::Input => "input",
            Self::Forward => "forward",
            Self::Output => "output",
            Self::Postrouting => "postrouting",
        }
    }
}

impl Set {
    /// Writes its definition, with this between the parts.
    pub(crate) fn write(&self, family: Family, between: &str, f: &mut impl fmt::Write) -> fmt::Result {
        f.write_str("type ")?;
        joined(self.key, f, |datatype, f| f.write_str(datatype.name(family)))?;
        if self.is_map() {
            f.write_str(" : ")?;
            joined(self.value, f, |datatype, f| f.write_str(datatype.name(family)))?;
        }
        if self.intervals {
            write!(f, "{between}flags interval")?;
        }
        let Some(Recent { seconds, size }) = self.recent else { return Ok(()) };
        write!(f, "{between}size {size}{between}flags dynamic,timeout{between}timeout {seconds}s")
    }
}

/// An element: its key, of an interval with both ends of the last field, and a map's value for it.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        joined(&self.start, f, |part, f| write!(f, "{part}"))?;
        if let Some(end) = &self.end {
            write!(f, "-{end}")?;
        }
        f.write_str(if self.value.is_empty() { "" } else { " : " })?;
        joined(&self.value, f, |part, f| write!(f, "{part}"))
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(ip) => ip.fmt(f),
            Self::AddressEnd(ip) => ip.fmt(f),
            Self::Protocol(Protocol::Tcp) => f.write_str("tcp"),
            Self::Protocol(Protocol::Udp) => f.write_str("udp"),
            Self::Protocol(Protocol::Sctp) => f.write_str("sctp"),
            // nft prints a protocol without a name like that.
            Self::Protocol(other) => other.number().fmt(f),
            Self::Port(port) => port.fmt(f),
        }
    }
}

impl Datatype {
    const fn name(self, family: Family) -> &'static str {
        match (self, family) {
            (Self::Address, Family::V4) | (Self::AddressEnd, _) => "ipv4_addr",
            (Self::Address, Family::V6) => "ipv6_addr",
            (Self::Protocol, _) => "inet_proto",
            (Self::Port, _) => "inet_service",
        }
    }
}

/// Writes a table as `nft --numeric-priority list ruleset` does, without elements, and with counters at 0.
pub(crate) fn write_table<'a>(
    f: &mut fmt::Formatter<'_>,
    family: Family,
    name: &str,
    counters: &[PacketCounter],
    sets: impl Iterator<Item = &'a Set>,
    chains: &[Chain],
) -> fmt::Result {
    writeln!(f, "table {} {name} {{", family_name(family))?;
    for counter in counters {
        write!(f, "\tcounter {} {{\n\t\tpackets 0 bytes 0\n\t}}\n\n", counter.name())?;
    }
    for set in sets {
        write!(f, "\t{} {} {{\n\t\t", set.kind(), set.name)?;
        set.write(family, "\n\t\t", f)?;
        f.write_str("\n\t}\n\n")?;
    }
    for (position, chain) in chains.iter().enumerate() {
        let separator = if position == 0 { "" } else { "\n" };
        writeln!(f, "{separator}\tchain {} {{", chain.name)?;
        if let Some(hook) = chain.hook {
            writeln!(f, "\t\t{hook}")?;
        }
        for rule in &chain.rules {
            f.write_str("\t\t")?;
            rule.write(family, f)?;
            f.write_str("\n")?;
        }
        f.write_str("\t}\n")?;
    }
    f.write_str("}\n")
}

/// Writes the parts of a concatenation.
fn joined<T, F: fmt::Write>(
    parts: &[T],
    f: &mut F,
    mut write: impl FnMut(&T, &mut F) -> fmt::Result,
) -> fmt::Result {
    for (position, part) in parts.iter().enumerate() {
        f.write_str(if position == 0 { "" } else { " . " })?;
        write(part, f)?;
    }
    Ok(())
}

impl Rule {
    /// Writes it as nft lists it.
    pub(crate) fn write(&self, family: Family, f: &mut impl fmt::Write) -> fmt::Result {
        for statement in &self.statements {
            statement.write(family, f)?;
            f.write_char(' ')?;
        }
        write!(f, "comment \"{}\"", self.comment(family))
    }
}

impl Statement {
    /// Writes its text in a table of `family`.
    pub(crate) fn write(&self, family: Family, f: &mut impl fmt::Write) -> fmt::Result {
        match self {
            Self::Saddr(net) => {
                write!(f, "{} ", Field::Saddr.name(family))?;
                write_net(*net, f)
            }
            Self::Daddr(net) => {
                write!(f, "{} ", Field::Daddr.name(family))?;
                write_net(*net, f)
            }
            Self::DaddrElsewhere => f.write_str("fib daddr type != local"),
            Self::SaddrNot(net) => {
                write!(f, "{} != ", Field::Saddr.name(family))?;
                write_net(*net, f)
            }
            Self::Encapsulates => {
                let (_, name) = encapsulation(family);
                write!(f, "{} {name}", Field::L4Proto.name(family))
            }
            Self::EncapsulatesByGue(port) => {
                let header = u16::from_be_bytes([GUE_PLAIN, encapsulation(family).0]);
                write!(f, "udp dport {port} @th,64,16 {header:#x}")
            }
            Self::IifName(Interface::Name(name)) => write!(f, "iifname \"{name}\""),
            Self::IifName(Interface::Prefix(prefix)) => write!(f, "iifname \"{prefix}*\""),
            Self::FailsReversePath => f.write_str("fib saddr . iif oif 0"),
            Self::InSet { fields, set } => {
                write_fields(fields, family, f)?;
                write!(f, " @{set}")
            }
            Self::NotInSet { fields, set } => {
                write_fields(fields, family, f)?;
                write!(f, " != @{set}")
            }
            Self::CtState(CtState::InvalidOrUntracked) => f.write_str("ct state invalid,untracked"),
            Self::CtState(CtState::Untracked) => f.write_str("ct state untracked"),
            Self::IsReply => f.write_str("ct direction reply"),
            Self::TcpSyn => f.write_str("tcp flags syn"),
            Self::CtState(CtState::New) => f.write_str("ct state new"),
            Self::CtState(CtState::EstablishedOrRelated) => f.write_str("ct state established,related"),
            Self::EchoRequest if family == Family::V4 => f.write_str("icmp type echo-request"),
            Self::EchoRequest => f.write_str("icmpv6 type echo-request"),
            Self::HasMark(bit) => write!(f, "meta mark & {bit:#010x} == {bit:#010x}"),
            Self::SetMark(bit) => write!(f, "meta mark set meta mark | {bit:#010x}"),
            Self::ClearMark(bit) => write!(f, "meta mark set meta mark & {:#010x}", !bit),
            Self::DnatToDaddr => write!(f, "dnat to {}", Field::Daddr.name(family)),
            Self::DnatTo { fields, map } => {
                write!(f, "dnat {} to ", family_name(family))?;
                write_fields(fields, family, f)?;
                write!(f, " map @{map}")
            }
            Self::SetDaddr(ip) => write!(f, "{} set {ip}", Field::Daddr.name(family)),
            Self::SetPriorityToDaddr if family == Family::V4 => f.write_str("meta priority set ip daddr"),
            Self::SetPriorityToDaddr => f.write_str("meta priority set @nh,288,32"),
            Self::Notrack => f.write_str("notrack"),
            Self::Count(counter) => write!(f, "counter name \"{}\"", counter.name()),
            Self::ClampMaxSegmentSize { fields, map } => {
                f.write_str("tcp option maxseg size set ")?;
                write_fields(fields, family, f)?;
                write!(f, " map @{map}")
            }
            Self::Masquerade { fully_random: false } => f.write_str("masquerade"),
            Self::Masquerade { fully_random: true } => f.write_str("masquerade fully-random"),
            Self::Jump(chain) => write!(f, "jump {chain}"),
            Self::Goto(chain) => write!(f, "goto {chain}"),
            Self::Return => f.write_str("return"),
            Self::Drop => f.write_str("drop"),
            Self::Reject => f.write_str("reject"),
            Self::LimitRate { per_second, burst } => {
                write!(f, "limit rate {per_second}/second burst {burst} packets")
            }
            Self::AddToSet { fields, set } => {
                write!(f, "add @{set} {{ ")?;
                write_fields(fields, family, f)?;
                f.write_str(" }")
            }
            Self::Trace => f.write_str("meta nftrace set 1"),
        }
    }
}

impl Field {
    fn name(self, family: Family) -> &'static str {
        match (self, family) {
            (Self::Saddr, Family::V4) => "ip saddr",
            (Self::Saddr, Family::V6) => "ip6 saddr",
            (Self::Daddr, Family::V4) => "ip daddr",
            (Self::Daddr, Family::V6) => "ip6 daddr",
            (Self::L4Proto, _) => "meta l4proto",
            (Self::ThSport, _) => "th sport",
            (Self::ThDport, _) => "th dport",
            (Self::Priority, _) => "meta priority",
            (Self::OriginalSaddr, Family::V4) => "ct original ip saddr",
            (Self::OriginalSaddr, Family::V6) => "ct original ip6 saddr",
            (Self::OriginalProtocol, _) => "ct original protocol",
            (Self::OriginalSport, _) => "ct original proto-src",
            (Self::OriginalDaddr, Family::V4) => "ct original ip daddr",
            (Self::OriginalDaddr, Family::V6) => "ct original ip6 daddr",
            (Self::OriginalDport, _) => "ct original proto-dst",
        }
    }
}

fn write_fields(fields: &[Field], family: Family, f: &mut impl fmt::Write) -> fmt::Result {
    joined(fields, f, |field, f| f.write_str(field.name(family)))
}

fn write_net(net: IpNet, f: &mut impl fmt::Write) -> fmt::Result {
    let net = net.trunc();
    if net.prefix_len() < net.max_prefix_len() { write!(f, "{net}") } else { write!(f, "{}", net.addr()) }
}
