//! Decoding parts of chains and rules, which may be other programs'.

use netlink::{Error, attributes, find};

use super::message::NFTA_DATA_VERDICT;

/// `enum nft_hook_attributes`.
pub(crate) const NFTA_HOOK_HOOKNUM: u16 = 1;
pub(crate) const NFTA_HOOK_PRIORITY: u16 = 2;

/// `NFTNL_UDATA_RULE_COMMENT`: the type of a comment in a rule's user data, as bytes of type, length, and
/// text with its NUL.
pub(crate) const UDATA_COMMENT: u8 = 0;

/// What an `immediate` expression decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict<'a> {
    /// One of `NF_ACCEPT`, `NF_DROP` and `NFT_RETURN`'s kin.
    pub code: i32,
    /// Where it jumps or goes to, if it does.
    pub chain: Option<&'a str>,
}

impl<'a> Verdict<'a> {
    /// Reads the data of an `immediate`; `None` if it loads a value.
    pub fn from_immediate(data: &'a [u8]) -> Option<Self> {
        const NFTA_IMMEDIATE_DATA: u16 = 2;
        const NFTA_VERDICT_CODE: u16 = 1;
        const NFTA_VERDICT_CHAIN: u16 = 2;
        let verdict = find(find(data, NFTA_IMMEDIATE_DATA)?.payload, NFTA_DATA_VERDICT)?.payload;
        Some(Self {
            code: find(verdict, NFTA_VERDICT_CODE)?.u32_be().ok()?.cast_signed(),
            chain: find(verdict, NFTA_VERDICT_CHAIN).and_then(|chain| chain.string().ok()),
        })
    }
}

/// The name of an entry of a rule's list of expressions, and its data.
pub fn expression(entry: &[u8]) -> Option<(&str, &[u8])> {
    const NFTA_EXPR_NAME: u16 = 1;
    const NFTA_EXPR_DATA: u16 = 2;
    let data = find(entry, NFTA_EXPR_DATA).map_or(&[][..], |data| data.payload);
    Some((find(entry, NFTA_EXPR_NAME)?.string().ok()?, data))
}

/// Each expression in a rule's list of them: its name, and its data.
fn expressions(list: &[u8]) -> impl Iterator<Item = (&str, &[u8])> {
    attributes(list).filter_map(|entry| expression(entry.ok()?.payload))
}

/// How many packets a `counter` expression of a rule has counted, by the rule's list of expressions; `None`
/// if it has none.
pub(crate) fn counted_packets(list: &[u8]) -> Option<u64> {
    const NFTA_COUNTER_PACKETS: u16 = 2;
    let (_, counter) = expressions(list).filter(|(name, _)| *name == "counter").last()?;
    find(counter, NFTA_COUNTER_PACKETS)?.array().ok().map(u64::from_be_bytes)
}

/// Whether a rule drops packets, by its list of expressions.
pub(crate) fn drops(list: &[u8]) -> bool {
    const NF_DROP: i32 = 0;
    expressions(list)
        .filter(|(name, _)| *name == "immediate")
        .any(|(_, data)| Verdict::from_immediate(data).is_some_and(|verdict| verdict.code == NF_DROP))
}

/// Whether a rule fixes the destination of a connection as it is, by its list of expressions: it has a
/// destination NAT to an address without a port.
pub(crate) fn keeps_destination(list: &[u8]) -> bool {
    const NFTA_NAT_TYPE: u16 = 1;
    const NFT_NAT_DNAT: u32 = 1;
    const NFTA_NAT_REG_PROTO_MIN: u16 = 5;
    expressions(list).filter(|(name, _)| *name == "nat").any(|(_, data)| {
        let kind = find(data, NFTA_NAT_TYPE).and_then(|kind| kind.u32_be().ok());
        kind == Some(NFT_NAT_DNAT) && find(data, NFTA_NAT_REG_PROTO_MIN).is_none()
    })
}

/// The number of a base chain's hook, and its priority there.
pub fn hook(bytes: &[u8]) -> Result<(u32, i32), Error> {
    let (mut number, mut priority) = (0, 0);
    for attribute in attributes(bytes) {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_HOOK_HOOKNUM => number = attribute.u32_be()?,
            NFTA_HOOK_PRIORITY => priority = attribute.u32_be()?.cast_signed(),
            _ => {}
        }
    }
    Ok((number, priority))
}

/// The comment in a rule's user data; empty if there is none, or if the data has another format.
pub fn comment(mut userdata: &[u8]) -> &str {
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
    use super::{super::encode, *};

    #[test]
    fn the_comment_is_read_back_from_the_user_data() {
        let data = encode::comment("hello");
        assert_eq!(data, b"\0\x06hello\0");
        assert_eq!(comment(&data), "hello");
        let behind_another = [&[9, 2, 0, 0][..], &data].concat();
        assert_eq!(comment(&behind_another), "hello");
    }

    #[test]
    fn user_data_of_another_format_is_no_comment() {
        for data in [&b"\0"[..], b"\0\x09cut", b"\x07\0", b"\0\x02\xff\xff"] {
            assert_eq!(comment(data), "", "{data:?}");
        }
    }
}
