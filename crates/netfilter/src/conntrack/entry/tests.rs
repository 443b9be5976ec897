use netlink::Encoder;
use proptest::prelude::*;

use super::*;

/// A tuple as the kernel writes it.
fn tuple(encoder: &mut Encoder<'_>, kind: u16, protocol: u8, source: &str, destination: &str) {
    let [source, destination]: [SocketAddr; 2] = [source, destination].map(|text| text.parse().unwrap());
    encoder.nest(kind, |tuple| {
        tuple.nest(CTA_TUPLE_IP, |ip| match (source.ip(), destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                ip.bytes(CTA_IP_V4_SRC, &source.octets());
                ip.bytes(CTA_IP_V4_DST, &destination.octets());
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                ip.bytes(CTA_IP_V6_SRC, &source.octets());
                ip.bytes(CTA_IP_V6_DST, &destination.octets());
            }
            _ => panic!("two families"),
        });
        tuple.nest(CTA_TUPLE_PROTO, |proto| {
            proto.u8(CTA_PROTO_NUM, protocol);
            proto.u16_be(CTA_PROTO_SRC_PORT, source.port());
            proto.u16_be(CTA_PROTO_DST_PORT, destination.port());
        });
    });
}

/// The payload of an entry.
fn payload(family: u8, attributes: impl FnOnce(&mut Encoder<'_>)) -> Vec<u8> {
    let mut batch = Batch::default();
    batch.add(0, 0, |encoder| {
        encoder.raw(&header(family));
        attributes(encoder);
    });
    batch.as_bytes()[16..].to_vec()
}

fn reply(payload: &[u8]) -> Reply<'_> {
    Reply { payload, ..Reply::default() }
}

/// A masqueraded flow of this protocol.
pub(in crate::conntrack) fn masqueraded(protocol: u8) -> Vec<u8> {
    payload(2, |e| {
        tuple(e, CTA_TUPLE_ORIG, protocol, "192.0.2.7:4000", "10.96.0.10:53");
        tuple(e, CTA_TUPLE_REPLY, protocol, "10.244.1.2:8053", "10.244.1.1:61000");
        e.u32_be(CTA_ID, 77);
    })
}

fn flow(to: &str, answered_by: &str, masqueraded: bool) -> Flow {
    let [to, by]: [SocketAddr; 2] = [to, answered_by].map(|text| text.parse().unwrap());
    let to = ServiceAddress { protocol: Protocol::Udp, ip: to.ip(), port: to.port() };
    Flow { to, answered_by: RealServerAddress { ip: by.ip(), port: by.port() }, masqueraded }
}

#[test]
fn a_flow_leads_to_where_its_first_packet_was_sent_and_is_answered_by_who_replies() {
    let read = |payload: &[u8]| Entry::read(&reply(payload)).map(|entry| entry.flow);
    assert_eq!(read(&masqueraded(17)), Some(flow("10.96.0.10:53", "10.244.1.2:8053", true)));
    let ipv6 = payload(10, |e| {
        tuple(e, CTA_TUPLE_ORIG, 17, "[2001:db8::7]:4000", "[fd00:96::10]:53");
        tuple(e, CTA_TUPLE_REPLY, 17, "[fd00:10:244:1::2]:8053", "[2001:db8::7]:4000");
        e.u32_be(CTA_ID, 1);
    });
    assert_eq!(read(&ipv6), Some(flow("[fd00:96::10]:53", "[fd00:10:244:1::2]:8053", false)));
}

#[test]
fn a_flow_that_only_goes_on_from_another_port_is_not_masqueraded() {
    let moved = payload(2, |e| {
        tuple(e, CTA_TUPLE_ORIG, 17, "192.0.2.7:4000", "10.96.0.10:53");
        tuple(e, CTA_TUPLE_REPLY, 17, "10.244.1.2:8053", "192.0.2.7:61000");
        e.u32_be(CTA_ID, 1);
    });
    assert!(!Entry::read(&reply(&moved)).unwrap().flow.masqueraded);
}

#[test]
fn only_udp_is_read() {
    for other in [6, 132, 136, 1] {
        assert_eq!(Entry::read(&reply(&masqueraded(other))), None, "protocol {other}");
    }
}

#[test]
fn an_entry_without_its_number_is_left_alone() {
    let payload = payload(2, |e| {
        tuple(e, CTA_TUPLE_ORIG, 17, "192.0.2.7:4000", "10.96.0.10:53");
        tuple(e, CTA_TUPLE_REPLY, 17, "10.244.1.2:8053", "192.0.2.7:4000");
    });
    assert_eq!(Entry::read(&reply(&payload)), None);
}

#[test]
fn a_deletion_names_the_tuple_the_zone_and_the_number() {
    let shown = payload(2, |e| {
        tuple(e, CTA_TUPLE_ORIG, 17, "192.0.2.7:4000", "10.96.0.10:53");
        tuple(e, CTA_TUPLE_REPLY, 17, "10.244.1.2:8053", "192.0.2.7:4000");
        e.u32_be(3, 0x18e); // CTA_STATUS: nothing of the deletion
        e.u32_be(CTA_ID, 77);
        e.u16_be(CTA_ZONE, 9);
    });
    let mut batch = Batch::default();
    Entry::read(&reply(&shown)).unwrap().delete(&mut batch);
    let asked = payload(2, |e| {
        tuple(e, CTA_TUPLE_ORIG, 17, "192.0.2.7:4000", "10.96.0.10:53");
        e.u16_be(CTA_ZONE, 9);
        e.u32_be(CTA_ID, 77);
    });
    assert_eq!(batch.as_bytes()[4..6], 0x0102u16.to_ne_bytes());
    assert_eq!(&batch.as_bytes()[16..], asked);
}

#[test]
fn a_zone_of_one_direction_stays_in_the_tuple() {
    const CTA_TUPLE_ZONE: u16 = 3;
    let mut shown = masqueraded(17);
    let at = shown.len();
    let zone = payload(2, |e| e.u16_be(CTA_TUPLE_ZONE, 9))[4..].to_vec();
    // The first attribute, after the header, is the original tuple: the zone goes to its end.
    let length = u16::from_ne_bytes([shown[4], shown[5]]);
    shown.splice(4 + usize::from(length)..4 + usize::from(length), zone.iter().copied());
    shown[4..6].copy_from_slice(&(length + 8).to_ne_bytes());
    assert_eq!(shown.len(), at + 8);
    let mut batch = Batch::default();
    Entry::read(&reply(&shown)).unwrap().delete(&mut batch);
    assert!(batch.as_bytes().windows(8).any(|window| window == zone), "{:?}", batch.as_bytes());
}

proptest! {
    #[test]
    fn no_reply_makes_the_decoder_panic(payload in prop::collection::vec(any::<u8>(), 0..200)) {
        Entry::read(&reply(&payload));
    }

    #[test]
    fn no_attributes_make_the_decoder_panic(
        parts in prop::collection::vec((0u16..20, prop::collection::vec(any::<u8>(), 0..20)), 0..8),
    ) {
        let payload = payload(2, |e| {
            for (kind, bytes) in &parts {
                e.bytes(*kind, bytes);
                e.nest(*kind, |inner| {
                    inner.nest(CTA_TUPLE_IP, |ip| ip.bytes(kind % 5, bytes));
                    inner.nest(CTA_TUPLE_PROTO, |proto| proto.bytes(kind % 4, bytes));
                });
            }
        });
        if let Some(entry) = Entry::read(&reply(&payload)) {
            entry.delete(&mut Batch::default());
        }
    }

    #[test]
    fn a_cut_entry_is_not_taken_for_another(cut in 1usize..100) {
        let whole = masqueraded(17);
        let expected = Entry::read(&reply(&whole)).map(|entry| entry.flow).unwrap();
        let cut = &whole[..whole.len().saturating_sub(cut)];
        if let Some(entry) = Entry::read(&reply(cut)) {
            prop_assert_eq!(entry.flow, expected);
        }
    }
}
