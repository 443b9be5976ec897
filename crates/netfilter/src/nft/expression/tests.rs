use netlink::Batch;

use super::{
    super::{message::NFTA_LIST_ELEM, parts::decode_expression},
    *,
};

/// The attributes of one expression, without list entry and name.
fn data(add: impl FnOnce(&mut List<'_, '_>)) -> Vec<u8> {
    let mut batch = Batch::default();
    batch.add(0, 0, |encoder| add(&mut List(encoder)));
    let entry = netlink::find(&batch.as_bytes()[16..], NFTA_LIST_ELEM).unwrap();
    decode_expression(entry.payload).unwrap().1.to_vec()
}

fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + payload.len()).unwrap();
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), payload].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn nested(kind: u16, content: &[u8]) -> Vec<u8> {
    attribute(kind | 0x8000, content)
}

#[test]
fn an_entry_of_the_list_is_a_name_and_its_data() {
    let mut batch = Batch::default();
    batch.add(0, 0, |encoder| List(encoder).masquerade(false));
    let expected = nested(1, &[attribute(1, b"masq\0"), nested(2, &[])].concat());
    assert_eq!(batch.as_bytes()[16..], expected);
}

#[test]
fn payload_loads_from_a_base_offset_and_length_into_a_register() {
    let port = data(|list| list.payload(Base::Transport, 2, 2, Register(2)));
    let expected = [
        attribute(1, &[0, 0, 0, 10]),
        attribute(2, &[0, 0, 0, 2]),
        attribute(3, &[0, 0, 0, 2]),
        attribute(4, &[0, 0, 0, 2]),
    ];
    assert_eq!(port, expected.concat());
}

#[test]
fn meta_loads_by_the_first_attribute_and_sets_by_the_third() {
    let load = data(|list| list.meta(MetaKey::L4Protocol, Register(1)));
    assert_eq!(load, [attribute(1, &[0, 0, 0, 9]), attribute(2, &[0, 0, 0, 16])].concat());
    let set = data(|list| list.set_meta(MetaKey::Mark, Register(0)));
    assert_eq!(set, [attribute(2, &[0, 0, 0, 3]), attribute(3, &[0, 0, 0, 8])].concat());
}

#[test]
fn bitwise_reads_and_writes_the_same_register() {
    let bitwise = data(|list| list.bitwise(Register(0), &[255, 252], &[0, 0]));
    let expected = [
        attribute(1, &[0, 0, 0, 8]),
        attribute(2, &[0, 0, 0, 8]),
        attribute(3, &[0, 0, 0, 2]),
        nested(4, &attribute(1, &[255, 252])),
        nested(5, &attribute(1, &[0, 0])),
    ];
    assert_eq!(bitwise, expected.concat());
}

#[test]
fn a_comparison_carries_as_many_bytes_as_it_compares() {
    for how in [Comparison::Equal, Comparison::NotEqual] {
        let compare = data(|list| list.compare(Register(0), how, b"veth"));
        let operator = [0, 0, 0, u8::from(how == Comparison::NotEqual)];
        let expected =
            [attribute(1, &[0, 0, 0, 8]), attribute(2, &operator), nested(3, &attribute(1, b"veth"))];
        assert_eq!(compare, expected.concat());
    }
}

#[test]
fn a_lookup_names_its_set_and_the_first_register_of_the_key() {
    let lookup = data(|list| list.lookup("hairpin", Register(0), None));
    assert_eq!(lookup, [attribute(1, b"hairpin\0"), attribute(2, &[0, 0, 0, 8])].concat());
}

#[test]
fn a_jump_is_a_verdict_with_a_chain() {
    let verdict = [attribute(1, &[0xff, 0xff, 0xff, 0xfd]), attribute(2, b"services\0")].concat();
    let expected = [attribute(1, &[0; 4]), nested(2, &nested(2, &verdict))];
    assert_eq!(data(|list| list.verdict(Verdict::Jump("services"))), expected.concat());
}

#[test]
fn a_return_and_a_drop_are_verdicts_alone() {
    for (verdict, code) in [(Verdict::Return, [0xff, 0xff, 0xff, 0xfb]), (Verdict::Drop, [0; 4])] {
        let expected = [attribute(1, &[0; 4]), nested(2, &nested(2, &attribute(1, &code)))];
        assert_eq!(data(|list| list.verdict(verdict)), expected.concat());
    }
}

#[test]
fn the_state_of_a_connection_is_loaded_into_a_register() {
    let state = data(|list| list.conntrack(ConntrackKey::State, None, Register(0)));
    assert_eq!(state, [attribute(1, &[0, 0, 0, 8]), attribute(2, &[0; 4])].concat());
}

#[test]
fn destination_nat_names_its_family_and_the_register_of_the_address() {
    for (family, number) in [(Family::V4, 2), (Family::V6, 10)] {
        let nat = data(|list| list.destination_nat(family, Register(1), None));
        let expected =
            [attribute(1, &[0, 0, 0, 1]), attribute(2, &[0, 0, 0, number]), attribute(3, &[0, 0, 0, 9])];
        assert_eq!(nat, expected.concat());
    }
}

#[test]
fn a_rejection_carries_the_code_of_its_icmp_message() {
    assert_eq!(data(|list| list.reject(3)), [attribute(1, &[0; 4]), attribute(2, &[3])].concat());
}

#[test]
fn fully_random_is_a_flag_of_masquerade() {
    assert_eq!(data(|list| list.masquerade(true)), attribute(1, &[0, 0, 0, 0x10]));
}
