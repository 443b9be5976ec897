//! The chains and rules that a traced packet passes, of any table.

use netlink::{Error as NetlinkError, Reply};

use crate::{
    Error,
    nft::{
        chain::ListedChain,
        message::{
            self, Message, NFTA_RULE_CHAIN, NFTA_RULE_HANDLE, NFTA_RULE_TABLE, NFTA_RULE_USERDATA, Nfproto,
        },
        parts::decode_comment,
    },
    table::open_socket,
};

/// A rule that a step is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RuleId {
    /// The family of its table, as nfnetlink numbers it.
    pub family: u8,
    /// The name of its table.
    pub table: Box<str>,
    /// The name of its chain.
    pub chain: Box<str>,
    /// Its handle.
    pub handle: u64,
}

/// What the kernel shows of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstalledRule {
    /// Its place in its chain, from 1, as in `iptables -S CHAIN NUMBER`.
    pub number: usize,
    /// Its comment; empty if it has none.
    pub comment: Box<str>,
}

/// Lists the chains of all tables, in the kernel's order.
pub fn chains() -> Result<Vec<ListedChain>, Error> {
    let mut request = message::request(Message::GetChain, Nfproto::UNSPECIFIED, |_| {});
    open_socket()?
        .dump(&mut request, |reply| ListedChain::decode(reply).map(Some))
        .map_err(|source| Error::new("list the chains of nf_tables", source))
}

/// Reads the number and the comment of a rule; `None` if it is gone.
pub fn installed_rule(id: &RuleId) -> Result<Option<InstalledRule>, Error> {
    let mut request = message::request(Message::GetRule, Nfproto(id.family), |encoder| {
        encoder.string(NFTA_RULE_TABLE, &id.table);
        encoder.string(NFTA_RULE_CHAIN, &id.chain);
    });
    // Kernels before 4.20 send the rules of all chains.
    let rules = open_socket()?
        .dump(&mut request, |reply| decode_rule(reply, id))
        .map_err(|source| Error::new("list the rules of a chain", source))?;
    let with_number = (1..).zip(rules);
    let found = with_number.into_iter().find(|(_, (handle, _))| *handle == id.handle);
    Ok(found.map(|(number, (_, comment))| InstalledRule { number, comment }))
}

/// The handle and the comment of a rule; `None` if it belongs to another chain.
fn decode_rule(reply: &Reply<'_>, id: &RuleId) -> Result<Option<(u64, Box<str>)>, NetlinkError> {
    let (mut table, mut chain, mut handle, mut comment) = ("", "", 0, "");
    for attribute in message::body(reply)? {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_RULE_TABLE => table = attribute.string().unwrap_or_default(),
            NFTA_RULE_CHAIN => chain = attribute.string().unwrap_or_default(),
            NFTA_RULE_HANDLE => handle = u64::from_be_bytes(attribute.array()?),
            NFTA_RULE_USERDATA => comment = decode_comment(attribute.payload),
            _ => {}
        }
    }
    Ok((*table == *id.table && *chain == *id.chain).then(|| (handle, comment.into())))
}
