use super::*;
use netfilter::nft::message::{
    NFTA_DATA_VERDICT, NFTA_LIST_ELEM, NFTA_RULE_CHAIN, NFTA_RULE_EXPRESSIONS, NFTA_RULE_HANDLE,
    NFTA_RULE_TABLE,
};

fn rule(family: Family, table: &str, expressions: &[(&str, Option<(i32, &str)>)]) -> Vec<u8> {
    let mut batch = Batch::default();
    message::add(&mut batch, Message::NewRule, 0, family, |encoder| {
        encoder.string(NFTA_RULE_TABLE, table);
        encoder.string(NFTA_RULE_CHAIN, "PREROUTING");
        encoder.bytes(NFTA_RULE_HANDLE, &7u64.to_be_bytes());
        encoder.nest(NFTA_RULE_EXPRESSIONS, |list| {
            for (name, verdict) in expressions {
                list.nest(NFTA_LIST_ELEM, |entry| {
                    entry.string(1, name);
                    entry.nest(2, |data| {
                        let Some((code, chain)) = verdict else { return };
                        data.u32_be(1, 0);
                        data.nest(2, |value| {
                            value.nest(NFTA_DATA_VERDICT, |verdict| {
                                verdict.u32_be(1, code.cast_unsigned());
                                if !chain.is_empty() {
                                    verdict.string(2, chain);
                                }
                            });
                        });
                    });
                });
            }
        });
    });
    batch.as_bytes()[16..].to_vec()
}

fn decoded(payload: &[u8]) -> Option<Rule<u64>> {
    let reply = Reply { payload, ..Reply::default() };
    decode_rule(&reply, Family::V6, "nat").unwrap()
}

const JUMP: i32 = -3;
const GOTO: i32 = -4;

#[test]
fn a_rule_is_known_by_its_number_and_by_where_it_leads() {
    for code in [JUMP, GOTO] {
        let verdict = ("immediate", Some((code, "KUBE-SERVICES")));
        let read = decoded(&rule(Family::V6, "nat", &[("match", None), ("counter", None), verdict])).unwrap();
        let targets = vec!["KUBE-SERVICES".into()];
        assert_eq!(read, Rule { chain: "PREROUTING".into(), id: 7, targets });
    }
    let accepts = rule(Family::V6, "nat", &[("immediate", Some((1, "")))]);
    assert_eq!(decoded(&accepts).unwrap().targets, []);
    let wrapped = rule(Family::V6, "nat", &[("target", Some((JUMP, "KUBE-SERVICES")))]);
    assert_eq!(decoded(&wrapped).unwrap().targets, [], "no verdict of nf_tables");
}

#[test]
fn a_rule_of_another_table_or_family_is_not_read() {
    assert_eq!(decoded(&rule(Family::V4, "nat", &[])), None);
    assert_eq!(decoded(&rule(Family::V6, "filter", &[])), None);
}

fn message(kind: u16, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(16 + payload.len()).unwrap();
    [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &1u16.to_ne_bytes(), &[0; 8], payload].concat()
}

fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + payload.len()).unwrap();
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), payload].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn plan() -> Plan<u64> {
    let chains = vec!["KUBE-SERVICES".into(), "KUBE-MARK-MASQ".into()];
    Plan { jumps: vec![("OUTPUT".into(), 0x0102)], chains, kept: BTreeMap::new(), spared: None }
}

#[test]
fn jumps_go_first_then_all_rules_then_the_chains_in_one_transaction() {
    let [begin, end] =
        [0x10, 0x11].map(|kind| move |more: &[u8]| message(kind, &[&[0, 0, 0, 10], more].concat()));
    let in_nat = |kind: u16, attributes: &[Vec<u8>]| {
        message(0x0a00 | kind, &[&[10, 0, 0, 0], &attribute(1, b"nat\0")[..], &attributes.concat()].concat())
    };
    let (services, masquerade) = (b"KUBE-SERVICES\0", b"KUBE-MARK-MASQ\0");
    let expected = [
        begin(&attribute(1, &[0, 0, 0, 42])),
        in_nat(8, &[attribute(2, b"OUTPUT\0"), attribute(3, &[0, 0, 0, 0, 0, 0, 1, 2])]),
        in_nat(8, &[attribute(2, services)]),
        in_nat(8, &[attribute(2, masquerade)]),
        in_nat(5, &[attribute(3, services)]),
        in_nat(5, &[attribute(3, masquerade)]),
        end(&[]),
    ];
    assert_eq!(encode(Family::V6, "nat", &plan(), Some(42)).as_bytes(), expected.concat());
}

#[test]
fn a_refusal_is_about_the_chain_that_was_to_be_deleted() {
    let plan = plan();
    let named = |request| deleted_by(&plan, request);
    assert_eq!([4, 5].map(named), [Some("KUBE-SERVICES"), Some("KUBE-MARK-MASQ")]);
    assert_eq!([0, 1, 2, 3, 6].map(named), [None; 5]);
}
