//! Counters that are objects of a table, by name (`enum nft_object_attributes`).

use ipvs::Family;
use netlink::{Batch, Error, Reply, find};

use super::{
    TABLE,
    message::{self, CREATE, Message, Nfproto},
};

const NFTA_OBJ_TABLE: u16 = 1;
const NFTA_OBJ_NAME: u16 = 2;
const NFTA_OBJ_TYPE: u16 = 3;
const NFTA_OBJ_DATA: u16 = 4;
/// `NFT_OBJECT_COUNTER`.
pub(super) const COUNTER: u32 = 1;
/// `enum nft_counter_attributes`.
const NFTA_COUNTER_PACKETS: u16 = 2;

/// A stateful object of our table as the kernel shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObservedObject {
    /// `None` for a table of a family without one of ours.
    pub(crate) family: Option<Family>,
    pub(crate) name: Box<str>,
    /// How many packets it has counted; `None` for another kind of object.
    pub(crate) packets: Option<u64>,
}

/// Appends the request that creates a counter, at 0.
pub(crate) fn add(batch: &mut Batch, family: Family, name: &str) {
    message::add(batch, Message::NewObject, CREATE, family, |encoder| {
        encoder.string(NFTA_OBJ_TABLE, TABLE);
        encoder.string(NFTA_OBJ_NAME, name);
        encoder.u32_be(NFTA_OBJ_TYPE, COUNTER);
        encoder.nest(NFTA_OBJ_DATA, |_| {});
    });
}

/// The request for the objects of our table of a family, or of the tables of every family.
pub(crate) fn list(family: impl Into<Nfproto>) -> Batch {
    message::request(Message::GetObject, family, |encoder| encoder.string(NFTA_OBJ_TABLE, TABLE))
}

/// Reads one object; `None` for another table's.
pub(crate) fn decode(reply: &Reply<'_>) -> Result<Option<ObservedObject>, Error> {
    let family = Family::BOTH.into_iter().find(|family| message::family(reply) == (*family).into());
    let (mut table, mut object) = ("", ObservedObject { family, ..ObservedObject::default() });
    for attribute in message::body(reply)? {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_OBJ_TABLE => table = attribute.string()?,
            NFTA_OBJ_NAME => object.name = attribute.string()?.into(),
            NFTA_OBJ_DATA => {
                let packets = find(attribute.payload, NFTA_COUNTER_PACKETS);
                object.packets = packets.and_then(|it| it.array().ok()).map(u64::from_be_bytes);
            }
            _ => {}
        }
    }
    Ok((table == TABLE).then_some(object))
}

#[cfg(test)]
mod tests {
    use netlink::Encoder;

    use super::*;

    /// An object of a table as the kernel shows it.
    fn shown(table: &str, family: Nfproto, data: impl FnOnce(&mut Encoder<'_>)) -> Option<ObservedObject> {
        let object = message::request(Message::NewObject, family, |encoder| {
            encoder.string(NFTA_OBJ_TABLE, table);
            encoder.string(NFTA_OBJ_NAME, "drop-tunnel");
            encoder.nest(NFTA_OBJ_DATA, data);
        });
        decode(&Reply { payload: &object.as_bytes()[16..], ..Reply::default() }).unwrap()
    }

    #[test]
    fn a_counter_has_its_family_name_and_packets() {
        let packets = |data: &mut Encoder<'_>| {
            data.bytes(1, &4_200_u64.to_be_bytes());
            data.bytes(NFTA_COUNTER_PACKETS, &42_u64.to_be_bytes());
        };
        let counter = |family| ObservedObject { family, name: "drop-tunnel".into(), packets: Some(42) };
        assert_eq!(shown(TABLE, Family::V6.into(), packets), Some(counter(Some(Family::V6))));
        assert_eq!(shown(TABLE, Nfproto(1), packets), Some(counter(None)), "inet");
        assert_eq!(shown("another", Family::V4.into(), packets), None);
    }

    #[test]
    fn an_object_of_another_type_has_counted_nothing() {
        let quota = shown(TABLE, Family::V4.into(), |data| data.bytes(1, &[0; 8])).unwrap();
        assert_eq!(quota.packets, None);
    }
}
