//! What a rule of a host's chain does, as far as its own expressions show.

use netlink::{Batch, Error, Reply, attributes};

use super::{
    chain::HostChain,
    expression::{self, Expression},
    wanted::Accepted,
    xt,
};
use netfilter::nft::{
    decode,
    message::{
        self, Message, NFTA_LIST_ELEM, NFTA_RULE_CHAIN, NFTA_RULE_EXPRESSIONS, NFTA_RULE_HANDLE,
        NFTA_RULE_TABLE, NFTA_RULE_USERDATA, Nfproto,
    },
};

const NF_DROP: i32 = 0;
const NF_ACCEPT: i32 = 1;
const NFT_GOTO: i32 = -4;
const NFT_RETURN: i32 = -5;

/// One rule, in the order of its chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// The number by which the kernel knows it.
    pub(super) handle: u64,
    /// Empty if it has none.
    pub(super) comment: Box<str>,
    pub(super) effect: Effect,
}

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// No packet that reaches it goes on to the next rule.
    Ends(End),
    /// It accepts these packets; others go on to the next rule.
    Accepts(Accepted),
    /// Something else: other packets go on, or all of them.
    Other,
}

/// The end of the packets that reach a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Accept,
    /// Also with an answer to the sender.
    Drop,
    /// What the chain's policy says: in a base chain `return` leads there. So does `goto`, unless the other
    /// chain decides otherwise, which is not read.
    Policy,
}

/// The request for the rules of one chain.
pub(super) fn list(chain: &HostChain) -> Batch {
    message::request(Message::GetRule, chain.family, |encoder| {
        encoder.string(NFTA_RULE_TABLE, &chain.table);
        encoder.string(NFTA_RULE_CHAIN, &chain.name);
    })
}

/// Reads one rule; `None` for another chain's.
pub(super) fn decode(reply: &Reply<'_>, of: &HostChain) -> Result<Option<Rule>, Error> {
    let (mut table, mut chain, mut handle, mut comment) = (&[][..], &[][..], 0, "");
    let mut expressions = Vec::new();
    for attribute in message::body(reply)? {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_RULE_TABLE => table = attribute.payload,
            NFTA_RULE_CHAIN => chain = attribute.payload,
            NFTA_RULE_HANDLE => handle = attribute.array().map(u64::from_be_bytes)?,
            NFTA_RULE_USERDATA => comment = decode::comment(attribute.payload),
            NFTA_RULE_EXPRESSIONS => expressions = decode_list(attribute.payload)?,
            _ => {}
        }
    }
    let named = |bytes: &[u8], name: &str| bytes.strip_suffix(b"\0") == Some(name.as_bytes());
    if message::family(reply) != Nfproto::from(of.family)
        || !named(table, &of.table)
        || !named(chain, &of.name)
    {
        return Ok(None);
    }
    let of_iptables = expressions.iter().find_map(|expression| match expression {
        Expression::Comment(text) => Some(text.clone()),
        _ => None,
    });
    let comment = of_iptables.unwrap_or_else(|| comment.into());
    Ok(Some(Rule { handle, comment, effect: Effect::from_expressions(&expressions) }))
}

fn decode_list(bytes: &[u8]) -> Result<Vec<Expression>, Error> {
    let mut expressions = Vec::new();
    for entry in attributes(bytes) {
        let entry = entry?;
        if entry.kind == NFTA_LIST_ELEM {
            expressions.push(expression::decode(entry.payload));
        }
    }
    Ok(expressions)
}

impl Effect {
    fn from_expressions(expressions: &[Expression]) -> Self {
        use Expression::{Aside, Comment, Equal, LoadMark, MarkMatch, Mask, Reject, StateMatch, Verdict};
        let deciding: Vec<_> = expressions.iter().filter(|one| !matches!(one, Aside | Comment(_))).collect();
        match *deciding {
            [Reject | Verdict(NF_DROP)] => Self::Ends(End::Drop),
            [Verdict(NF_ACCEPT)] => Self::Ends(End::Accept),
            [Verdict(NFT_GOTO | NFT_RETURN)] => Self::Ends(End::Policy),
            [
                LoadMark { to },
                Mask { register, mask },
                Equal { register: compared, value },
                Verdict(NF_ACCEPT),
            ] if to == register && to == compared && mask == value => Self::Accepts(Accepted::Marked(*mask)),
            [MarkMatch { mark, mask }, Verdict(NF_ACCEPT)] if mark == mask => {
                Self::Accepts(Accepted::Marked(*mask))
            }
            [StateMatch { states: xt::ESTABLISHED_OR_RELATED }, Verdict(NF_ACCEPT)] => {
                Self::Accepts(Accepted::Known)
            }
            _ => Self::Other,
        }
    }
}
