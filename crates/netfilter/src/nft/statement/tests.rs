use netlink::{Batch, attributes, find};

use super::{super::parts::decode_expression, *};

/// An expression: its name, and its attributes.
type Expression = (String, Vec<u8>);

fn expressions(statement: &Statement, family: Family) -> Vec<Expression> {
    let mut batch = Batch::default();
    batch.add(0, 0, |list| statement.encode(family, list));
    attributes(&batch.as_bytes()[16..])
        .map(|entry| {
            let (name, data) = decode_expression(entry.unwrap().payload).unwrap();
            (name.to_owned(), data.to_vec())
        })
        .collect()
}

fn number(expression: &Expression, attribute: u16) -> u32 {
    find(&expression.1, attribute).unwrap().u32_be().unwrap()
}

/// The bytes in a nested attribute.
fn bytes(expression: &Expression, attribute: u16) -> Vec<u8> {
    find(find(&expression.1, attribute).unwrap().payload, 1).unwrap().payload.to_vec()
}

#[test]
fn fields_of_a_key_lie_in_consecutive_registers() {
    let fields = &[Field::Daddr, Field::L4Proto, Field::ThDport];
    let statement = Statement::InSet { fields, set: "s" };
    let registers = |family| {
        let register = |expression: &Expression| {
            number(expression, if expression.0 == "lookup" { 2 } else { 1 }) - Register(0).number()
        };
        expressions(&statement, family).iter().map(register).collect::<Vec<_>>()
    };
    assert_eq!(registers(Family::V4), [0, 1, 2, 0]);
    assert_eq!(registers(Family::V6), [0, 4, 5, 0]);
}

#[test]
fn setting_and_clearing_a_bit_keeps_the_others() {
    for (statement, before, after) in [
        (Statement::SetMark(0x4000), 0xffff_0001, 0xffff_4001u32),
        (Statement::SetMark(0x4000), 0x0000_4001, 0x0000_4001),
        (Statement::ClearMark(0x4000), 0xffff_ffff, 0xffff_bfff),
        (Statement::ClearMark(0x4000), 0x0000_0001, 0x0000_0001),
    ] {
        let bitwise = &expressions(&statement, Family::V4)[1];
        let word = |attribute| u32::from_ne_bytes(bytes(bitwise, attribute).try_into().unwrap());
        assert_eq!(before & word(4) ^ word(5), after, "{statement:?}");
    }
}

#[test]
fn a_network_with_host_bits_means_the_network() {
    let with = Statement::Saddr("10.1.2.3/14".parse().unwrap());
    let without = Statement::Saddr("10.0.0.0/14".parse().unwrap());
    assert_eq!(expressions(&with, Family::V4), expressions(&without, Family::V4));
}

#[test]
fn a_single_address_needs_no_mask() {
    let statement = Statement::Saddr("::1/128".parse().unwrap());
    assert_eq!(expressions(&statement, Family::V6).len(), 2);
    assert_eq!(text(&statement, Family::V6), "ip6 saddr ::1");
}

fn text(statement: &Statement, family: Family) -> String {
    let mut text = String::new();
    statement.write(family, &mut text).unwrap();
    text
}

#[test]
fn outside_of_a_network_is_the_same_comparison_turned_round() {
    let net: IpNet = "127.0.0.0/8".parse().unwrap();
    let [inside, outside] = [Statement::Saddr(net), Statement::SaddrNot(net)]
        .map(|statement| expressions(&statement, Family::V4));
    let (compared, compared_outside) = (inside.last().unwrap(), outside.last().unwrap());
    assert_eq!((number(compared, 2), number(compared_outside, 2)), (0, 1));
    assert_eq!(bytes(compared, 3), bytes(compared_outside, 3));
    assert_eq!(inside[..inside.len() - 1], outside[..outside.len() - 1]);
    assert_eq!(text(&Statement::SaddrNot(net), Family::V4), "ip saddr != 127.0.0.0/8");
}

#[test]
fn a_connections_state_is_one_of_several_bits() {
    for (connection, bits) in [(CtState::New, 8), (CtState::EstablishedOrRelated, 6u32)] {
        let [_, masked, compared] = &expressions(&Statement::CtState(connection), Family::V4)[..] else {
            panic!("{connection:?}")
        };
        assert_eq!((bytes(masked, 4), bytes(masked, 5)), (bits.to_ne_bytes().to_vec(), vec![0; 4]));
        assert_eq!((number(compared, 2), bytes(compared, 3)), (Comparison::NotEqual as u32, vec![0; 4]));
    }
}

#[test]
fn an_echo_request_is_recognised_by_protocol_and_type() {
    for (family, protocol, kind) in [(Family::V4, 1, 8), (Family::V6, 58, 128)] {
        let expressions = expressions(&Statement::EchoRequest, family);
        let compared = expressions.iter().filter(|(name, _)| name == "cmp").map(|one| bytes(one, 3));
        let compared: Vec<_> = compared.collect();
        assert_eq!(compared, [[protocol], [kind]]);
    }
}

#[test]
fn a_whole_interface_name_is_compared_with_its_padding() {
    assert_eq!(Interface::Name("cbr0".into()).pattern(), b"cbr0\0\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(Interface::Prefix("veth".into()).pattern(), b"veth");
}
