//! The effect of a rule of a host's chain, as far as its own expressions show.

use netlink::{Batch, Error, Reply, find};

use super::{chain::HostChain, our_rules::Accepted, xt};
use netfilter::nft::{
    message::NFTA_DATA_VALUE,
    parts::{Verdict, decode_expression, entries},
    rule::{self, ListedRule},
};

/// One rule, in the order of its chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// The number by which the kernel knows it.
    pub(super) handle: u64,
    /// Empty if it has none.
    pub(super) comment: Box<str>,
    pub(super) effect: Effect,
}

/// The effect of a rule.
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
    rule::list(chain.family, &chain.table, Some(&chain.name))
}

/// Reads one rule; `None` for another chain's.
pub(super) fn decode(reply: &Reply<'_>, of: &HostChain) -> Result<Option<Rule>, Error> {
    let listed = ListedRule::decode(reply)?;
    if !listed.is_in(of.family, &of.table, &of.name) {
        return Ok(None);
    }
    let mut expressions = Vec::new();
    for entry in entries(listed.expressions) {
        expressions.push(Expression::decode(entry?).unwrap_or(Expression::Other));
    }
    let of_iptables = expressions.iter().find_map(|expression| match expression {
        Expression::Comment(text) => Some(*text),
        _ => None,
    });
    let comment = of_iptables.unwrap_or(listed.comment).into();
    Ok(Some(Rule { handle: listed.handle, comment, effect: Effect::from_expressions(&expressions) }))
}

impl Effect {
    fn from_expressions(expressions: &[Expression<'_>]) -> Self {
        use Expression::{Aside, Comment, Decision, Equal, LoadMark, MarkMatch, Mask, Reject, StateMatch};
        let deciding: Vec<_> = expressions.iter().filter(|one| !matches!(one, Aside | Comment(_))).collect();
        match *deciding {
            [Reject | Decision(Verdict::Drop)] => Self::Ends(End::Drop),
            [Decision(Verdict::Accept)] => Self::Ends(End::Accept),
            [Decision(Verdict::Goto(_) | Verdict::Return)] => Self::Ends(End::Policy),
            [
                LoadMark { to },
                Mask { register, mask },
                Equal { register: compared, value },
                Decision(Verdict::Accept),
            ] if to == register && to == compared && mask == value => Self::Accepts(Accepted::Marked(*mask)),
            [MarkMatch { mark, mask }, Decision(Verdict::Accept)] if mark == mask => {
                Self::Accepts(Accepted::Marked(*mask))
            }
            [StateMatch { states: xt::ESTABLISHED_OR_RELATED }, Decision(Verdict::Accept)] => {
                Self::Accepts(Accepted::Known)
            }
            _ => Self::Other,
        }
    }
}

/// The part of an expression, of any program, that shows whether a rule ends its chain, and whether it
/// accepts what rules of ours do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expression<'a> {
    /// Decides nothing: it counts, or writes into the log.
    Aside,
    /// A comment as iptables makes it. Decides nothing.
    Comment(&'a str),
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
    /// Ends the rule with a verdict.
    Decision(Verdict<'a>),
    /// Drops the packet and answers.
    Reject,
    /// Something else, which may match or not.
    Other,
}

impl<'a> Expression<'a> {
    /// Reads one entry of a rule's list of expressions; `None` for those that do not matter here.
    fn decode(entry: &'a [u8]) -> Option<Self> {
        let (name, data) = decode_expression(entry)?;
        match name {
            "counter" | "last" | "log" => Some(Self::Aside),
            "objref" => counter_object(data),
            "meta" => load_mark(data),
            "bitwise" => mask(data),
            "cmp" => equal(data),
            "immediate" => Verdict::from_immediate(data).map(Self::Decision),
            "reject" => Some(Self::Reject),
            "match" => iptables_match(data),
            "target" => iptables_target(data),
            _ => None,
        }
    }
}

/// A named counter; other objects, such as quotas, may end a rule.
fn counter_object(data: &[u8]) -> Option<Expression<'_>> {
    const NFTA_OBJREF_IMM_TYPE: u16 = 1;
    const NFT_OBJECT_COUNTER: u32 = 1;
    (number(data, NFTA_OBJREF_IMM_TYPE)? == NFT_OBJECT_COUNTER).then_some(Expression::Aside)
}

fn load_mark(data: &[u8]) -> Option<Expression<'_>> {
    const NFTA_META_DREG: u16 = 1;
    const NFTA_META_KEY: u16 = 2;
    const NFT_META_MARK: u32 = 3;
    let to = number(data, NFTA_META_DREG)?;
    (number(data, NFTA_META_KEY)? == NFT_META_MARK).then_some(Expression::LoadMark { to })
}

fn mask(data: &[u8]) -> Option<Expression<'_>> {
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

fn equal(data: &[u8]) -> Option<Expression<'_>> {
    const NFTA_CMP_SREG: u16 = 1;
    const NFTA_CMP_OP: u16 = 2;
    const NFTA_CMP_DATA: u16 = 3;
    const NFT_CMP_EQ: u32 = 0;
    let (register, value) = (number(data, NFTA_CMP_SREG)?, word(data, NFTA_CMP_DATA)?);
    (number(data, NFTA_CMP_OP)? == NFT_CMP_EQ).then_some(Expression::Equal { register, value })
}

fn iptables_match(data: &[u8]) -> Option<Expression<'_>> {
    let info = find(data, xt::INFO)?;
    match (find(data, xt::NAME)?.string().ok()?, number(data, xt::REVISION)?) {
        xt::MARK => xt::mark(info.payload).map(|(mark, mask)| Expression::MarkMatch { mark, mask }),
        xt::CONNTRACK => xt::states(info.payload).map(|states| Expression::StateMatch { states }),
        // struct xt_comment_info.
        ("comment", 0) => Some(Expression::Comment(info.string().unwrap_or_default())),
        _ => None,
    }
}

fn iptables_target(data: &[u8]) -> Option<Expression<'_>> {
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
