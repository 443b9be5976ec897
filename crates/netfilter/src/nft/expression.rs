//! What the kernel executes: expressions over registers.

use netlink::Encoder;

/// `NFTA_LIST_ELEM`: one entry of any list.
pub(crate) const LIST_ELEMENT: u16 = 1;
/// `NFTA_DATA_VALUE`.
pub(crate) const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;

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
    /// 32 bits in host order.
    Mark = 3,
    /// 16 bytes, padded with NUL.
    InputInterfaceName = 6,
    /// One byte.
    L4Protocol = 16,
}

/// `NFT_RETURN` and its kin: what becomes of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Jump(&'static str),
    Return,
}

/// One instruction. A rule ends where one of them does not match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expression {
    /// Loads bytes of the packet.
    Payload { base: Base, offset: u8, length: u8, to: Register },
    /// Loads something that the kernel knows about the packet.
    Meta { key: MetaKey, to: Register },
    /// Sets the same.
    SetMeta { key: MetaKey, from: Register },
    /// `register = (register & mask) ^ xor`; both have the same length.
    Bitwise { register: Register, mask: Vec<u8>, xor: Vec<u8> },
    /// Matches if the register starts with these bytes.
    Equal { register: Register, value: Vec<u8> },
    /// Matches if the set holds the key that starts in this register.
    Lookup { set: &'static str, key: Register },
    /// Ends the rule with a verdict.
    Verdict(Verdict),
    /// Takes the address of the output interface as source, and ends the rule.
    Masquerade { fully_random: bool },
}

impl Expression {
    /// Appends itself as one entry of a rule's expression list.
    pub(crate) fn encode(&self, list: &mut Encoder<'_>) {
        const NAME: u16 = 1;
        const DATA: u16 = 2;
        list.nest(LIST_ELEMENT, |entry| {
            entry.string(NAME, self.name());
            entry.nest(DATA, |data| self.encode_data(data));
        });
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Payload { .. } => "payload",
            Self::Meta { .. } | Self::SetMeta { .. } => "meta",
            Self::Bitwise { .. } => "bitwise",
            Self::Equal { .. } => "cmp",
            Self::Lookup { .. } => "lookup",
            Self::Verdict(_) => "immediate",
            Self::Masquerade { .. } => "masq",
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
            Self::SetMeta { key, from } => {
                data.u32_be(2, *key as u32);
                data.u32_be(3, from.number());
            }
            Self::Bitwise { register, mask, xor } => {
                data.u32_be(1, register.number());
                data.u32_be(2, register.number());
                data.u32_be(3, u32::try_from(mask.len()).unwrap_or(u32::MAX));
                data.nest(4, |value| value.bytes(DATA_VALUE, mask));
                data.nest(5, |value| value.bytes(DATA_VALUE, xor));
            }
            Self::Equal { register, value } => {
                const NFT_CMP_EQ: u32 = 0;
                data.u32_be(1, register.number());
                data.u32_be(2, NFT_CMP_EQ);
                data.nest(3, |encoder| encoder.bytes(DATA_VALUE, value));
            }
            Self::Lookup { set, key } => {
                data.string(1, set);
                data.u32_be(2, key.number());
            }
            Self::Verdict(verdict) => {
                const NFT_REG_VERDICT: u32 = 0;
                data.u32_be(1, NFT_REG_VERDICT);
                data.nest(2, |value| value.nest(DATA_VERDICT, |code| verdict.encode(code)));
            }
            Self::Masquerade { fully_random } => {
                const NF_NAT_RANGE_PROTO_RANDOM_FULLY: u32 = 1 << 4;
                if *fully_random {
                    data.u32_be(1, NF_NAT_RANGE_PROTO_RANDOM_FULLY);
                }
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
            Self::Return => encoder.u32_be(CODE, (-5i32).cast_unsigned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use netlink::Batch;

    use super::*;

    /// The attributes of one expression, without list entry and name.
    fn data(expression: &Expression) -> Vec<u8> {
        let mut batch = Batch::default();
        batch.add(0, 0, |encoder| expression.encode_data(encoder));
        batch.as_bytes()[16..].to_vec()
    }

    fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
        let length = u16::try_from(4 + payload.len()).unwrap();
        let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), payload].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn nested(kind: u16, content: &[u8]) -> Vec<u8> {
        attribute(kind | 0x8000, content)
    }

    #[test]
    fn an_entry_of_the_list_is_a_name_and_its_data() {
        let mut batch = Batch::default();
        batch.add(0, 0, |e| Expression::Masquerade { fully_random: false }.encode(e));
        let expected = nested(1, &[attribute(1, b"masq\0"), nested(2, &[])].concat());
        assert_eq!(batch.as_bytes()[16..], expected);
    }

    #[test]
    fn payload_loads_from_a_base_offset_and_length_into_a_register() {
        let port = Expression::Payload { base: Base::Transport, offset: 2, length: 2, to: Register(2) };
        let expected = [
            attribute(1, &[0, 0, 0, 10]),
            attribute(2, &[0, 0, 0, 2]),
            attribute(3, &[0, 0, 0, 2]),
            attribute(4, &[0, 0, 0, 2]),
        ];
        assert_eq!(data(&port), expected.concat());
    }

    #[test]
    fn meta_loads_by_the_first_attribute_and_sets_by_the_third() {
        let load = Expression::Meta { key: MetaKey::L4Protocol, to: Register(1) };
        assert_eq!(data(&load), [attribute(1, &[0, 0, 0, 9]), attribute(2, &[0, 0, 0, 16])].concat());
        let set = Expression::SetMeta { key: MetaKey::Mark, from: Register(0) };
        assert_eq!(data(&set), [attribute(2, &[0, 0, 0, 3]), attribute(3, &[0, 0, 0, 8])].concat());
    }

    #[test]
    fn bitwise_reads_and_writes_the_same_register() {
        let bitwise = Expression::Bitwise { register: Register(0), mask: vec![255, 252], xor: vec![0, 0] };
        let expected = [
            attribute(1, &[0, 0, 0, 8]),
            attribute(2, &[0, 0, 0, 8]),
            attribute(3, &[0, 0, 0, 2]),
            nested(4, &attribute(1, &[255, 252])),
            nested(5, &attribute(1, &[0, 0])),
        ];
        assert_eq!(data(&bitwise), expected.concat());
    }

    #[test]
    fn a_comparison_carries_as_many_bytes_as_it_compares() {
        let equal = Expression::Equal { register: Register(0), value: b"veth".to_vec() };
        let expected =
            [attribute(1, &[0, 0, 0, 8]), attribute(2, &[0, 0, 0, 0]), nested(3, &attribute(1, b"veth"))];
        assert_eq!(data(&equal), expected.concat());
    }

    #[test]
    fn a_lookup_names_its_set_and_the_first_register_of_the_key() {
        let lookup = Expression::Lookup { set: "hairpin", key: Register(0) };
        assert_eq!(data(&lookup), [attribute(1, b"hairpin\0"), attribute(2, &[0, 0, 0, 8])].concat());
    }

    #[test]
    fn a_jump_is_a_verdict_with_a_chain() {
        let verdict = [attribute(1, &[0xff, 0xff, 0xff, 0xfd]), attribute(2, b"services\0")].concat();
        let expected = [attribute(1, &[0; 4]), nested(2, &nested(2, &verdict))];
        assert_eq!(data(&Expression::Verdict(Verdict::Jump("services"))), expected.concat());
    }

    #[test]
    fn a_return_is_a_verdict_alone() {
        let verdict = attribute(1, &[0xff, 0xff, 0xff, 0xfb]);
        let expected = [attribute(1, &[0; 4]), nested(2, &nested(2, &verdict))];
        assert_eq!(data(&Expression::Verdict(Verdict::Return)), expected.concat());
    }

    #[test]
    fn fully_random_is_a_flag_of_masquerade() {
        assert_eq!(data(&Expression::Masquerade { fully_random: true }), attribute(1, &[0, 0, 0, 0x10]));
    }
}
