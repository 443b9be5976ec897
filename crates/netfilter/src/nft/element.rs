//! Elements of sets: keys, and values of maps.

use std::net::{IpAddr, Ipv4Addr};

use ipvs::{Family, Protocol};
use netlink::{Batch, Encoder, Error, Reply, attributes, find};
use smallvec::SmallVec;

use super::{
    TABLE,
    message::{self, Message, NFTA_DATA_VALUE, NFTA_LIST_ELEM},
    set::{Datatype, Set},
};

/// `enum nft_set_elem_list_attributes`.
const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
const NFTA_SET_ELEM_LIST_SET: u16 = 2;
const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
/// `enum nft_set_elem_attributes`.
const NFTA_SET_ELEM_KEY: u16 = 1;
const NFTA_SET_ELEM_DATA: u16 = 2;
const NFTA_SET_ELEM_KEY_END: u16 = 10;

/// A field of a key, or of a map's value, by its [`Datatype`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Address(IpAddr),
    AddressEnd(Ipv4Addr),
    Protocol(Protocol),
    Port(u16),
}

/// Fields one after the other.
pub(crate) type Parts = SmallVec<[Part; 4]>;

/// A key, with the value that a map has for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// The key; in an interval set the first one of the interval.
    pub(crate) start: Parts,
    /// The last field of the last key of an interval. The other fields are the same in both.
    pub(crate) end: Option<Part>,
    /// Empty unless the set is a map.
    pub(crate) value: Parts,
}

/// An element as the kernel shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RawElement<'a> {
    /// Its key, or the first one of an interval. Empty in one that matches everything (nft's `*`, Linux
    /// 5.13).
    pub(crate) start: &'a [u8],
    /// The last key of an interval.
    pub(crate) end: Option<&'a [u8]>,
    /// The value that a map has for it.
    pub(crate) value: Option<&'a [u8]>,
}

impl Part {
    /// Reads a field, which may be filled up with zeros.
    fn read(datatype: Datatype, family: Family, field: &[u8]) -> Option<Self> {
        let (value, padding) = field.split_at_checked(datatype.unpadded(family) as usize)?;
        if padding.iter().any(|byte| *byte != 0) {
            return None;
        }
        Some(match (datatype, family) {
            (Datatype::Address, Family::V4) => Self::Address(<[u8; 4]>::try_from(value).ok()?.into()),
            (Datatype::Address, Family::V6) => Self::Address(<[u8; 16]>::try_from(value).ok()?.into()),
            (Datatype::AddressEnd, _) => Self::AddressEnd(<[u8; 4]>::try_from(value).ok()?.into()),
            (Datatype::Protocol, _) => Self::Protocol(Protocol::from_number(u16::from(*value.first()?))?),
            (Datatype::Port, _) => Self::Port(u16::from_be_bytes(value.try_into().ok()?)),
        })
    }
}

/// Reads fields that take all of these bytes; `None` if they do not, or if a protocol is not one that IPVS
/// balances.
fn read_parts(types: &[Datatype], family: Family, mut bytes: &[u8]) -> Option<Parts> {
    let mut parts = Parts::new();
    for datatype in types {
        let (field, rest) = bytes.split_at_checked(datatype.length_among(types, family) as usize)?;
        parts.push(Part::read(*datatype, family, field)?);
        bytes = rest;
    }
    bytes.is_empty().then_some(parts)
}

/// The bytes of fields: at most two IPv6 addresses, a protocol and a port. Each is filled up to four bytes,
/// unless it stands alone.
pub(crate) fn bytes(parts: &[Part]) -> SmallVec<[u8; 64]> {
    let mut bytes = SmallVec::new();
    for part in parts {
        match part {
            Part::Address(IpAddr::V4(ip)) | Part::AddressEnd(ip) => bytes.extend_from_slice(&ip.octets()),
            Part::Address(IpAddr::V6(ip)) => bytes.extend_from_slice(&ip.octets()),
            Part::Protocol(protocol) => bytes.push(protocol.number()),
            Part::Port(port) => bytes.extend_from_slice(&port.to_be_bytes()),
        }
        if parts.len() > 1 {
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
    }
    bytes
}

impl Key {
    /// The key of an element that is not an interval and has no value.
    pub(crate) fn plain(parts: &[Part]) -> Self {
        Self { start: Parts::from_slice(parts), end: None, value: Parts::new() }
    }

    /// Reads an element of a set; `None` if it cannot be one of a set of ours: another length or protocol, an
    /// interval where none is allowed, or in another field than the last.
    pub(crate) fn read(set: &Set, family: Family, raw: RawElement<'_>) -> Option<Self> {
        if raw.end.is_some() != set.intervals || raw.value.is_some() != set.is_map() {
            return None;
        }
        let start = read_parts(set.key, family, raw.start)?;
        let mut end = None;
        if let Some(bytes) = raw.end {
            let mut last = read_parts(set.key, family, bytes)?;
            end = Some(last.pop()?);
            start.starts_with(&last).then_some(())?;
        }
        let value = read_parts(set.value, family, raw.value.unwrap_or_default())?;
        Some(Self { start, end, value })
    }

    /// The last key of an interval.
    pub(crate) fn last(&self) -> Option<Parts> {
        let mut last = self.start.clone();
        *last.last_mut()? = self.end?;
        Some(last)
    }
}

/// How many elements go into one request. The longest, intervals of IPv6 clients, have two ends of 40 bytes
/// with 8 of headers each; the attribute holds 65,531.
pub(crate) const PER_REQUEST: usize = 600;
const _: () = assert!(PER_REQUEST * (4 + 2 * (8 + 40)) < 65_531);

/// Appends a request that adds elements to a set, or deletes some: [`PER_REQUEST`] at most, because the list is one
/// attribute.
pub(crate) fn change(
    batch: &mut Batch,
    message: Message,
    flags: u16,
    family: Family,
    table: &str,
    set: &str,
    keys: impl Iterator<Item = Key>,
) {
    message::add(batch, message, flags, family, |encoder| {
        encoder.string(NFTA_SET_ELEM_LIST_TABLE, table);
        encoder.string(NFTA_SET_ELEM_LIST_SET, set);
        encoder.nest(NFTA_SET_ELEM_LIST_ELEMENTS, |list| keys.for_each(|key| encode_element(list, &key)));
    });
}

fn encode_element(list: &mut Encoder<'_>, key: &Key) {
    list.nest(NFTA_LIST_ELEM, |element| {
        let mut add = |kind, parts: &[Part]| {
            element.nest(kind, |data| data.bytes(NFTA_DATA_VALUE, &bytes(parts)));
        };
        add(NFTA_SET_ELEM_KEY, &key.start);
        if let Some(last) = key.last() {
            add(NFTA_SET_ELEM_KEY_END, &last);
        }
        if !key.value.is_empty() {
            add(NFTA_SET_ELEM_DATA, &key.value);
        }
    });
}

/// The request for the elements of one set.
pub(crate) fn list(family: Family, set: &str) -> Batch {
    message::request(Message::GetSetElement, family, |encoder| {
        encoder.string(NFTA_SET_ELEM_LIST_TABLE, TABLE);
        encoder.string(NFTA_SET_ELEM_LIST_SET, set);
    })
}

/// Calls `take` with each element in one message of a dump.
pub(crate) fn decode(reply: &Reply<'_>, mut take: impl FnMut(RawElement<'_>)) -> Result<(), Error> {
    for attribute in message::body(reply)? {
        let attribute = attribute?;
        if attribute.kind != NFTA_SET_ELEM_LIST_ELEMENTS {
            continue;
        }
        for element in attributes(attribute.payload) {
            let mut raw = RawElement::default();
            for part in attributes(element?.payload) {
                let part = part?;
                let value = find(part.payload, NFTA_DATA_VALUE).map(|value| value.payload);
                match part.kind {
                    NFTA_SET_ELEM_KEY => raw.start = value.unwrap_or_default(),
                    NFTA_SET_ELEM_KEY_END => raw.end = value,
                    NFTA_SET_ELEM_DATA => raw.value = value,
                    _ => {}
                }
            }
            take(raw);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ipvs::ServiceAddress;

    use super::{super::message::CREATE, *};
    use crate::{Element, MaxSegmentSize};

    fn keys() -> [Key; 2] {
        ["0.1.2.3", "4.5.6.7"].map(|ip| Key::from(&Element::Vip(ip.parse().unwrap())))
    }

    fn reply(batch: &Batch) -> Reply<'_> {
        Reply { payload: &batch.as_bytes()[16..], ..Reply::default() }
    }

    #[test]
    fn elements_are_nested_four_deep() {
        let mut batch = Batch::default();
        change(
            &mut batch,
            Message::NewSetElement,
            CREATE,
            Family::V4,
            TABLE,
            "s",
            keys().into_iter().take(1),
        );
        let header = |length: u16, kind: u16| [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        let expected = [
            &[2, 0, 0, 0][..],
            &header(14, 1),
            b"kube-ipvs\0\0\0",
            &header(6, 2),
            b"s\0\0\0",
            &header(20, 0x8003),
            &header(16, 0x8001),
            &header(12, 0x8001),
            &header(8, 1),
            &[0, 1, 2, 3],
        ];
        assert_eq!(batch.as_bytes()[16..], expected.concat());
    }

    #[test]
    fn keys_are_read_back_from_a_list_of_elements() {
        let mut batch = Batch::default();
        change(&mut batch, Message::NewSetElement, CREATE, Family::V4, TABLE, "s", keys().into_iter());
        let mut read = Vec::new();
        decode(&reply(&batch), |raw| {
            assert_eq!((raw.end, raw.value), (None, None));
            read.push(raw.start.to_vec());
        })
        .unwrap();
        assert_eq!(read, [[0, 1, 2, 3], [4, 5, 6, 7]]);
    }

    #[test]
    fn a_maps_element_has_a_value_behind_its_key() {
        let mut batch = Batch::default();
        let to = ServiceAddress { protocol: ipvs::Protocol::Tcp, ip: [192, 0, 2, 1].into(), port: 80 };
        let of = Element::MaxSegmentSize(MaxSegmentSize { to, bytes: 1420 });
        change(
            &mut batch,
            Message::NewSetElement,
            CREATE,
            Family::V4,
            TABLE,
            of.set(),
            [Key::from(&of)].into_iter(),
        );
        let mut read = Vec::new();
        decode(&reply(&batch), |raw| read.push(raw.value.map(<[u8]>::to_vec))).unwrap();
        assert_eq!(read, [Some(vec![5, 140])]);
    }
}
