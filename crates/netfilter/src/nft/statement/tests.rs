use super::*;

#[test]
fn fields_of_a_key_lie_in_consecutive_registers() {
    let fields = &[Field::Daddr, Field::L4Proto, Field::ThDport];
    let statement = Statement::InSet { fields, set: "s" };
    let registers = |family| {
        let loads = statement.expressions(family);
        loads
            .into_iter()
            .map(|expression| match expression {
                Expression::Payload { to, .. } | Expression::Meta { to, .. } => to.0,
                Expression::Lookup { key, .. } => key.0,
                other => panic!("{other:?}"),
            })
            .collect::<Vec<_>>()
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
        let expressions = statement.expressions(Family::V4);
        let Expression::Bitwise { mask, xor, .. } = &expressions[1] else { panic!("{expressions:?}") };
        let word = |bytes: &[u8]| u32::from_ne_bytes(bytes.try_into().unwrap());
        assert_eq!(before & word(mask) ^ word(xor), after, "{statement:?}");
    }
}

#[test]
fn a_network_with_host_bits_means_the_network() {
    let with = Statement::Saddr("10.1.2.3/14".parse().unwrap());
    let without = Statement::Saddr("10.0.0.0/14".parse().unwrap());
    assert_eq!(with.expressions(Family::V4), without.expressions(Family::V4));
}

#[test]
fn a_single_address_needs_no_mask() {
    let statement = Statement::Saddr("::1/128".parse().unwrap());
    assert_eq!(statement.expressions(Family::V6).len(), 2);
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
    let (mut inside, outside) =
        (Statement::Saddr(net).expressions(Family::V4), Statement::SaddrNot(net).expressions(Family::V4));
    let Some(Expression::Compare { how, .. }) = inside.last_mut() else { panic!("{inside:?}") };
    *how = Comparison::NotEqual;
    assert_eq!(inside, outside);
    assert_eq!(text(&Statement::SaddrNot(net), Family::V4), "ip saddr != 127.0.0.0/8");
}

#[test]
fn a_connections_state_is_one_of_several_bits() {
    for (connection, bits) in [(CtState::New, 8), (CtState::EstablishedOrRelated, 6u32)] {
        let expressions = Statement::CtState(connection).expressions(Family::V4);
        let [Expression::Conntrack { .. }, mask, Expression::Compare { how, value, .. }] = &*expressions
        else {
            panic!("{expressions:?}")
        };
        assert_eq!(*mask, masked(bits, 0));
        assert_eq!((*how, value.as_slice()), (Comparison::NotEqual, &[0; 4][..]));
    }
}

#[test]
fn an_echo_request_is_recognised_by_protocol_and_type() {
    for (family, protocol, kind) in [(Family::V4, 1, 8), (Family::V6, 58, 128)] {
        let expressions = Statement::EchoRequest.expressions(family);
        let compared: Vec<_> = expressions
            .iter()
            .filter_map(|expression| match expression {
                Expression::Compare { value, .. } => Some(value.as_slice()),
                _ => None,
            })
            .collect();
        assert_eq!(compared, [[protocol], [kind]]);
    }
}

#[test]
fn a_whole_interface_name_is_compared_with_its_padding() {
    assert_eq!(Interface::Name("cbr0".into()).pattern(), b"cbr0\0\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(Interface::Prefix("veth".into()).pattern(), b"veth");
}
