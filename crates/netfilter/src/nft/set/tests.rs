use ipvs::ServiceAddress;

use super::*;
use crate::{Element, MaxSegmentSize};

const SET: Set = Set {
    name: "s",
    key: &[Datatype::Address, Datatype::Protocol, Datatype::Port],
    value: &[],
    intervals: false,
};
const INTERVALS: Set = Set { intervals: true, ..SET };
const MAP: Set = Set { value: &[Datatype::Address, Datatype::Port], ..SET };

fn keys() -> [Key; 2] {
    ["0.1.2.3", "4.5.6.7"].map(|ip| Key::from(&Element::Vip(ip.parse().unwrap())))
}

fn reply(batch: &Batch) -> Reply<'_> {
    Reply { kind: 0, flags: 0, sequence: 0, payload: &batch.as_bytes()[16..] }
}

#[test]
fn a_set_is_read_back_as_it_was_written() {
    for family in Family::BOTH {
        for (set, other) in [(SET, INTERVALS), (INTERVALS, SET), (MAP, SET)] {
            let mut batch = Batch::default();
            set.add_to(&mut batch, family, 1);
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

#[test]
fn elements_are_nested_four_deep() {
    let mut batch = Batch::default();
    elements(&mut batch, Message::NewSetElement, CREATE, Family::V4, "s", keys().into_iter().take(1));
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
    elements(&mut batch, Message::NewSetElement, CREATE, Family::V4, "s", keys().into_iter());
    let mut read = Vec::new();
    decode_elements(&reply(&batch), |raw| {
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
    elements(&mut batch, Message::NewSetElement, CREATE, Family::V4, of.set(), [Key::from(&of)].into_iter());
    let mut read = Vec::new();
    decode_elements(&reply(&batch), |raw| read.push(raw.value.map(<[u8]>::to_vec))).unwrap();
    assert_eq!(read, [Some(vec![5, 140])]);
}
