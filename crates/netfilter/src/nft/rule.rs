//! Rules, and how an installed rule is recognised as ours.

use ipvs::Family;
use netlink::{Batch, Encoder, Error, Reply};

use super::{
    TABLE,
    message::{
        self, APPEND, CREATE, Message, NFTA_RULE_CHAIN, NFTA_RULE_EXPRESSIONS, NFTA_RULE_HANDLE,
        NFTA_RULE_TABLE, NFTA_RULE_USERDATA, Nfproto,
    },
    parts::{self, decode_comment, encode_comment},
    statement::Statement,
};

/// A rule: its statements, and its purpose in a few words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) about: &'static str,
    pub(crate) statements: Vec<Statement>,
}

/// A rule of our table as the kernel shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObservedRule {
    pub(crate) chain: Box<str>,
    /// Empty if it has none.
    pub(crate) comment: Box<str>,
    /// Whether it fixes the destination of connections, whichever version of ours wrote it.
    pub(crate) keeps_destination: bool,
}

/// A rule of any table as the kernel shows it. A name that is not UTF-8, which the kernel allows and nft does not, is
/// empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListedRule<'a> {
    /// The family of its table.
    pub family: Nfproto,
    /// The name of its table.
    pub table: &'a str,
    /// The name of its chain.
    pub chain: &'a str,
    /// The number by which the kernel knows it.
    pub handle: u64,
    /// Empty if it has none.
    pub comment: &'a str,
    /// The list of its expressions, for [`parts::entries`].
    pub expressions: &'a [u8],
}

impl Rule {
    pub(crate) fn new(about: &'static str, statements: impl Into<Vec<Statement>>) -> Self {
        Self { about, statements: statements.into() }
    }

    /// Whether it depends on a set.
    pub(crate) fn uses_set(&self, set: &str) -> bool {
        self.statements
            .iter()
            .any(|statement| matches!(statement, Statement::InSet { set: s, .. } if *s == set))
    }

    /// Ends here without a decision where it kept flows from the destination NAT of others.
    pub(crate) fn leave_destination_to_others(&mut self) {
        for statement in self.statements.iter_mut().filter(|it| **it == Statement::DnatToDaddr) {
            *statement = Statement::Return;
        }
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
    pub(crate) fn add_to(&self, batch: &mut Batch, family: Family, table: &str, chain: &str) {
        message::add(batch, Message::NewRule, CREATE | APPEND, family, |encoder| {
            name(encoder, table, Some(chain));
            self.encode_expressions(family, encoder);
            encoder.bytes(NFTA_RULE_USERDATA, &encode_comment(&self.comment(family)));
        });
    }

    fn encode_expressions(&self, family: Family, encoder: &mut Encoder<'_>) {
        encoder.nest(NFTA_RULE_EXPRESSIONS, |list| {
            self.statements.iter().for_each(|statement| statement.encode(family, list));
        });
    }
}

/// Appends the request that removes the rules of a table, those of one chain of it, or the one with this handle in that
/// chain.
pub fn delete(
    batch: &mut Batch,
    family: impl Into<Nfproto>,
    table: &str,
    chain: Option<&str>,
    handle: Option<u64>,
) {
    message::add(batch, Message::DelRule, 0, family, |encoder| {
        name(encoder, table, chain);
        if let Some(handle) = handle {
            encoder.bytes(NFTA_RULE_HANDLE, &handle.to_be_bytes());
        }
    });
}

/// The request for the rules of a table, or of one chain of it. Old kernels send those of all tables.
pub fn list(family: impl Into<Nfproto>, table: &str, chain: Option<&str>) -> Batch {
    message::request(Message::GetRule, family, |encoder| name(encoder, table, chain))
}

fn name(encoder: &mut Encoder<'_>, table: &str, chain: Option<&str>) {
    encoder.string(NFTA_RULE_TABLE, table);
    if let Some(chain) = chain {
        encoder.string(NFTA_RULE_CHAIN, chain);
    }
}

impl<'a> ListedRule<'a> {
    /// Reads one rule.
    pub fn decode(reply: &Reply<'a>) -> Result<Self, Error> {
        let mut rule = Self { family: message::family(reply), ..Self::default() };
        for attribute in message::body(reply)? {
            let attribute = attribute?;
            match attribute.kind {
                NFTA_RULE_TABLE => rule.table = attribute.string().unwrap_or_default(),
                NFTA_RULE_CHAIN => rule.chain = attribute.string().unwrap_or_default(),
                NFTA_RULE_HANDLE => rule.handle = attribute.array().map(u64::from_be_bytes)?,
                NFTA_RULE_USERDATA => rule.comment = decode_comment(attribute.payload),
                NFTA_RULE_EXPRESSIONS => rule.expressions = attribute.payload,
                _ => {}
            }
        }
        Ok(rule)
    }

    /// Whether it is in this chain.
    pub fn is_in(&self, family: impl Into<Nfproto>, table: &str, chain: &str) -> bool {
        (self.family, self.table, self.chain) == (family.into(), table, chain)
    }
}

/// Reads one rule; `None` for another table's.
pub(crate) fn decode(reply: &Reply<'_>) -> Result<Option<ObservedRule>, Error> {
    let rule = ListedRule::decode(reply)?;
    Ok((rule.table == TABLE).then(|| ObservedRule {
        chain: rule.chain.into(),
        comment: rule.comment.into(),
        keeps_destination: parts::keeps_destination(rule.expressions),
    }))
}

/// FNV-1a, 32 bits: the same on every build, unlike the standard hasher.
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            expression::{List, Register},
            statement::Field,
        },
        *,
    };

    fn rule(bit: u32) -> Rule {
        Rule::new("a reason", [Statement::HasMark(bit), Statement::Return])
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

    fn keeps_destination(expressions: impl FnOnce(&mut Encoder<'_>)) -> bool {
        let rule = message::request(Message::NewRule, Family::V6, |encoder| {
            encoder.string(NFTA_RULE_TABLE, TABLE);
            encoder.nest(NFTA_RULE_EXPRESSIONS, expressions);
        });
        let payload = &rule.as_bytes()[16..];
        decode(&Reply { payload, ..Reply::default() }).unwrap().unwrap().keeps_destination
    }

    #[test]
    fn a_rule_that_keeps_the_destination_is_recognised_by_its_instructions() {
        let [kept, replaced, left] = [
            Statement::DnatToDaddr,
            Statement::DnatTo { fields: &[Field::Daddr], map: "m" },
            Statement::Masquerade { fully_random: true },
        ]
        .map(|statement| keeps_destination(|list| statement.encode(Family::V6, list)));
        assert_eq!((kept, replaced, left), (true, false, false));
    }

    #[test]
    fn a_foreign_rule_that_replaces_the_destination_does_not_keep_it() {
        let to_another_address = keeps_destination(|list| {
            Statement::Daddr("fd00::1/128".parse().unwrap()).encode(Family::V6, list);
            let mut list = List(list);
            list.immediate(&[0xfd; 16], Register(0));
            list.destination_nat(Family::V6, Register(0), None);
        });
        assert!(!to_another_address);
    }
}
