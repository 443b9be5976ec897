//! What the kernel executes: expressions over registers.

use ipvs::Family;
use netlink::Encoder;

use super::{
    encode,
    message::{self, NFTA_DATA_VALUE, NFTA_DATA_VERDICT},
};

/// `enum nft_fib_result` and `enum nft_fib_flags`.
const NFT_FIB_RESULT_OIF: u32 = 1;
const NFTA_FIB_F_SADDR: u32 = 1;
const NFTA_FIB_F_IIF: u32 = 1 << 3;

/// A data register of four bytes, by position: `NFT_REG32_00` is 0. Longer values take the registers
/// that follow. There are 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Register(pub(crate) u8);

impl Register {
    fn number(self) -> u32 {
        const NFT_REG32_00: u32 = 8;
        NFT_REG32_00 + u32::from(self.0)
    }

    /// The register behind a value of `length` bytes that starts here.
    pub(crate) fn after(self, length: u8) -> Self {
        Self(self.0 + length.div_ceil(4))
    }
}

/// `enum nft_payload_bases`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Base {
    Network = 1,
    Transport = 2,
}

/// `enum nft_meta_keys`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum MetaKey {
    /// 32 bits, stored and compared as they are.
    Priority = 2,
    /// 32 bits in host order.
    Mark = 3,
    /// 16 bytes, padded with NUL.
    InputInterfaceName = 6,
    /// One byte.
    L4Protocol = 16,
}

/// `enum nft_ct_keys`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum ConntrackKey {
    /// One bit, in host order (`NF_CT_STATE_BIT`).
    State = 0,
    /// One byte: [`Direction`].
    Direction = 1,
    /// Two bytes, of one direction.
    DestinationPort = 12,
    /// Of one direction, since Linux 4.17. (The older number for both families makes nft 1.0.6 abort.)
    DestinationV4 = 20,
    DestinationV6 = 22,
}

/// `enum ip_conntrack_dir`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Direction {
    Original = 0,
    Reply = 1,
}

/// What the kernel keeps right when bytes of the network header change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderChecksum {
    /// The header's own, at this offset, and that of the transport header.
    At(u8),
    /// That of the transport header: this header has none.
    None,
}

/// `enum nft_cmp_ops`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Comparison {
    Equal = 0,
    NotEqual = 1,
}

/// `NFT_RETURN` and its kin: what becomes of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Jump(&'static str),
    Goto(&'static str),
    Return,
    /// Accepted in this base chain; others may still drop it.
    Accept,
    /// Dropped for good, whatever other chains say.
    Drop,
}

/// One instruction. A rule ends where one of them does not match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expression {
    /// Loads bytes of the packet.
    Payload { base: Base, offset: u8, length: u8, to: Register },
    /// Loads something that the kernel knows about the packet.
    Meta { key: MetaKey, to: Register },
    /// Loads the index of the interface by which the packet's source is reached, if that is the one by which it came in;
    /// otherwise 0. Since Linux 4.10.
    WayBack { to: Register },
    /// Sets the same as [`Expression::Meta`] loads.
    SetMeta { key: MetaKey, from: Register },
    /// `register = (register & mask) ^ xor`; both have the same length.
    Bitwise { register: Register, mask: Vec<u8>, xor: Vec<u8> },
    /// Loads something that conntrack knows about the packet, or about one direction of its connection.
    Conntrack { key: ConntrackKey, direction: Option<Direction>, to: Register },
    /// Loads these bytes.
    Immediate { value: Vec<u8>, to: Register },
    /// Sets bytes of the network header.
    SetNetworkHeader { offset: u8, length: u8, checksum: HeaderChecksum, from: Register },
    /// Sets two bytes of the maximum segment size, if a TCP option has it and it is larger
    /// (`nft_exthdr_tcp_set_eval` in net/netfilter/nft_exthdr.c).
    SetMaxSegmentSize { from: Register },
    /// Matches if the register starts with these bytes, or if it does not.
    Compare { register: Register, how: Comparison, value: Vec<u8> },
    /// Matches if the set holds the key that starts in this register. A map's value is loaded.
    Lookup { set: &'static str, key: Register, value: Option<Register> },
    /// Ends the rule with a verdict.
    Verdict(Verdict),
    /// Makes the address in the register the connection's destination, and ends the rule. Without a register for
    /// the port that stays.
    DestinationNat { family: Family, address: Register, port: Option<Register> },
    /// Keeps the packet from conntrack, if it comes before that.
    Notrack,
    /// Counts the packet.
    Counter,
    /// Takes the address of the output interface as source, and ends the rule.
    Masquerade { fully_random: bool },
    /// Drops the packet and answers its sender by ICMP.
    Reject { icmp_code: u8 },
}

impl Expression {
    /// Appends itself as one entry of a rule's expression list.
    pub(crate) fn encode(&self, list: &mut Encoder<'_>) {
        encode::expression(list, self.name(), |data| self.encode_data(data));
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Payload { .. } | Self::SetNetworkHeader { .. } => "payload",
            Self::Meta { .. } | Self::SetMeta { .. } => "meta",
            Self::WayBack { .. } => "fib",
            Self::Bitwise { .. } => "bitwise",
            Self::Conntrack { .. } => "ct",
            Self::SetMaxSegmentSize { .. } => "exthdr",
            Self::Compare { .. } => "cmp",
            Self::Lookup { .. } => "lookup",
            Self::Immediate { .. } | Self::Verdict(_) => "immediate",
            Self::DestinationNat { .. } => "nat",
            Self::Notrack => "notrack",
            Self::Counter => "counter",
            Self::Masquerade { .. } => "masq",
            Self::Reject { .. } => "reject",
        }
    }

    /// The attributes of each expression: `enum nft_payload_attributes` and so on.
    fn encode_data(&self, data: &mut Encoder<'_>) {
        match self {
            Self::Payload { base, offset, length, to } => {
                data.u32_be(1, to.number());
                data.u32_be(2, *base as u32);
                data.u32_be(3, u32::from(*offset));
                data.u32_be(4, u32::from(*length));
            }
            Self::Meta { key, to } => {
                data.u32_be(1, to.number());
                data.u32_be(2, *key as u32);
            }
            Self::WayBack { to } => {
                data.u32_be(1, to.number());
                data.u32_be(2, NFT_FIB_RESULT_OIF);
                data.u32_be(3, NFTA_FIB_F_SADDR | NFTA_FIB_F_IIF);
            }
            Self::SetMeta { key, from } => {
                data.u32_be(2, *key as u32);
                data.u32_be(3, from.number());
            }
            Self::Bitwise { register, mask, xor } => {
                data.u32_be(1, register.number());
                data.u32_be(2, register.number());
                data.u32_be(3, u32::try_from(mask.len()).unwrap_or(u32::MAX));
                data.nest(4, |value| value.bytes(NFTA_DATA_VALUE, mask));
                data.nest(5, |value| value.bytes(NFTA_DATA_VALUE, xor));
            }
            Self::Conntrack { key, direction, to } => {
                data.u32_be(1, to.number());
                data.u32_be(2, *key as u32);
                if let Some(direction) = direction {
                    data.u8(3, *direction as u8);
                }
            }
            Self::Immediate { value, to } => {
                data.u32_be(1, to.number());
                data.nest(2, |encoder| encoder.bytes(NFTA_DATA_VALUE, value));
            }
            Self::SetNetworkHeader { offset, length, checksum, from } => {
                const NFT_PAYLOAD_CSUM_INET: u32 = 1;
                const NFT_PAYLOAD_L4CSUM_PSEUDOHDR: u32 = 1;
                data.u32_be(5, from.number());
                data.u32_be(2, Base::Network as u32);
                data.u32_be(3, u32::from(*offset));
                data.u32_be(4, u32::from(*length));
                if let HeaderChecksum::At(at) = checksum {
                    data.u32_be(6, NFT_PAYLOAD_CSUM_INET);
                    data.u32_be(7, u32::from(*at));
                }
                data.u32_be(8, NFT_PAYLOAD_L4CSUM_PSEUDOHDR);
            }
            Self::SetMaxSegmentSize { from } => {
                const TCPOPT_MAXSEG: u8 = 2;
                const NFT_EXTHDR_OP_TCPOPT: u32 = 1;
                data.u8(2, TCPOPT_MAXSEG);
                // Behind the option's kind and length.
                data.u32_be(3, 2);
                data.u32_be(4, 2);
                data.u32_be(6, NFT_EXTHDR_OP_TCPOPT);
                data.u32_be(7, from.number());
            }
            Self::Compare { register, how, value } => {
                data.u32_be(1, register.number());
                data.u32_be(2, *how as u32);
                data.nest(3, |encoder| encoder.bytes(NFTA_DATA_VALUE, value));
            }
            Self::Lookup { set, key, value } => {
                data.string(1, set);
                data.u32_be(2, key.number());
                if let Some(value) = value {
                    data.u32_be(3, value.number());
                }
            }
            Self::Verdict(verdict) => {
                const NFT_REG_VERDICT: u32 = 0;
                data.u32_be(1, NFT_REG_VERDICT);
                data.nest(2, |value| value.nest(NFTA_DATA_VERDICT, |code| verdict.encode(code)));
            }
            Self::DestinationNat { family, address, port } => {
                const NFT_NAT_DNAT: u32 = 1;
                data.u32_be(1, NFT_NAT_DNAT);
                data.u32_be(2, u32::from(message::protocol(*family)));
                data.u32_be(3, address.number());
                if let Some(port) = port {
                    data.u32_be(5, port.number());
                }
            }
            // A counter begins at 0.
            Self::Notrack | Self::Counter => {}
            Self::Masquerade { fully_random } => {
                const NF_NAT_RANGE_PROTO_RANDOM_FULLY: u32 = 1 << 4;
                if *fully_random {
                    data.u32_be(1, NF_NAT_RANGE_PROTO_RANDOM_FULLY);
                }
            }
            Self::Reject { icmp_code } => {
                const NFT_REJECT_ICMP_UNREACH: u32 = 0;
                data.u32_be(1, NFT_REJECT_ICMP_UNREACH);
                data.u8(2, *icmp_code);
            }
        }
    }
}

impl Verdict {
    fn encode(self, encoder: &mut Encoder<'_>) {
        const CODE: u16 = 1;
        const CHAIN: u16 = 2;
        match self {
            Self::Jump(chain) => {
                encoder.u32_be(CODE, (-3i32).cast_unsigned());
                encoder.string(CHAIN, chain);
            }
            Self::Goto(chain) => {
                encoder.u32_be(CODE, (-4i32).cast_unsigned());
                encoder.string(CHAIN, chain);
            }
            Self::Return => encoder.u32_be(CODE, (-5i32).cast_unsigned()),
            Self::Accept => encoder.u32_be(CODE, 1),
            Self::Drop => encoder.u32_be(CODE, 0),
        }
    }
}

#[cfg(test)]
mod tests;
