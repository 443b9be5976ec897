//! The part of other programs' expressions that shows whether a rule ends its chain, and whether it accepts
//! what rules of ours do.

use netlink::find;

use super::xt;
use netfilter::nft::{
    decode::{self, Verdict},
    message::NFTA_DATA_VALUE,
};

/// One instruction, as the kernel shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expression {
    /// Decides nothing: it counts, or writes into the log.
    Aside,
    /// A comment as iptables makes it. Decides nothing.
    Comment(Box<str>),
    /// Loads the packet's mark into a register.
    LoadMark { to: u32 },
    /// Keeps some bits of a register.
    Mask { register: u32, mask: u32 },
    /// Matches if the register holds the value.
    Equal { register: u32, value: u32 },
    /// iptables' `-m mark --mark MARK/MASK`.
    MarkMatch { mark: u32, mask: u32 },
    /// iptables' `-m conntrack --ctstate STATES`.
    StateMatch { states: u16 },
    /// Ends the rule with one of `NF_ACCEPT`, `NF_DROP` and `NFT_RETURN`'s kin.
    Verdict(i32),
    /// Drops the packet and answers.
    Reject,
    /// Something else, which may match or not.
    Other,
}

/// Reads one entry of a rule's list of expressions.
pub(super) fn decode(entry: &[u8]) -> Expression {
    let Some((name, data)) = decode::expression(entry) else { return Expression::Other };
    let known = match name {
        "counter" | "last" | "log" => Some(Expression::Aside),
        "objref" => counter_object(data),
        "meta" => load_mark(data),
        "bitwise" => mask(data),
        "cmp" => equal(data),
        "immediate" => Verdict::from_immediate(data).map(|verdict| Expression::Verdict(verdict.code)),
        "reject" => Some(Expression::Reject),
        "match" => iptables_match(data),
        "target" => iptables_target(data),
        _ => None,
    };
    known.unwrap_or(Expression::Other)
}

/// A named counter; other objects, such as quotas, may end a rule.
fn counter_object(data: &[u8]) -> Option<Expression> {
    const NFTA_OBJREF_IMM_TYPE: u16 = 1;
    const NFT_OBJECT_COUNTER: u32 = 1;
    (number(data, NFTA_OBJREF_IMM_TYPE)? == NFT_OBJECT_COUNTER).then_some(Expression::Aside)
}

fn load_mark(data: &[u8]) -> Option<Expression> {
    const NFTA_META_DREG: u16 = 1;
    const NFTA_META_KEY: u16 = 2;
    const NFT_META_MARK: u32 = 3;
    let to = number(data, NFTA_META_DREG)?;
    (number(data, NFTA_META_KEY)? == NFT_META_MARK).then_some(Expression::LoadMark { to })
}

fn mask(data: &[u8]) -> Option<Expression> {
    const NFTA_BITWISE_SREG: u16 = 1;
    const NFTA_BITWISE_DREG: u16 = 2;
    const NFTA_BITWISE_MASK: u16 = 4;
    const NFTA_BITWISE_XOR: u16 = 5;
    let register = number(data, NFTA_BITWISE_SREG)?;
    let in_place = number(data, NFTA_BITWISE_DREG)? == register;
    // Shifts have neither mask nor xor.
    let mask = word(data, NFTA_BITWISE_MASK)?;
    (in_place && word(data, NFTA_BITWISE_XOR)? == 0).then_some(Expression::Mask { register, mask })
}

fn equal(data: &[u8]) -> Option<Expression> {
    const NFTA_CMP_SREG: u16 = 1;
    const NFTA_CMP_OP: u16 = 2;
    const NFTA_CMP_DATA: u16 = 3;
    const NFT_CMP_EQ: u32 = 0;
    let (register, value) = (number(data, NFTA_CMP_SREG)?, word(data, NFTA_CMP_DATA)?);
    (number(data, NFTA_CMP_OP)? == NFT_CMP_EQ).then_some(Expression::Equal { register, value })
}

fn iptables_match(data: &[u8]) -> Option<Expression> {
    let info = find(data, xt::INFO)?;
    match (find(data, xt::NAME)?.string().ok()?, number(data, xt::REVISION)?) {
        xt::MARK => xt::mark(info.payload).map(|(mark, mask)| Expression::MarkMatch { mark, mask }),
        xt::CONNTRACK => xt::states(info.payload).map(|states| Expression::StateMatch { states }),
        // struct xt_comment_info.
        ("comment", 0) => Some(Expression::Comment(info.string().unwrap_or_default().into())),
        _ => None,
    }
}

fn iptables_target(data: &[u8]) -> Option<Expression> {
    match find(data, xt::NAME)?.string().ok()? {
        "REJECT" => Some(Expression::Reject),
        "LOG" | "NFLOG" => Some(Expression::Aside),
        _ => None,
    }
}

/// A number of nf_tables' own.
fn number(bytes: &[u8], kind: u16) -> Option<u32> {
    find(bytes, kind)?.u32_be().ok()
}

/// Four bytes of a register, in the order of the host; nothing if there are fewer or more.
fn word(bytes: &[u8], kind: u16) -> Option<u32> {
    let value = find(find(bytes, kind)?.payload, NFTA_DATA_VALUE)?;
    value.payload.try_into().ok().map(u32::from_ne_bytes)
}
