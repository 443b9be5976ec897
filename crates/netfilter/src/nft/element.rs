//! Elements of sets: keys, and values of maps.

use std::net::{IpAddr, Ipv4Addr};

use ipvs::{Family, Protocol};
use netlink::{Batch, Encoder, Error, Reply, attributes};

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

/// A field of a key, or of a map's value: what its [`Datatype`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Address(IpAddr),
    AddressEnd(Ipv4Addr),
    Protocol(Protocol),
    Port(u16),
}

/// Fields one after the other: at most four.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    parts: [Part; 4],
    count: usize,
}

/// A key with what a map has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// What a map has for it.
    pub(crate) value: Option<&'a [u8]>,
}

impl Part {
    /// Reads a field that begins these bytes, and returns what follows.
    fn read(datatype: Datatype, family: Family, bytes: &[u8]) -> Option<(Self, &[u8])> {
        match (datatype, family) {
            (Datatype::Address, Family::V4) => {
                bytes.split_first_chunk::<4>().map(|(ip, rest)| (Self::Address(IpAddr::from(*ip)), rest))
            }
            (Datatype::Address, Family::V6) => {
                bytes.split_first_chunk::<16>().map(|(ip, rest)| (Self::Address(IpAddr::from(*ip)), rest))
            }
            (Datatype::AddressEnd, _) => {
                bytes.split_first_chunk::<4>().map(|(ip, rest)| (Self::AddressEnd(Ipv4Addr::from(*ip)), rest))
            }
            (Datatype::Protocol, _) => {
                let (number, rest) = bytes.split_first()?;
                Some((Self::Protocol(Protocol::from_number(u16::from(*number))?), rest))
            }
            (Datatype::Port, _) => {
                bytes.split_first_chunk().map(|(port, rest)| (Self::Port(u16::from_be_bytes(*port)), rest))
            }
        }
    }
}

impl<const COUNT: usize> From<[Part; COUNT]> for Parts {
    fn from(parts: [Part; COUNT]) -> Self {
        const { assert!(COUNT <= 4) };
        let mut all = Self { count: COUNT, ..Self::NONE };
        all.parts.iter_mut().zip(parts).for_each(|(part, given)| *part = given);
        all
    }
}

impl Parts {
    const NONE: Self = Self { parts: [Part::Port(0); 4], count: 0 };

    pub(crate) fn as_slice(&self) -> &[Part] {
        self.parts.get(..self.count).unwrap_or_default()
    }

    /// Reads fields that take all of these bytes; `None` if they do not, or if a protocol is not one that
    /// IPVS balances.
    fn read(types: &[Datatype], family: Family, mut bytes: &[u8]) -> Option<Self> {
        let mut read = Self::NONE;
        for (part, datatype) in read.parts.iter_mut().zip(types) {
            let length = bytes.len();
            (*part, bytes) = Part::read(*datatype, family, bytes)?;
            if types.len() > 1 {
                let used = length - bytes.len();
                let (padding, rest) = bytes.split_at_checked(used.next_multiple_of(4) - used)?;
                bytes = padding.iter().all(|byte| *byte == 0).then_some(rest)?;
            }
        }
        read.count = types.len();
        bytes.is_empty().then_some(read)
    }

    pub(crate) fn bytes(&self) -> Bytes {
        let mut bytes = Bytes { bytes: [0; 40], length: 0 };
        for part in self.as_slice() {
            bytes.length = bytes.length.next_multiple_of(4);
            match part {
                Part::Address(IpAddr::V4(ip)) | Part::AddressEnd(ip) => bytes.append(&ip.octets()),
                Part::Address(IpAddr::V6(ip)) => bytes.append(&ip.octets()),
                Part::Protocol(protocol) => bytes.append(&[protocol.number()]),
                Part::Port(port) => bytes.append(&port.to_be_bytes()),
            }
        }
        // What stands alone is not filled up.
        if self.count > 1 {
            bytes.length = bytes.length.next_multiple_of(4);
        }
        bytes
    }
}

impl<const COUNT: usize> From<[Part; COUNT]> for Key {
    fn from(start: [Part; COUNT]) -> Self {
        Self { start: start.into(), end: None, value: Parts::NONE }
    }
}

impl Key {
    /// Reads an element of a set; `None` if it cannot be one of a set of ours: another length or protocol, an
    /// interval where none is allowed, or in another field than the last.
    pub(crate) fn read(set: &Set, family: Family, raw: RawElement<'_>) -> Option<Self> {
        let part = |given: Option<&[u8]>, types: &[Datatype], has_it: bool| match (given, has_it) {
            (Some(bytes), true) => Parts::read(types, family, bytes).map(Some),
            (None, false) => Some(None),
            _ => None,
        };
        let start = Parts::read(set.key, family, raw.start)?;
        let end = match part(raw.end, set.key, set.intervals)? {
            Some(end) => {
                let (last, others) = end.as_slice().split_last()?;
                Some((start.as_slice().split_last()?.1 == others).then_some(*last)?)
            }
            None => None,
        };
        let value = part(raw.value, set.value, set.is_map())?.unwrap_or(Parts::NONE);
        Some(Self { start, end, value })
    }

    /// The last key of an interval.
    pub(crate) fn end(&self) -> Option<Parts> {
        let mut last = self.start;
        *last.parts.get_mut(last.count.checked_sub(1)?)? = self.end?;
        Some(last)
    }
}

/// The bytes of fields, each filled up to four bytes: at most two IPv6 addresses, a protocol and a port.
pub(crate) struct Bytes {
    bytes: [u8; 40],
    length: usize,
}

impl Bytes {
    fn append(&mut self, field: &[u8]) {
        let end = self.length + field.len();
        if let Some(space) = self.bytes.get_mut(self.length..end) {
            space.copy_from_slice(field);
        }
        self.length = end;
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// Appends a request that adds elements to a set, or deletes some. `keys` must stay below 64 KiB with 12
/// bytes of headers each, and 8 more for a second end or a value: the list is one attribute.
pub(crate) fn change(
    batch: &mut Batch,
    message: Message,
    flags: u16,
    family: Family,
    set: &str,
    keys: impl Iterator<Item = Key>,
) {
    message::add(batch, message, flags, family, |encoder| {
        encoder.string(NFTA_SET_ELEM_LIST_TABLE, TABLE);
        encoder.string(NFTA_SET_ELEM_LIST_SET, set);
        encoder.nest(NFTA_SET_ELEM_LIST_ELEMENTS, |list| keys.for_each(|key| encode_element(list, &key)));
    });
}

fn encode_element(list: &mut Encoder<'_>, key: &Key) {
    list.nest(NFTA_LIST_ELEM, |element| {
        let mut add = |kind, parts: &Parts| {
            element.nest(kind, |data| data.bytes(NFTA_DATA_VALUE, parts.bytes().as_slice()));
        };
        add(NFTA_SET_ELEM_KEY, &key.start);
        if let Some(end) = key.end() {
            add(NFTA_SET_ELEM_KEY_END, &end);
        }
        if key.value.count > 0 {
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
                match part.kind {
                    NFTA_SET_ELEM_KEY => raw.start = value(part.payload)?.unwrap_or_default(),
                    NFTA_SET_ELEM_KEY_END => raw.end = value(part.payload)?,
                    NFTA_SET_ELEM_DATA => raw.value = value(part.payload)?,
                    _ => {}
                }
            }
            take(raw);
        }
    }
    Ok(())
}

/// The bytes in a `struct nft_data` attribute.
fn value(data: &[u8]) -> Result<Option<&[u8]>, Error> {
    for data in attributes(data) {
        let data = data?;
        if data.kind == NFTA_DATA_VALUE {
            return Ok(Some(data.payload));
        }
    }
    Ok(None)
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
        Reply { kind: 0, flags: 0, sequence: 0, payload: &batch.as_bytes()[16..] }
    }

    #[test]
    fn elements_are_nested_four_deep() {
        let mut batch = Batch::default();
        change(&mut batch, Message::NewSetElement, CREATE, Family::V4, "s", keys().into_iter().take(1));
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
        change(&mut batch, Message::NewSetElement, CREATE, Family::V4, "s", keys().into_iter());
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
            of.set(),
            [Key::from(&of)].into_iter(),
        );
        let mut read = Vec::new();
        decode(&reply(&batch), |raw| read.push(raw.value.map(<[u8]>::to_vec))).unwrap();
        assert_eq!(read, [Some(vec![5, 140])]);
    }
}
