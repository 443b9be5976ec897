//! Sets and maps, most with concatenations for keys, such as `ipv4_addr . inet_proto . inet_service`.

use ipvs::Family;
use netlink::{Batch, Encoder, Error, Reply, find};

use super::{
    TABLE,
    message::{self, CREATE, Message, NFTA_LIST_ELEM},
};

/// `enum nft_set_attributes`.
const NFTA_SET_TABLE: u16 = 1;
const NFTA_SET_NAME: u16 = 2;
const NFTA_SET_FLAGS: u16 = 3;
const NFTA_SET_KEY_TYPE: u16 = 4;
const NFTA_SET_KEY_LEN: u16 = 5;
const NFTA_SET_DATA_TYPE: u16 = 6;
const NFTA_SET_DATA_LEN: u16 = 7;
const NFTA_SET_DESC: u16 = 9;
const NFTA_SET_ID: u16 = 10;
const NFTA_SET_TIMEOUT: u16 = 11;
/// `enum nft_set_desc_attributes` and `enum nft_set_field_attributes`.
const NFTA_SET_DESC_SIZE: u16 = 1;
const NFTA_SET_DESC_CONCAT: u16 = 2;
const NFTA_SET_FIELD_LEN: u16 = 1;

const NFT_SET_INTERVAL: u32 = 0x4;
const NFT_SET_MAP: u32 = 0x8;
const NFT_SET_TIMEOUT: u32 = 0x10;
/// Rules may add elements.
const NFT_SET_EVAL: u32 = 0x20;
/// Exists since Linux 5.6, like the interval sets that need it (`nft_set_pipapo.c`).
const NFT_SET_CONCAT: u32 = 0x80;

/// A part of a set's key, or of a map's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Datatype {
    Address,
    /// The last four bytes of an address, which nft shows as an IPv4 address.
    AddressEnd,
    Protocol,
    Port,
}

/// A set, or a map.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Set {
    pub(crate) name: &'static str,
    pub(crate) key: &'static [Datatype],
    /// The fields of a map's value for each key; empty in a set.
    pub(crate) value: &'static [Datatype],
    /// Whether an element can be an interval. The key is a concatenation then.
    pub(crate) intervals: bool,
    /// Set if rules add the elements.
    pub(crate) recent: Option<Recent>,
}

/// How long elements stay that rules add, and how many there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recent {
    pub(crate) seconds: u32,
    pub(crate) size: u32,
}

/// A set of our table as the kernel shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObservedSet {
    pub(crate) name: Box<str>,
    /// Among them whether its elements can time out.
    flags: u32,
    key_type: u32,
    key_length: u32,
    value_type: u32,
    value_length: u32,
    /// How many elements there may be; 0 is any number.
    size: u32,
}

impl Datatype {
    /// nft's number of the type (`enum datatypes` in its include/datatype.h). The kernel stores it
    /// unread; `nft list` aborts over a wrong one.
    const fn number(self, family: Family) -> u32 {
        match (self, family) {
            (Self::Address, Family::V4) | (Self::AddressEnd, _) => 7,
            (Self::Address, Family::V6) => 8,
            (Self::Protocol, _) => 12,
            (Self::Port, _) => 13,
        }
    }

    /// How many bytes it takes among these: each is padded to four, except a single one.
    pub(super) const fn length_among(self, types: &[Self], family: Family) -> u32 {
        let length = self.unpadded(family);
        if types.len() == 1 { length } else { length.next_multiple_of(4) }
    }

    pub(super) const fn unpadded(self, family: Family) -> u32 {
        match self {
            Self::Address => family.address_bits() as u32 / 8,
            Self::AddressEnd => 4,
            Self::Protocol => 1,
            Self::Port => 2,
        }
    }
}

impl Set {
    /// What nft calls it.
    pub(crate) const fn kind(&self) -> &'static str {
        if self.is_map() { "map" } else { "set" }
    }

    pub(super) const fn is_map(&self) -> bool {
        !self.value.is_empty()
    }

    /// Whether the kernel's set is this one, elements aside.
    pub(crate) fn is(&self, family: Family, observed: &ObservedSet) -> bool {
        self.observed(family) == *observed
    }

    /// The set as the kernel shows it.
    pub(crate) fn observed(&self, family: Family) -> ObservedSet {
        ObservedSet {
            name: self.name.into(),
            flags: self.flags(),
            key_type: type_number(self.key, family),
            key_length: length(self.key, family),
            value_type: type_number(self.value, family),
            value_length: length(self.value, family),
            size: self.recent.map_or(0, |recent| recent.size),
        }
    }

    /// Appends the request that creates it. `id` distinguishes the sets of one transaction.
    pub(crate) fn add_to(&self, batch: &mut Batch, family: Family, table: &str, id: u32) {
        message::add(batch, Message::NewSet, CREATE, family, |encoder| {
            encoder.string(NFTA_SET_TABLE, table);
            encoder.string(NFTA_SET_NAME, self.name);
            encoder.u32_be(NFTA_SET_FLAGS, self.flags());
            encoder.u32_be(NFTA_SET_KEY_TYPE, type_number(self.key, family));
            encoder.u32_be(NFTA_SET_KEY_LEN, length(self.key, family));
            if self.is_map() {
                encoder.u32_be(NFTA_SET_DATA_TYPE, type_number(self.value, family));
                encoder.u32_be(NFTA_SET_DATA_LEN, length(self.value, family));
            }
            encoder.u32_be(NFTA_SET_ID, id);
            if self.intervals {
                encoder.nest(NFTA_SET_DESC, |description| self.describe_fields(family, description));
            }
            if let Some(Recent { seconds, size }) = self.recent {
                encoder.nest(NFTA_SET_DESC, |description| description.u32_be(NFTA_SET_DESC_SIZE, size));
                encoder.u64_be(NFTA_SET_TIMEOUT, u64::from(seconds) * 1000);
            }
        });
    }

    /// The kernel finds a packet in intervals field by field.
    fn describe_fields(&self, family: Family, description: &mut Encoder<'_>) {
        description.nest(NFTA_SET_DESC_CONCAT, |fields| {
            for datatype in self.key {
                fields.nest(NFTA_LIST_ELEM, |field| {
                    field.u32_be(NFTA_SET_FIELD_LEN, datatype.unpadded(family));
                });
            }
        });
    }

    const fn flags(&self) -> u32 {
        let intervals = if self.intervals { NFT_SET_INTERVAL | NFT_SET_CONCAT } else { 0 };
        let map = if self.is_map() { NFT_SET_MAP } else { 0 };
        let recent = if self.recent.is_some() { NFT_SET_TIMEOUT | NFT_SET_EVAL } else { 0 };
        intervals | map | recent
    }
}

/// A concatenation's type is its parts' types, six bits each (nft's `concat_subtype_add`).
fn type_number(types: &[Datatype], family: Family) -> u32 {
    types.iter().fold(0, |number, datatype| number << 6 | datatype.number(family))
}

/// How many bytes a concatenation takes.
fn length(types: &[Datatype], family: Family) -> u32 {
    types.iter().map(|datatype| datatype.length_among(types, family)).sum()
}

/// Appends the request that deletes a set, which no rule may use.
pub(crate) fn delete(batch: &mut Batch, family: Family, name: &str) {
    message::add(batch, Message::DelSet, 0, family, |encoder| {
        encoder.string(NFTA_SET_TABLE, TABLE);
        encoder.string(NFTA_SET_NAME, name);
    });
}

/// The request for the sets of our table.
pub(crate) fn list(family: Family) -> Batch {
    message::request(Message::GetSet, family, |encoder| encoder.string(NFTA_SET_TABLE, TABLE))
}

/// Reads one set; `None` for another table's.
pub(crate) fn decode(reply: &Reply<'_>) -> Result<Option<ObservedSet>, Error> {
    let mut set = ObservedSet::default();
    let mut table = "";
    for attribute in message::body(reply)? {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_SET_TABLE => table = attribute.string()?,
            NFTA_SET_NAME => set.name = attribute.string()?.into(),
            NFTA_SET_FLAGS => set.flags = attribute.u32_be()?,
            NFTA_SET_KEY_TYPE => set.key_type = attribute.u32_be()?,
            NFTA_SET_KEY_LEN => set.key_length = attribute.u32_be()?,
            NFTA_SET_DATA_TYPE => set.value_type = attribute.u32_be()?,
            NFTA_SET_DATA_LEN => set.value_length = attribute.u32_be()?,
            NFTA_SET_DESC => {
                set.size = find(attribute.payload, NFTA_SET_DESC_SIZE).map_or(Ok(0), |size| size.u32_be())?;
            }
            _ => {}
        }
    }
    Ok((table == TABLE).then_some(set))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: Set = Set {
        name: "s",
        key: &[Datatype::Address, Datatype::Protocol, Datatype::Port],
        value: &[],
        intervals: false,
        recent: None,
    };
    const INTERVALS: Set = Set { intervals: true, ..SET };
    const MAP: Set = Set { value: &[Datatype::Address, Datatype::Port], ..SET };

    fn reply(batch: &Batch) -> Reply<'_> {
        Reply { payload: &batch.as_bytes()[16..], ..Reply::default() }
    }

    #[test]
    fn a_set_is_read_back_as_it_was_written() {
        for family in Family::BOTH {
            for (set, other) in [(SET, INTERVALS), (INTERVALS, SET), (MAP, SET)] {
                let mut batch = Batch::default();
                set.add_to(&mut batch, family, TABLE, 1);
                let observed = decode(&reply(&batch)).unwrap().unwrap();
                assert!(set.is(family, &observed) && !other.is(family, &observed), "{observed:?}");
            }
        }
    }

    #[test]
    fn a_concatenation_has_the_type_number_that_nft_gives_it() {
        // As nft 1.0.6 sends it for ipv4_addr . inet_proto . inet_service.
        let key = |family| (type_number(SET.key, family), length(SET.key, family));
        assert_eq!((key(Family::V4), key(Family::V6)), ((0x730d, 12), (0x830d, 24)));
        assert_eq!(length(&[Datatype::Port], Family::V4), 2, "what stands alone is not filled up");
    }
}
