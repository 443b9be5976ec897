//! What the kernel reports of a packet that is traced (`nft_trace_notify` in net/netfilter/nf_tables_trace.c).

use std::net::IpAddr;

use netlink::{Reply, attributes, find};

use crate::nft::message::SUBSYSTEM;

/// `NFT_MSG_TRACE`.
const TRACE: u16 = 17;

/// `enum nft_trace_attributes`.
const TABLE: u16 = 1;
const CHAIN: u16 = 2;
const RULE_HANDLE: u16 = 3;
const TYPE: u16 = 4;
const VERDICT: u16 = 5;
const ID: u16 = 6;
const NETWORK_HEADER: u16 = 8;
const TRANSPORT_HEADER: u16 = 9;
const INPUT: u16 = 10;
const OUTPUT: u16 = 12;
const POLICY: u16 = 16;

/// A step of a packet's way: a rule that matched it, or the end of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// The same in all events of one packet, and with overwhelming likelihood in none of another.
    pub packet: u32,
    /// The family of the table, as nfnetlink numbers it: 1 is `inet`, 2 `ip`, 10 `ip6`.
    pub family: u8,
    /// The name of the table.
    pub table: Box<str>,
    /// The name of the chain.
    pub chain: Box<str>,
    /// What happened there.
    pub step: Step,
    /// What the packet is now. The kernel says it once for each base chain, before anything else.
    pub headers: Option<Headers>,
    /// The index of the interface by which it came in.
    pub input: Option<u32>,
    /// The index of the interface by which it leaves.
    pub output: Option<u32>,
}

/// What happened in a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The packet comes to a base chain.
    Begin,
    /// A rule matched.
    Rule {
        /// The rule's handle.
        handle: u64,
        /// What it says.
        verdict: TraceVerdict,
    },
    /// The packet left the chain by `return`, or by its end, and goes on where it came from.
    Return,
    /// The packet reached the end of a base chain, and this is its policy.
    Policy(TraceVerdict),
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceVerdict {
    /// It goes on to the next base chain.
    Accept,
    /// It ends here.
    Drop,
    /// The rule took it, and may answer it or send it on by itself.
    Stolen,
    /// A program in user space decides.
    Queue,
    /// It goes on in this base chain: to the next rule, to another chain, or back from one.
    Continue,
}

/// The addresses in a packet's headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Its source.
    pub source: IpAddr,
    /// Its destination.
    pub destination: IpAddr,
    /// The number of the protocol inside, as IANA gives it.
    pub protocol: u8,
    /// The fields of that protocol's header.
    pub transport: Transport,
}

/// The fields of a transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp {
        /// The source port.
        source: u16,
        /// The destination port.
        destination: u16,
        /// The bits FIN 1, SYN 2, RST 4, PSH 8, ACK 16, URG 32.
        flags: u8,
    },
    /// UDP or SCTP.
    Ports {
        /// The source port.
        source: u16,
        /// The destination port.
        destination: u16,
    },
    /// ICMP or ICMPv6.
    Icmp {
        /// The type.
        kind: u8,
        /// The code.
        code: u8,
    },
    /// Another protocol, a fragment, or a header that is cut short.
    Unknown,
}

impl TraceEvent {
    /// Reads a notification; `None` if it is another one, or cannot be read.
    pub fn from_notification(notification: &Reply<'_>) -> Option<Self> {
        if notification.kind != SUBSYSTEM << 8 | TRACE {
            return None;
        }
        let (family, body) = (*notification.payload.first()?, notification.payload.get(4..)?);
        let mut event = Self {
            packet: find(body, ID)?.u32_be().ok()?,
            family,
            table: find(body, TABLE)?.string().ok()?.into(),
            chain: find(body, CHAIN)?.string().ok()?.into(),
            step: step(body)?,
            headers: None,
            input: None,
            output: None,
        };
        let (mut network, mut transport) = (&[][..], &[][..]);
        for attribute in attributes(body).map_while(Result::ok) {
            match attribute.kind {
                NETWORK_HEADER => network = attribute.payload,
                TRANSPORT_HEADER => transport = attribute.payload,
                INPUT => event.input = attribute.u32_be().ok(),
                OUTPUT => event.output = attribute.u32_be().ok(),
                _ => {}
            }
        }
        event.headers = Headers::read(network, transport);
        Some(event)
    }
}

fn step(body: &[u8]) -> Option<Step> {
    /// `enum nft_trace_types`.
    const OF_POLICY: u32 = 1;
    const OF_RETURN: u32 = 2;
    const OF_RULE: u32 = 3;
    match find(body, TYPE)?.u32_be().ok()? {
        OF_POLICY => Some(Step::Policy(TraceVerdict::from_code(find(body, POLICY)?.u32_be().ok()?))),
        OF_RETURN if find(body, RULE_HANDLE).is_none() => Some(Step::Return),
        // Before Linux 6.7 a rule that returns is reported so (`__nft_trace_verdict`).
        OF_RETURN | OF_RULE => match find(body, RULE_HANDLE) {
            Some(handle) => Some(Step::Rule {
                handle: u64::from_be_bytes(handle.array().ok()?),
                verdict: TraceVerdict::read(find(body, VERDICT)?.payload)?,
            }),
            // `nft_trace_notify` reports the packet itself before the first step, as a rule without a handle.
            None => Some(Step::Begin),
        },
        _ => None,
    }
}

impl TraceVerdict {
    /// Reads `enum nft_verdict_attributes`.
    fn read(verdict: &[u8]) -> Option<Self> {
        const CODE: u16 = 1;
        Some(Self::from_code(find(verdict, CODE)?.u32_be().ok()?))
    }

    /// `NF_DROP` and so on, or `enum nft_verdicts`, which are -1 to -5. The upper bits of a queue and of a drop hold its
    /// number and its errno.
    const fn from_code(code: u32) -> Self {
        match (code.cast_signed(), code & 0xff) {
            (-5..=-1, _) => Self::Continue,
            (_, 0) => Self::Drop,
            (_, 2) => Self::Stolen,
            (_, 3) => Self::Queue,
            _ => Self::Accept,
        }
    }

    /// Whether the packet's way ends with it.
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Drop | Self::Stolen | Self::Queue)
    }
}

impl Headers {
    /// Reads an IPv4 or IPv6 header, and what comes behind it.
    fn read(network: &[u8], transport: &[u8]) -> Option<Self> {
        let address = |from: usize, length: usize| -> Option<IpAddr> {
            let bytes = network.get(from..from + length)?;
            let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
            v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
        };
        let (source, destination, protocol) = match network.first()? >> 4 {
            4 => (address(12, 4)?, address(16, 4)?, *network.get(9)?),
            6 => (address(8, 16)?, address(24, 16)?, *network.get(6)?),
            _ => return None,
        };
        Some(Self { source, destination, protocol, transport: Transport::read(protocol, transport) })
    }
}

impl Transport {
    /// The source port and the destination port, of a protocol that has any.
    pub fn ports(self) -> Option<(u16, u16)> {
        match self {
            Self::Tcp { source, destination, .. } | Self::Ports { source, destination } => {
                Some((source, destination))
            }
            Self::Icmp { .. } | Self::Unknown => None,
        }
    }

    fn read(protocol: u8, header: &[u8]) -> Self {
        const TCP: u8 = 6;
        let port = |at: usize| Some(u16::from_be_bytes([*header.get(at)?, *header.get(at + 1)?]));
        let read = match protocol {
            TCP => {
                (|| Some(Self::Tcp { source: port(0)?, destination: port(2)?, flags: *header.get(13)? }))()
            }
            17 | 132 => (|| Some(Self::Ports { source: port(0)?, destination: port(2)? }))(),
            1 | 58 => (|| Some(Self::Icmp { kind: *header.first()?, code: *header.get(1)? }))(),
            _ => None,
        };
        read.unwrap_or(Self::Unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Linux 7.2 reports a TCP SYN that the second rule of iptables-nft's FORWARD drops; the policy is added.
    const TRACED: &[u8] = include_bytes!("../../../../fuzz/corpus/notifications/traced-packet");

    fn events() -> Vec<TraceEvent> {
        let mut events = Vec::new();
        netlink::each_notification(TRACED, |it| events.extend(TraceEvent::from_notification(it)));
        events
    }

    #[test]
    fn a_packet_is_read_with_its_headers_and_interfaces_then_its_steps() {
        let events = events();
        let steps: Vec<_> = events.iter().map(|event| event.step.clone()).collect();
        let dropped = Step::Rule { handle: 2, verdict: TraceVerdict::Drop };
        assert_eq!(steps, [Step::Begin, dropped, Step::Policy(TraceVerdict::Accept)]);
        let [begin, rule, _] = &events[..] else { panic!("{events:?}") };
        assert_eq!((&*begin.table, &*begin.chain, begin.family), ("filter", "FORWARD", 2));
        assert_eq!((begin.input, begin.output), (Some(5), Some(6)));
        let headers = Headers {
            source: [192, 168, 50, 9].into(),
            destination: [10, 96, 0, 10].into(),
            protocol: 6,
            transport: Transport::Tcp { source: 41440, destination: 80, flags: 2 },
        };
        assert_eq!((begin.headers, rule.headers), (Some(headers), None));
        assert!(events.iter().all(|event| event.packet == begin.packet));
    }

    #[test]
    fn verdicts_are_read_by_their_lower_bits_and_those_of_chains_go_on() {
        use TraceVerdict::{Accept, Continue, Drop, Queue, Stolen};

        let codes = [0, 1, 2, 0x8001_0003, u32::MAX, (-5_i32).cast_unsigned()];
        let verdicts = codes.map(TraceVerdict::from_code);
        assert_eq!(verdicts, [Drop, Accept, Stolen, Queue, Continue, Continue]);
    }

    #[test]
    fn a_header_that_is_cut_short_has_no_ports() {
        assert_eq!(Transport::read(6, &[0, 80, 1]), Transport::Unknown);
        assert_eq!(Headers::read(&[0x45; 12], &[]), None);
        assert_eq!(Transport::read(1, &[3, 3]), Transport::Icmp { kind: 3, code: 3 });
    }
}
