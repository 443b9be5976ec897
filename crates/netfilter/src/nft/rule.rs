//! Rules, and how an installed rule is recognised as ours.

use std::fmt;

use ipvs::Family;
use netlink::{Batch, Encoder, Error, Reply};

use super::{
    TABLE,
    message::{self, APPEND, CREATE, Message},
    statement::Statement,
};

/// `enum nft_rule_attributes`.
pub(crate) const NFTA_RULE_TABLE: u16 = 1;
pub(crate) const NFTA_RULE_CHAIN: u16 = 2;
pub(crate) const NFTA_RULE_HANDLE: u16 = 3;
pub(crate) const NFTA_RULE_EXPRESSIONS: u16 = 4;
pub(crate) const NFTA_RULE_USERDATA: u16 = 7;

/// `NFTNL_UDATA_RULE_COMMENT`: the type of a comment in a rule's user data, which the kernel stores unread,
/// as bytes of type, length, and text with its NUL.
const UDATA_COMMENT: u8 = 0;

/// A rule: what it does, and why in a few words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) about: &'static str,
    pub(crate) statements: Vec<Statement>,
}

/// A rule of our table as the kernel shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedRule {
    pub(crate) chain: Box<str>,
    /// Empty if it has none.
    pub(crate) comment: Box<str>,
}

impl Rule {
    pub(crate) fn new(about: &'static str, statements: impl Into<Vec<Statement>>) -> Self {
        Self { about, statements: statements.into() }
    }

    /// Whether it depends on a set.
    pub(crate) fn looks_into(&self, set: &str) -> bool {
        self.statements
            .iter()
            .any(|statement| matches!(statement, Statement::InSet { set: s, .. } if *s == set))
    }

    /// Whether it keeps flows from the destination NAT of others.
    pub(crate) fn keeps_destination(&self) -> bool {
        self.statements.contains(&Statement::KeepDestination)
    }

    /// The comment that it is installed with: its purpose, and a fingerprint of its instructions.
    ///
    /// The kernel may reorder and rewrite expressions when it dumps them. Comparing comments distinguishes
    /// exactly our rules from others without reading expressions back; an upgrade that changes what a rule
    /// does changes its comment.
    pub(crate) fn comment(&self, family: Family) -> String {
        let mut batch = Batch::default();
        batch.add(0, 0, |encoder| self.encode_expressions(family, encoder));
        format!("{} #{:08x}", self.about, fnv1a(batch.as_bytes()))
    }

    /// Appends the request that adds it to the end of its chain.
    pub(crate) fn add_to(&self, batch: &mut Batch, family: Family, chain: &str) {
        message::add(batch, Message::NewRule, CREATE | APPEND, family, |encoder| {
            encoder.string(NFTA_RULE_TABLE, TABLE);
            encoder.string(NFTA_RULE_CHAIN, chain);
            self.encode_expressions(family, encoder);
            encoder.bytes(NFTA_RULE_USERDATA, &comment_userdata(&self.comment(family)));
        });
    }

    /// Writes it as nft lists it.
    pub(crate) fn write(&self, family: Family, f: &mut impl fmt::Write) -> fmt::Result {
        for statement in &self.statements {
            statement.write(family, f)?;
            f.write_char(' ')?;
        }
        write!(f, "comment \"{}\"", self.comment(family))
    }

    fn encode_expressions(&self, family: Family, encoder: &mut Encoder<'_>) {
        encoder.nest(NFTA_RULE_EXPRESSIONS, |list| {
            for expression in self.statements.iter().flat_map(|statement| statement.expressions(family)) {
                expression.encode(list);
            }
        });
    }
}

/// Appends the request that removes every rule of our table.
pub(crate) fn flush(batch: &mut Batch, family: Family) {
    message::add(batch, Message::DelRule, 0, family, |encoder| encoder.string(NFTA_RULE_TABLE, TABLE));
}

/// The request for the rules of our table.
pub(crate) fn list(family: Family) -> Batch {
    message::request(Message::GetRule, family, |encoder| encoder.string(NFTA_RULE_TABLE, TABLE))
}

/// Reads one rule; `None` for another table's.
pub(crate) fn decode(reply: &Reply<'_>) -> Result<Option<ObservedRule>, Error> {
    let (mut table, mut chain, mut comment) = ("", "", "");
    for attribute in message::body(reply)? {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_RULE_TABLE => table = attribute.string()?,
            NFTA_RULE_CHAIN => chain = attribute.string()?,
            NFTA_RULE_USERDATA => comment = comment_in(attribute.payload),
            _ => {}
        }
    }
    Ok((table == TABLE).then(|| ObservedRule { chain: chain.into(), comment: comment.into() }))
}

pub(crate) fn comment_userdata(comment: &str) -> Vec<u8> {
    let length = u8::try_from(comment.len() + 1).unwrap_or(u8::MAX);
    let mut data = vec![UDATA_COMMENT, length];
    data.extend_from_slice(comment.as_bytes());
    data.push(0);
    data
}

/// The comment in a rule's user data; empty if there is none, or if the data has another format.
pub(crate) fn comment_in(mut data: &[u8]) -> &str {
    while let [kind, length, rest @ ..] = data {
        let Some((value, next)) = rest.split_at_checked(usize::from(*length)) else { break };
        if *kind == UDATA_COMMENT {
            let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
            return std::str::from_utf8(text).unwrap_or_default();
        }
        data = next;
    }
    ""
}

/// FNV-1a, 32 bits: the same on every build, unlike the standard hasher.
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(bit: u32) -> Rule {
        Rule::new("a reason", [Statement::HasMark(bit), Statement::Return])
    }

    #[test]
    fn the_comment_is_read_back_from_the_user_data() {
        let data = comment_userdata("hello");
        assert_eq!(data, b"\0\x06hello\0");
        assert_eq!(comment_in(&data), "hello");
        let behind_another = [&[9, 2, 0, 0][..], &data].concat();
        assert_eq!(comment_in(&behind_another), "hello");
    }

    #[test]
    fn user_data_of_another_format_is_no_comment() {
        for data in [&b"\0"[..], b"\0\x09cut", b"\x07\0", b"\0\x02\xff\xff"] {
            assert_eq!(comment_in(data), "", "{data:?}");
        }
    }

    #[test]
    fn rules_that_differ_in_one_bit_have_different_comments() {
        assert_ne!(rule(0x4000).comment(Family::V4), rule(0x8000).comment(Family::V4));
        assert_eq!(rule(0x4000).comment(Family::V4), rule(0x4000).comment(Family::V4));
    }

    #[test]
    fn fnv1a_gives_the_published_values() {
        assert_eq!(fnv1a(b""), 0x811c_9dc5);
        assert_eq!(fnv1a(b"foobar"), 0xbf9c_f968);
    }
}
