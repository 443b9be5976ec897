//! Parts of rules, written and read: of our table, and of any other program's.

use ipvs::Family;
use netlink::{Encoder, Error, attributes, find};

use super::{
    expression::List,
    message::{NFTA_DATA_VERDICT, NFTA_LIST_ELEM},
    statement::{Statement, daddr_offset},
};

/// `enum nft_expr_attributes`.
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
/// `enum nft_verdict_attributes`.
const NFTA_VERDICT_CODE: u16 = 1;
const NFTA_VERDICT_CHAIN: u16 = 2;

/// `NFTNL_UDATA_RULE_COMMENT`: the type of a comment in a rule's user data, as bytes of type, length, and
/// text with its NUL.
const UDATA_COMMENT: u8 = 0;

/// The decision of an `immediate` expression about a packet: `NF_*` and `NFT_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// It goes through another chain, then on.
    Jump(&'a str),
    /// It goes through another chain, and does not come back.
    Goto(&'a str),
    /// It leaves this chain.
    Return,
    /// It is accepted in this base chain; others may still drop it.
    Accept,
    /// It is dropped for good, whatever other chains say.
    Drop,
    /// Any other decision, by the kernel's number.
    Other(i32),
}

impl<'a> Verdict<'a> {
    const JUMP: i32 = -3;
    const GOTO: i32 = -4;
    const RETURN: i32 = -5;
    const ACCEPT: i32 = 1;
    const DROP: i32 = 0;

    pub(super) fn encode(self, encoder: &mut Encoder<'_>) {
        let (code, chain) = match self {
            Self::Jump(chain) => (Self::JUMP, Some(chain)),
            Self::Goto(chain) => (Self::GOTO, Some(chain)),
            Self::Return => (Self::RETURN, None),
            Self::Accept => (Self::ACCEPT, None),
            Self::Drop => (Self::DROP, None),
            Self::Other(code) => (code, None),
        };
        encoder.u32_be(NFTA_VERDICT_CODE, code.cast_unsigned());
        if let Some(chain) = chain {
            encoder.string(NFTA_VERDICT_CHAIN, chain);
        }
    }

    /// Reads the data of an `immediate`; `None` if it loads a value. The name of a chain is empty if it is not
    /// UTF-8.
    pub fn from_immediate(data: &'a [u8]) -> Option<Self> {
        const NFTA_IMMEDIATE_DATA: u16 = 2;
        let verdict = find(find(data, NFTA_IMMEDIATE_DATA)?.payload, NFTA_DATA_VERDICT)?.payload;
        let chain =
            find(verdict, NFTA_VERDICT_CHAIN).and_then(|chain| chain.string().ok()).unwrap_or_default();
        let code = find(verdict, NFTA_VERDICT_CODE)?.u32_be().ok()?.cast_signed();
        Some(match code {
            Self::JUMP => Self::Jump(chain),
            Self::GOTO => Self::Goto(chain),
            Self::RETURN => Self::Return,
            Self::ACCEPT => Self::Accept,
            Self::DROP => Self::Drop,
            other => Self::Other(other),
        })
    }
}

/// Appends an expression to a rule's list: its name, and its data.
pub fn encode_expression(list: &mut Encoder<'_>, name: &str, data: impl FnOnce(&mut Encoder<'_>)) {
    list.nest(NFTA_LIST_ELEM, |entry| {
        entry.string(NFTA_EXPR_NAME, name);
        entry.nest(NFTA_EXPR_DATA, data);
    });
}

/// The name of an entry of a rule's list of expressions, and its data.
pub fn decode_expression(entry: &[u8]) -> Option<(&str, &[u8])> {
    let data = find(entry, NFTA_EXPR_DATA).map_or(&[][..], |data| data.payload);
    Some((find(entry, NFTA_EXPR_NAME)?.string().ok()?, data))
}

/// The entries of a rule's list of expressions. One that [`decode_expression`] cannot read counts too: packets may
/// end there.
pub fn entries(list: &[u8]) -> impl Iterator<Item = Result<&[u8], Error>> {
    attributes(list).filter_map(|entry| match entry {
        Ok(entry) => (entry.kind == NFTA_LIST_ELEM).then_some(Ok(entry.payload)),
        Err(error) => Some(Err(error)),
    })
}

/// Appends `meta mark & BIT == BIT` to a rule's list of expressions.
pub fn encode_mark_match(list: &mut Encoder<'_>, bit: u32) {
    // The same instructions in every family.
    Statement::HasMark(bit).encode(Family::V4, list);
}

/// Appends `accept` to a rule's list of expressions.
pub fn encode_accept(list: &mut Encoder<'_>) {
    List(list).verdict(Verdict::Accept);
}

/// Whether a rule fixes the destination of a connection as it is, by its list of expressions: a destination NAT
/// without a port, to the packet's own destination, which was loaded just before.
pub(super) fn keeps_destination(list: &[u8]) -> bool {
    const NFTA_PAYLOAD_OFFSET: u16 = 3;
    const NFTA_NAT_TYPE: u16 = 1;
    const NFT_NAT_DNAT: u32 = 1;
    const NFTA_NAT_REG_PROTO_MIN: u16 = 5;
    let number = |data, kind| find(data, kind).and_then(|number| number.u32_be().ok());
    let is_daddr = |offset| Family::BOTH.into_iter().any(|family| offset == u32::from(daddr_offset(family)));
    let expressions: Vec<_> = entries(list).filter_map(|entry| decode_expression(entry.ok()?)).collect();
    expressions.windows(2).any(|pair| match *pair {
        [("payload", load), ("nat", nat)] => {
            number(load, NFTA_PAYLOAD_OFFSET).is_some_and(is_daddr)
                && number(nat, NFTA_NAT_TYPE) == Some(NFT_NAT_DNAT)
                && find(nat, NFTA_NAT_REG_PROTO_MIN).is_none()
        }
        _ => false,
    })
}

/// The user data of a rule with this comment.
pub fn encode_comment(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len() + 1).unwrap_or(u8::MAX);
    let mut userdata = vec![UDATA_COMMENT, length];
    userdata.extend_from_slice(text.as_bytes());
    userdata.push(0);
    userdata
}

/// The comment in a rule's user data; empty if there is none, or if the data has another format.
pub fn decode_comment(mut userdata: &[u8]) -> &str {
    while let [kind, length, rest @ ..] = userdata {
        let Some((value, next)) = rest.split_at_checked(usize::from(*length)) else { break };
        if *kind == UDATA_COMMENT {
            let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
            return std::str::from_utf8(text).unwrap_or_default();
        }
        userdata = next;
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_comment_is_read_back_from_the_user_data() {
        let data = encode_comment("hello");
        assert_eq!(data, b"\0\x06hello\0");
        assert_eq!(decode_comment(&data), "hello");
        let behind_another = [&[9, 2, 0, 0][..], &data].concat();
        assert_eq!(decode_comment(&behind_another), "hello");
    }

    #[test]
    fn user_data_of_another_format_is_not_a_comment() {
        for data in [&b"\0"[..], b"\0\x09cut", b"\x07\0", b"\0\x02\xff\xff"] {
            assert_eq!(decode_comment(data), "", "{data:?}");
        }
    }
}
