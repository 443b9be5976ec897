//! The expressions over registers that the kernel executes.

use ipvs::Family;
use netlink::Encoder;

use super::{
    counter,
    message::{self, NFTA_DATA_VALUE, NFTA_DATA_VERDICT},
    parts::{Verdict, encode_expression},
};

/// `enum nft_fib_result` and `enum nft_fib_flags`.
const NFT_FIB_RESULT_OIF: u32 = 1;
const NFT_FIB_RESULT_ADDRTYPE: u32 = 3;
const NFTA_FIB_F_SADDR: u32 = 1;
const NFTA_FIB_F_DADDR: u32 = 1 << 1;
const NFTA_FIB_F_IIF: u32 = 1 << 3;

/// A data register of four bytes, by position: `NFT_REG32_00` is 0. Longer values take the registers
/// that follow. There are 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Register(pub(crate) u8);

impl Register {
    pub(super) fn number(self) -> u32 {
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
    /// One byte; it can only be set (`nft_meta_set_init` in net/netfilter/nft_meta.c).
    Trace = 12,
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
    /// One byte, of one direction.
    Protocol = 10,
    /// Two bytes, of one direction.
    SourcePort = 11,
    DestinationPort = 12,
    /// Of one direction, since Linux 4.17. (The older number for both families makes nft 1.0.6 abort.)
    SourceV4 = 19,
    DestinationV4 = 20,
    SourceV6 = 21,
    DestinationV6 = 22,
}

/// `enum ip_conntrack_dir`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Direction {
    Original = 0,
    Reply = 1,
}

/// `enum nft_cmp_ops`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Comparison {
    Equal = 0,
    NotEqual = 1,
}

/// Appends one instruction to a rule's list. A rule ends where one of them does not match. The attributes of
/// each are those of `enum nft_payload_attributes` and so on.
pub(super) struct List<'a, 'b>(pub(super) &'a mut Encoder<'b>);

impl List<'_, '_> {
    /// Loads bytes of the packet.
    pub(super) fn payload(&mut self, base: Base, offset: u8, length: u8, to: Register) {
        encode_expression(self.0, "payload", |data| {
            data.u32_be(1, to.number());
            data.u32_be(2, base as u32);
            data.u32_be(3, u32::from(offset));
            data.u32_be(4, u32::from(length));
        });
    }

    /// Loads something that the kernel knows about the packet.
    pub(super) fn meta(&mut self, key: MetaKey, to: Register) {
        encode_expression(self.0, "meta", |data| {
            data.u32_be(1, to.number());
            data.u32_be(2, key as u32);
        });
    }

    /// Sets the same as [`List::meta`] loads.
    pub(super) fn set_meta(&mut self, key: MetaKey, from: Register) {
        encode_expression(self.0, "meta", |data| {
            data.u32_be(2, key as u32);
            data.u32_be(3, from.number());
        });
    }

    /// Loads the index of the interface by which the packet's source is reached, if that is the one by which
    /// it came in; otherwise 0. Since Linux 4.10.
    pub(super) fn reverse_path(&mut self, to: Register) {
        encode_expression(self.0, "fib", |data| {
            data.u32_be(1, to.number());
            data.u32_be(2, NFT_FIB_RESULT_OIF);
            data.u32_be(3, NFTA_FIB_F_SADDR | NFTA_FIB_F_IIF);
        });
    }

    /// Loads the type of the destination's route, a number in host order. Since Linux 4.10.
    pub(super) fn destination_type(&mut self, to: Register) {
        encode_expression(self.0, "fib", |data| {
            data.u32_be(1, to.number());
            data.u32_be(2, NFT_FIB_RESULT_ADDRTYPE);
            data.u32_be(3, NFTA_FIB_F_DADDR);
        });
    }

    /// `register = (register & mask) ^ xor`; both have the same length.
    pub(super) fn bitwise(&mut self, register: Register, mask: &[u8], xor: &[u8]) {
        encode_expression(self.0, "bitwise", |data| {
            data.u32_be(1, register.number());
            data.u32_be(2, register.number());
            data.u32_be(3, u32::try_from(mask.len()).unwrap_or(u32::MAX));
            data.nest(4, |value| value.bytes(NFTA_DATA_VALUE, mask));
            data.nest(5, |value| value.bytes(NFTA_DATA_VALUE, xor));
        });
    }

    /// Loads something that conntrack knows about the packet, or about one direction of its connection.
    pub(super) fn conntrack(&mut self, key: ConntrackKey, direction: Option<Direction>, to: Register) {
        encode_expression(self.0, "ct", |data| {
            data.u32_be(1, to.number());
            data.u32_be(2, key as u32);
            if let Some(direction) = direction {
                data.u8(3, direction as u8);
            }
        });
    }

    /// Loads these bytes.
    pub(super) fn immediate(&mut self, value: &[u8], to: Register) {
        encode_expression(self.0, "immediate", |data| {
            data.u32_be(1, to.number());
            data.nest(2, |encoder| encoder.bytes(NFTA_DATA_VALUE, value));
        });
    }

    /// Sets bytes of the network header, with the checksum of the transport header, and with the header's own
    /// at this offset: an IPv6 header has none.
    pub(super) fn set_network_header(
        &mut self,
        offset: u8,
        length: u8,
        checksum: Option<u8>,
        from: Register,
    ) {
        const NFT_PAYLOAD_CSUM_INET: u32 = 1;
        const NFT_PAYLOAD_L4CSUM_PSEUDOHDR: u32 = 1;
        encode_expression(self.0, "payload", |data| {
            data.u32_be(5, from.number());
            data.u32_be(2, Base::Network as u32);
            data.u32_be(3, u32::from(offset));
            data.u32_be(4, u32::from(length));
            if let Some(at) = checksum {
                data.u32_be(6, NFT_PAYLOAD_CSUM_INET);
                data.u32_be(7, u32::from(at));
            }
            data.u32_be(8, NFT_PAYLOAD_L4CSUM_PSEUDOHDR);
        });
    }

    /// Sets two bytes of the maximum segment size, if a TCP option has it and it is larger
    /// (`nft_exthdr_tcp_set_eval` in net/netfilter/nft_exthdr.c).
    pub(super) fn set_max_segment_size(&mut self, from: Register) {
        const TCPOPT_MAXSEG: u8 = 2;
        const NFT_EXTHDR_OP_TCPOPT: u32 = 1;
        encode_expression(self.0, "exthdr", |data| {
            data.u8(2, TCPOPT_MAXSEG);
            // Behind the option's kind and length.
            data.u32_be(3, 2);
            data.u32_be(4, 2);
            data.u32_be(6, NFT_EXTHDR_OP_TCPOPT);
            data.u32_be(7, from.number());
        });
    }

    /// Matches if the register starts with these bytes, or if it does not.
    pub(super) fn compare(&mut self, register: Register, how: Comparison, value: &[u8]) {
        encode_expression(self.0, "cmp", |data| {
            data.u32_be(1, register.number());
            data.u32_be(2, how as u32);
            data.nest(3, |encoder| encoder.bytes(NFTA_DATA_VALUE, value));
        });
    }

    /// Matches if the set holds the key that starts in this register. A map's value is loaded.
    pub(super) fn lookup(&mut self, set: &str, key: Register, value: Option<Register>) {
        encode_expression(self.0, "lookup", |data| {
            data.string(1, set);
            data.u32_be(2, key.number());
            if let Some(value) = value {
                data.u32_be(3, value.number());
            }
        });
    }

    /// Matches if the set does not hold the key that starts in this register.
    pub(super) fn lookup_missing(&mut self, set: &str, key: Register) {
        const NFT_LOOKUP_F_INV: u32 = 1;
        encode_expression(self.0, "lookup", |data| {
            data.string(1, set);
            data.u32_be(2, key.number());
            data.u32_be(5, NFT_LOOKUP_F_INV);
        });
    }

    /// Ends the rule with a verdict.
    pub(super) fn verdict(&mut self, verdict: Verdict<'_>) {
        const NFT_REG_VERDICT: u32 = 0;
        encode_expression(self.0, "immediate", |data| {
            data.u32_be(1, NFT_REG_VERDICT);
            data.nest(2, |value| value.nest(NFTA_DATA_VERDICT, |code| verdict.encode(code)));
        });
    }

    /// Makes the address in the register the connection's destination, and ends the rule. Without a register
    /// for the port that stays.
    pub(super) fn destination_nat(&mut self, family: Family, address: Register, port: Option<Register>) {
        const NFT_NAT_DNAT: u32 = 1;
        encode_expression(self.0, "nat", |data| {
            data.u32_be(1, NFT_NAT_DNAT);
            data.u32_be(2, u32::from(message::protocol(family)));
            data.u32_be(3, address.number());
            if let Some(port) = port {
                data.u32_be(5, port.number());
            }
        });
    }

    /// Takes the address of the output interface as source, and ends the rule.
    pub(super) fn masquerade(&mut self, fully_random: bool) {
        const NF_NAT_RANGE_PROTO_RANDOM_FULLY: u32 = 1 << 4;
        encode_expression(self.0, "masq", |data| {
            if fully_random {
                data.u32_be(1, NF_NAT_RANGE_PROTO_RANDOM_FULLY);
            }
        });
    }

    /// Drops the packet and answers its sender by ICMP.
    pub(super) fn reject(&mut self, icmp_code: u8) {
        const NFT_REJECT_ICMP_UNREACH: u32 = 0;
        encode_expression(self.0, "reject", |data| {
            data.u32_be(1, NFT_REJECT_ICMP_UNREACH);
            data.u8(2, icmp_code);
        });
    }

    /// Keeps the packet from conntrack, if it comes before that.
    pub(super) fn notrack(&mut self) {
        encode_expression(self.0, "notrack", |_| {});
    }

    /// Matches so many packets in a second, and so many more at once.
    pub(super) fn limit(&mut self, per_second: u32, burst: u32) {
        encode_expression(self.0, "limit", |data| {
            data.u64_be(1, u64::from(per_second));
            // The unit, in seconds.
            data.u64_be(2, 1);
            data.u32_be(3, burst);
        });
    }

    /// Adds the key that starts in this register to a set. The rule ends if the set is full.
    pub(super) fn add_to_set(&mut self, set: &str, key: Register) {
        const NFT_DYNSET_OP_ADD: u32 = 0;
        encode_expression(self.0, "dynset", |data| {
            data.string(1, set);
            data.u32_be(3, NFT_DYNSET_OP_ADD);
            data.u32_be(4, key.number());
        });
    }

    /// Counts the packet in the table's counter of this name.
    pub(super) fn count_in(&mut self, counter: &str) {
        encode_expression(self.0, "objref", |data| {
            data.u32_be(1, counter::COUNTER);
            data.string(2, counter);
        });
    }
}

#[cfg(test)]
mod tests;
