//! Messages about any table, their attributes, and exchanges with the kernel
//! (include/uapi/linux/netfilter/nf_tables.h).

use ipvs::Family;
use netlink::{Attribute, Batch, Encoder, Errno, Error, Reply, Socket, attributes, find, if_exists};

/// `NFNL_SUBSYS_NFTABLES` in include/uapi/linux/netfilter/nfnetlink.h.
pub(crate) const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
/// `NFNL_BATCH_GENID`.
const BATCH_GENERATION: u16 = 1;

/// `NLM_F_CREATE`: without `NLM_F_EXCL`, creating what exists is not an error.
pub const CREATE: u16 = 0x400;
/// `NLM_F_APPEND`: a rule goes to the end of its chain.
pub(crate) const APPEND: u16 = 0x800;

// The numbers of attributes that several modules read or write.

/// The name of a table, in `enum nft_table_attributes`.
pub const NFTA_TABLE_NAME: u16 = 1;
/// The flags of a table.
pub const NFTA_TABLE_FLAGS: u16 = 2;
/// How many objects a table has (`use` in `struct nft_table`).
pub(crate) const NFTA_TABLE_USE: u16 = 3;

/// The table of a chain, in `enum nft_chain_attributes`.
pub const NFTA_CHAIN_TABLE: u16 = 1;
/// The name of a chain.
pub const NFTA_CHAIN_NAME: u16 = 3;

/// The table of a rule, in `enum nft_rule_attributes`.
pub const NFTA_RULE_TABLE: u16 = 1;
/// The chain of a rule.
pub const NFTA_RULE_CHAIN: u16 = 2;
/// The number by which the kernel knows a rule.
pub const NFTA_RULE_HANDLE: u16 = 3;
/// The expressions of a rule.
pub const NFTA_RULE_EXPRESSIONS: u16 = 4;
/// The user data of a rule, which the kernel stores unread.
pub const NFTA_RULE_USERDATA: u16 = 7;

/// One entry of any list (`NFTA_LIST_ELEM`).
pub const NFTA_LIST_ELEM: u16 = 1;
/// A value, in `enum nft_data_attributes`.
pub const NFTA_DATA_VALUE: u16 = 1;
/// A verdict.
pub const NFTA_DATA_VERDICT: u16 = 2;

/// `enum nf_tables_msg_types`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Message {
    /// Create a table, or report one.
    NewTable = 0,
    /// Ask for a table, or for all of them.
    GetTable = 1,
    /// Delete a table with everything in it.
    DelTable = 2,
    /// Create a chain, or report one.
    NewChain = 3,
    /// Ask for a chain, or for all of them.
    GetChain = 4,
    /// Delete a chain.
    DelChain = 5,
    /// Create a rule, or report one.
    NewRule = 6,
    /// Ask for rules.
    GetRule = 7,
    /// Delete a rule, or all of a chain or a table.
    DelRule = 8,
    /// Create a set, or report one.
    NewSet = 9,
    /// Ask for sets.
    GetSet = 10,
    /// Delete a set with its elements.
    DelSet = 11,
    /// Add elements to a set, or report them.
    NewSetElement = 12,
    /// Ask for the elements of a set.
    GetSetElement = 13,
    /// Delete elements of a set.
    DelSetElement = 14,
    /// Ask for the number of the last transaction.
    GetGeneration = 16,
    /// Create a stateful object, or report one.
    NewObject = 18,
    /// Ask for stateful objects.
    GetObject = 19,
    /// Ask for flowtables.
    GetFlowtable = 23,
}

/// The family of a table, as nfnetlink numbers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nfproto(pub u8);

impl Nfproto {
    /// In a request for a list: of every family.
    pub const UNSPECIFIED: Self = Self(0);
}

impl From<Family> for Nfproto {
    fn from(family: Family) -> Self {
        Self(protocol(family))
    }
}

/// Appends a message about an object of `family`.
pub fn add(
    batch: &mut Batch,
    message: Message,
    flags: u16,
    family: impl Into<Nfproto>,
    body: impl FnOnce(&mut Encoder<'_>),
) {
    batch.add(SUBSYSTEM << 8 | message as u16, flags, |encoder| {
        encoder.raw(&header(family.into(), 0));
        body(encoder);
    });
}

/// A batch with one request.
pub fn request(message: Message, family: impl Into<Nfproto>, body: impl FnOnce(&mut Encoder<'_>)) -> Batch {
    let mut batch = Batch::default();
    add(&mut batch, message, 0, family, body);
    batch
}

/// Opens a transaction. With a generation the kernel refuses it (ERESTART) if anybody has changed
/// nf_tables since that generation.
pub fn begin(batch: &mut Batch, generation: Option<u32>) {
    batch.add(BATCH_BEGIN, 0, |encoder| {
        encoder.raw(&header(Nfproto::UNSPECIFIED, SUBSYSTEM));
        if let Some(generation) = generation {
            encoder.u32_be(BATCH_GENERATION, generation);
        }
    });
}

/// Closes a transaction.
pub fn end(batch: &mut Batch) {
    batch.add(BATCH_END, 0, |encoder| encoder.raw(&header(Nfproto::UNSPECIFIED, SUBSYSTEM)));
}

/// The attributes of a reply, one after the other.
pub fn body<'a>(reply: &Reply<'a>) -> Result<impl Iterator<Item = Result<Attribute<'a>, Error>>, Error> {
    attributes_of(reply).map(attributes)
}

/// The bytes of a reply's attributes, behind its `struct nfgenmsg`.
pub fn attributes_of<'a>(reply: &Reply<'a>) -> Result<&'a [u8], Error> {
    reply.payload.get(4..).ok_or_else(|| Error::Malformed { what: "nfgenmsg cut short".into() })
}

/// The family of the object that a reply is about.
pub fn family(reply: &Reply<'_>) -> Nfproto {
    reply.payload.first().map_or(Nfproto::UNSPECIFIED, |number| Nfproto(*number))
}

/// `struct nfgenmsg`: family, version 0, resource in network order.
fn header(family: Nfproto, resource: u16) -> [u8; 4] {
    let [high, low] = resource.to_be_bytes();
    [family.0, 0, high, low]
}

/// `NFPROTO_IPV4`, `NFPROTO_IPV6`.
pub(crate) const fn protocol(family: Family) -> u8 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}

const NFTA_GEN_ID: u16 = 1;

/// The number of the last transaction in this network namespace, by anybody.
pub fn generation(socket: &mut Socket) -> Result<u32, Error> {
    let mut request = request(Message::GetGeneration, Family::V4, |_| {});
    let found = socket.get(&mut request, |reply| {
        find(attributes_of(reply)?, NFTA_GEN_ID).map(|generation| generation.u32_be()).transpose()
    })?;
    found.ok_or_else(|| Error::Malformed { what: "no generation in the answer of nf_tables".into() })
}

/// Whether a table of that name exists.
pub fn has_table(socket: &mut Socket, family: Family, name: &str) -> Result<bool, Error> {
    let mut request = request(Message::GetTable, family, |encoder| encoder.string(NFTA_TABLE_NAME, name));
    let found = socket.get(&mut request, |_| Ok(None::<()>));
    Ok(if_exists(found, &[Errno::ENOENT])?.is_some())
}

/// Appends the request that creates a table.
pub(crate) fn add_table(batch: &mut Batch, family: Family, name: &str, flags: u32) {
    add(batch, Message::NewTable, CREATE, family, |encoder| {
        encoder.string(NFTA_TABLE_NAME, name);
        encoder.u32_be(NFTA_TABLE_FLAGS, flags);
    });
}

/// Deletes a table with everything in it; returns whether it existed.
pub fn delete_table(socket: &mut Socket, family: Family, name: &str) -> Result<bool, Error> {
    let mut batch = Batch::default();
    begin(&mut batch, None);
    add(&mut batch, Message::DelTable, 0, family, |encoder| encoder.string(NFTA_TABLE_NAME, name));
    end(&mut batch);
    Ok(if_exists(socket.transact(&mut batch), &[Errno::ENOENT])?.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_names_nf_tables_as_its_resource_and_the_generation_it_builds_on() {
        let mut batch = Batch::default();
        begin(&mut batch, Some(7));
        end(&mut batch);
        let expected = [
            &28u32.to_ne_bytes()[..],
            &0x10u16.to_ne_bytes(),
            &1u16.to_ne_bytes(),
            &[0; 8],
            &[0, 0, 0, 10],
            &8u16.to_ne_bytes(),
            &1u16.to_ne_bytes(),
            &[0, 0, 0, 7],
            &20u32.to_ne_bytes(),
            &0x11u16.to_ne_bytes(),
            &1u16.to_ne_bytes(),
            &[0; 8],
            &[0, 0, 0, 10],
        ];
        assert_eq!(batch.as_bytes(), expected.concat());
    }

    #[test]
    fn a_message_carries_the_subsystem_and_the_family() {
        let batch = request(Message::GetRule, Family::V6, |_| {});
        let expected = [
            &20u32.to_ne_bytes()[..],
            &0x0a07u16.to_ne_bytes(),
            &1u16.to_ne_bytes(),
            &[0; 8],
            &[10, 0, 0, 0],
        ];
        assert_eq!(batch.as_bytes(), expected.concat());
    }
}
