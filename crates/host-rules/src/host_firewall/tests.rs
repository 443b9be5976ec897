//! Chains and rules as the kernel shows them, encoded by hand.

use netlink::{Encoder, Reply};
use proptest::prelude::*;

use super::{
    our_rules::{OUR_COMMENT as COMMENT, judge},
    rule::{Effect, End},
    *,
};
use crate::Backend;
use netfilter::{
    HostFirewall, LocalTraffic,
    nft::message::{CREATE, NFTA_RULE_CHAIN, NFTA_RULE_EXPRESSIONS, NFTA_RULE_TABLE, Nfproto},
};

const MARK: u32 = 0x1000;

fn chain(family: TableFamily, table: &str, name: &str) -> HostChain {
    let (table, name) = (table.into(), name.into());
    HostChain { backend: Backend::Nft, family, table, name, hook: Hook::Input, priority: 0 }
}

fn input() -> HostChain {
    chain(TableFamily::Inet, "filter", "input")
}

fn of_iptables() -> HostChain {
    chain(TableFamily::Ip, "filter", "INPUT")
}

fn reply(payload: &[u8]) -> Reply<'_> {
    Reply { payload, ..Reply::default() }
}

fn message(kind: Message, family: impl Into<Nfproto>, body: impl FnOnce(&mut Encoder<'_>)) -> Vec<u8> {
    let mut batch = Batch::default();
    message::add(&mut batch, kind, CREATE, family, body);
    batch.as_bytes()[16..].to_vec()
}

type Content<'a> = dyn Fn(&mut Encoder<'_>) + 'a;

/// What becomes of a rule with these expressions: their names, and what is in each.
fn effect_of(expressions: &[(&str, &Content)]) -> Effect {
    let payload = message(Message::NewRule, TableFamily::Inet, |encoder| {
        encoder.string(NFTA_RULE_TABLE, "filter");
        encoder.string(NFTA_RULE_CHAIN, "input");
        encoder.nest(NFTA_RULE_EXPRESSIONS, |list| {
            for (name, content) in expressions {
                list.nest(1, |entry| {
                    entry.string(1, name);
                    entry.nest(2, content);
                });
            }
        });
    });
    rule::decode(&reply(&payload), &input()).unwrap().unwrap().effect
}

fn nothing(_: &mut Encoder<'_>) {}

fn verdict(code: i32) -> impl Fn(&mut Encoder<'_>) {
    move |data| {
        data.u32_be(1, 0);
        data.nest(2, |value| value.nest(2, |verdict| verdict.u32_be(1, code.cast_unsigned())));
    }
}

fn load_meta(key: u32) -> impl Fn(&mut Encoder<'_>) {
    move |data| {
        data.u32_be(1, 1);
        data.u32_be(2, key);
    }
}

fn bitwise(mask: u32, xor: u32) -> impl Fn(&mut Encoder<'_>) {
    move |data| {
        data.u32_be(1, 1);
        data.u32_be(2, 1);
        data.u32_be(3, 4);
        data.nest(4, |value| value.bytes(1, &mask.to_ne_bytes()));
        data.nest(5, |value| value.bytes(1, &xor.to_ne_bytes()));
    }
}

fn compare(operator: u32, value: &'static [u8]) -> impl Fn(&mut Encoder<'_>) {
    move |data| {
        data.u32_be(1, 1);
        data.u32_be(2, operator);
        data.nest(3, |encoder| encoder.bytes(1, value));
    }
}

fn extension(name: &'static str, revision: u32, info: Vec<u8>) -> impl Fn(&mut Encoder<'_>) {
    move |data| {
        data.string(1, name);
        data.u32_be(2, revision);
        data.bytes(3, &info);
    }
}

fn mark_info(mark: u32, mask: u32, turned_round: u8) -> Vec<u8> {
    [&mark.to_ne_bytes()[..], &mask.to_ne_bytes(), &[turned_round, 0, 0, 0], &[0; 4]].concat()
}

const ACCEPT: i32 = 1;
const DROP: i32 = 0;

#[test]
fn a_rule_without_a_match_ends_the_chain_whatever_it_counts_or_logs() {
    let comment = extension("comment", 0, b"why\0".to_vec());
    let named_counter = |data: &mut Encoder<'_>| data.u32_be(1, 1);
    for (deciding, end) in [
        (("immediate", &verdict(DROP) as &Content), End::Drop),
        (("immediate", &verdict(ACCEPT)), End::Accept),
        (("immediate", &verdict(-4)), End::Policy),
        (("immediate", &verdict(-5)), End::Policy),
        (("reject", &nothing), End::Drop),
        (("target", &extension("REJECT", 0, vec![0; 8])), End::Drop),
    ] {
        for asides in [
            vec![],
            vec![("counter", &nothing as &Content), ("log", &nothing)],
            vec![("match", &comment), ("objref", &named_counter), ("last", &nothing)],
        ] {
            let rule = [&asides[..], &[deciding]].concat();
            assert_eq!(effect_of(&rule), Effect::Ends(end), "{}, {} before it", deciding.0, asides.len());
        }
    }
}

#[test]
fn a_rule_that_may_not_match_or_leads_elsewhere_ends_nothing() {
    let quota = |data: &mut Encoder<'_>| data.u32_be(1, 2);
    for rule in [
        vec![],
        vec![("counter", &nothing as &Content)],
        vec![("target", &extension("LOG", 0, vec![0; 40]))],
        vec![("immediate", &verdict(-3))],
        vec![("limit", &nothing), ("immediate", &verdict(DROP))],
        vec![("objref", &quota), ("immediate", &verdict(DROP))],
        vec![("queue", &nothing)],
        vec![("match", &extension("tcp", 0, vec![0; 16])), ("immediate", &verdict(DROP))],
        vec![("immediate", &nothing)],
    ] {
        let names: Vec<_> = rule.iter().map(|(name, _)| name).collect();
        assert_eq!(effect_of(&rule), Effect::Other, "{names:?}");
    }
}

#[test]
fn accepting_by_our_bit_is_recognised_as_nft_and_as_iptables_write_it() {
    const BYTES: &[u8] = &MARK.to_ne_bytes();
    let (load, mask, equal) = (load_meta(3), bitwise(MARK, 0), compare(0, BYTES));
    let (matches, accept) = (extension("mark", 1, mark_info(MARK, MARK, 0)), verdict(ACCEPT));
    let native: Vec<(&str, &Content)> = vec![
        ("meta", &load),
        ("bitwise", &mask),
        ("cmp", &equal),
        ("counter", &nothing),
        ("immediate", &accept),
    ];
    assert_eq!(effect_of(&native), Effect::Accepts(Accepted::Marked(MARK)));
    let iptables: Vec<(&str, &Content)> =
        vec![("match", &matches), ("counter", &nothing), ("immediate", &accept)];
    assert_eq!(effect_of(&iptables), Effect::Accepts(Accepted::Marked(MARK)));
}

#[test]
fn what_only_resembles_our_rule_is_another_rule() {
    const BYTES: &[u8] = &MARK.to_ne_bytes();
    let native = |load: &Content, mask: &Content, equal: &Content, code| {
        effect_of(&[("meta", load), ("bitwise", mask), ("cmp", equal), ("immediate", &verdict(code))])
    };
    let (load, mask, equal) = (load_meta(3), bitwise(MARK, 0), compare(0, BYTES));
    assert_eq!(
        native(&load, &mask, &equal, ACCEPT),
        Effect::Accepts(Accepted::Marked(MARK)),
        "as it should be"
    );
    let other_register = |data: &mut Encoder<'_>| {
        data.u32_be(1, 2);
        data.u32_be(2, 3);
    };
    assert_eq!(native(&load_meta(2), &mask, &equal, ACCEPT), Effect::Other, "not the mark");
    assert_eq!(native(&other_register, &mask, &equal, ACCEPT), Effect::Other, "another register");
    assert_eq!(native(&load, &bitwise(MARK | 1, 0), &equal, ACCEPT), Effect::Other, "more bits");
    assert_eq!(native(&load, &bitwise(MARK, 1), &equal, ACCEPT), Effect::Other, "changed bits");
    assert_eq!(native(&load, &mask, &compare(1, BYTES), ACCEPT), Effect::Other, "unequal");
    assert_eq!(native(&load, &mask, &compare(0, &BYTES[..2]), ACCEPT), Effect::Other, "half of it");
    assert_eq!(native(&load, &mask, &equal, DROP), Effect::Other, "drop");
    for (revision, info) in [
        (1, mark_info(MARK, MARK, 1)),
        (1, mark_info(MARK, MARK | 1, 0)),
        (0, mark_info(MARK, MARK, 0)),
        (1, vec![0; 8]),
    ] {
        let matches = extension("mark", revision, info.clone());
        let effect = effect_of(&[("match", &matches), ("immediate", &verdict(ACCEPT))]);
        assert_eq!(effect, Effect::Other, "{revision} {info:?}");
    }
}

/// What iptables 1.8.9 writes for `-m conntrack --ctstate RELATED,ESTABLISHED`: these words among zeros.
fn conntrack_info(flags: u16, inverted: u16, states: u16) -> Vec<u8> {
    let words = [flags, inverted, states].map(u16::to_ne_bytes).concat();
    [&[0; 146][..], &words, &[0; 16]].concat()
}

#[test]
fn accepting_known_connections_is_recognised_only_as_iptables_writes_it() {
    let effect = |revision, info: Vec<u8>, code| {
        let matches = extension("conntrack", revision, info);
        effect_of(&[("match", &matches), ("counter", &nothing), ("immediate", &verdict(code))])
    };
    let known = conntrack_info(1, 0, 6);
    assert_eq!(effect(3, known.clone(), ACCEPT), Effect::Accepts(Accepted::Known));
    for (revision, info, code, what) in [
        (3, known.clone(), DROP, "drop"),
        (2, known.clone(), ACCEPT, "of another shape"),
        (3, known[..151].to_vec(), ACCEPT, "cut off"),
        (3, conntrack_info(1, 1, 6), ACCEPT, "! --ctstate"),
        (3, conntrack_info(1, 0, 2), ACCEPT, "ESTABLISHED alone"),
        (3, conntrack_info(1, 0, 14), ACCEPT, "NEW too"),
        (3, conntrack_info(1 | 2, 0, 6), ACCEPT, "--ctproto too"),
        (3, conntrack_info(2, 0, 6), ACCEPT, "--ctproto"),
    ] {
        assert_eq!(effect(revision, info, code), Effect::Other, "{what}");
    }
    let matches = extension("conntrack", 3, known);
    let tcp = extension("tcp", 0, vec![0; 16]);
    let more = effect_of(&[("match", &matches), ("match", &tcp), ("immediate", &verdict(ACCEPT))]);
    assert_eq!(more, Effect::Other, "another match too");
}

/// The payload of the request that [`our_rules::insert`] makes.
fn inserted(chain: &HostChain, accepted: Accepted) -> Vec<u8> {
    let mut batch = Batch::default();
    our_rules::insert(&mut batch, chain, accepted);
    batch.as_bytes()[16..].to_vec()
}

#[test]
fn the_rules_that_are_put_into_a_chain_are_recognised_there() {
    for (chain, accepted) in [
        (input(), Accepted::Marked(MARK)),
        (of_iptables(), Accepted::Marked(MARK)),
        (of_iptables(), Accepted::Known),
        (chain(TableFamily::Ip6, "own", "in"), Accepted::Marked(MARK)),
    ] {
        let rule = rule::decode(&reply(&inserted(&chain, accepted)), &chain).unwrap().unwrap();
        assert_eq!((&*rule.comment, rule.effect), (COMMENT, Effect::Accepts(accepted)), "{chain}");
        assert!(our_rules::is_ours(&rule));
    }
}

#[test]
fn a_chain_of_iptables_gets_matches_of_iptables() {
    let contains = |payload: &[u8], bytes: &[u8]| payload.windows(bytes.len()).any(|window| window == bytes);
    let known = inserted(&of_iptables(), Accepted::Known);
    assert!(contains(&known, b"conntrack\0"));
    let size = u16::try_from(4 + 168).unwrap().to_ne_bytes();
    assert!(
        contains(&known, &[&size[..], &[3, 0], &conntrack_info(1, 0, 6)].concat()),
        "struct xt_conntrack_mtinfo3"
    );
    let holds = |chain: &HostChain, bytes: &[u8]| contains(&inserted(chain, Accepted::Marked(MARK)), bytes);
    assert!(holds(&of_iptables(), b"match\0"));
    let info = [&MARK.to_ne_bytes()[..], &MARK.to_ne_bytes(), &[0; 8]].concat();
    assert!(holds(&of_iptables(), &info), "struct xt_mark_mtinfo1 with its padding");
    for chain in
        [input(), chain(TableFamily::Ip, "filter", "input"), chain(TableFamily::Inet, "filter", "INPUT")]
    {
        assert!(!holds(&chain, b"match\0"), "{chain}");
    }
}

#[test]
fn a_rule_of_another_chain_is_left_out() {
    let payload = inserted(&input(), Accepted::Marked(MARK));
    for other in [
        chain(TableFamily::Ip, "filter", "input"),
        chain(TableFamily::Inet, "filters", "input"),
        chain(TableFamily::Inet, "filter", "inpu"),
    ] {
        assert_eq!(rule::decode(&reply(&payload), &other).unwrap(), None, "{other}");
    }
}

#[test]
fn a_comment_of_iptables_counts_as_one() {
    let payload = message(Message::NewRule, TableFamily::Ip, |encoder| {
        encoder.string(NFTA_RULE_TABLE, "filter");
        encoder.string(NFTA_RULE_CHAIN, "INPUT");
        encoder.nest(NFTA_RULE_EXPRESSIONS, |list| {
            list.nest(1, |entry| {
                entry.string(1, "match");
                entry.nest(2, extension("comment", 0, [COMMENT.as_bytes(), &[0; 100]].concat()));
            });
        });
    });
    let rule = rule::decode(&reply(&payload), &of_iptables()).unwrap().unwrap();
    assert_eq!(&*rule.comment, COMMENT);
}

fn rules(rules: &[(Effect, &str)]) -> Vec<Rule> {
    let numbered = rules.iter().zip(1..);
    numbered.map(|(&(effect, comment), handle)| Rule { handle, comment: comment.into(), effect }).collect()
}

const OTHER: (Effect, &str) = (Effect::Other, "");
const OURS: (Effect, &str) = (Effect::Accepts(Accepted::Marked(MARK)), COMMENT);
const ENDS: [(Effect, &str); 3] =
    [(Effect::Ends(End::Drop), ""), (Effect::Ends(End::Accept), ""), (Effect::Ends(End::Policy), "")];
const BY_HAND: (Effect, &str) = (Effect::Other, "kube-ipvs: NodePorts");

#[test]
fn the_first_rule_that_ends_a_chain_decides_and_otherwise_its_policy() {
    let [drop, accept, go_home] = ENDS;
    for (drops_by_policy, chain, how) in [
        (true, &[][..], Some(How::Policy)),
        (false, &[], None),
        (true, &[OTHER], Some(How::Policy)),
        (false, &[OTHER, drop], Some(How::LastRule)),
        (true, &[OTHER, drop], Some(How::LastRule)),
        (false, &[drop, accept, OTHER], Some(How::LastRule)),
        (true, &[OTHER, accept], None),
        (true, &[accept, drop], None),
        (true, &[go_home, accept], Some(How::Policy)),
        (false, &[go_home, drop], None),
    ] {
        let base = BaseChain { chain: input(), drops_by_policy };
        let closed = judge(base, &rules(chain), &[Accepted::Marked(MARK)]);
        assert_eq!(closed.map(|closed| closed.how), how, "{drops_by_policy} {chain:?}");
    }
}

#[test]
fn a_closed_chain_accepts_what_it_says_before_it_drops() {
    let [drop, ..] = ENDS;
    let without_comment = (Effect::Accepts(Accepted::Marked(MARK)), "");
    let with_an_old_mark = (Effect::Accepts(Accepted::Marked(MARK / 2)), COMMENT);
    for (chain, accepts) in [
        (&[OTHER, drop][..], Accepts::Nothing),
        (&[OURS, drop], Accepts::ByOurRules),
        (&[without_comment], Accepts::Nothing),
        (&[drop, OURS], Accepts::Nothing),
        (&[with_an_old_mark], Accepts::Nothing),
        (&[OTHER, BY_HAND], Accepts::ByHand),
        (&[BY_HAND, OURS], Accepts::ByHand),
        (&[drop, BY_HAND], Accepts::Nothing),
        (&[(Effect::Other, "not kube-ipvs")], Accepts::Nothing),
    ] {
        let base = BaseChain { chain: input(), drops_by_policy: true };
        assert_eq!(
            judge(base, &rules(chain), &[Accepted::Marked(MARK)]).unwrap().accepts,
            accepts,
            "{chain:?}"
        );
    }
}

#[test]
fn our_rules_are_settled_each_once_and_where_packets_reach_it() {
    let [drop, ..] = ENDS;
    let without_comment = (Effect::Accepts(Accepted::Marked(MARK)), "");
    let with_an_old_mark = (Effect::Accepts(Accepted::Marked(MARK / 2)), COMMENT);
    let known = (Effect::Accepts(Accepted::Known), COMMENT);
    let (one, both) = (&[Accepted::Marked(MARK)][..], &[Accepted::Known, Accepted::Marked(MARK)][..]);
    for (chain, wanted, settled) in [
        (&[OURS][..], one, true),
        (&[OTHER, OURS, drop], one, true),
        (&[], one, false),
        (&[drop, OURS], one, false),
        (&[OURS, OURS], one, false),
        (&[OURS, drop, OURS], one, false),
        (&[with_an_old_mark], one, false),
        (&[OURS, with_an_old_mark], one, false),
        (&[BY_HAND], one, false),
        // Another program's; rules before it may drop.
        (&[without_comment], one, false),
        (&[without_comment, OURS], one, true),
        (&[known, OURS], both, true),
        (&[OURS, OTHER, known], both, true),
        (&[known], both, false),
        (&[known, known], both, false),
        (&[known, drop, OURS], both, false),
        (&[known, OURS, OURS], both, false),
        (&[known, OURS], one, false),
        (&[known], one, false),
        (&[OTHER, BY_HAND, without_comment], &[], true),
        (&[OURS], &[], false),
        (&[drop, known], &[], false),
    ] {
        assert_eq!(our_rules::is_settled(&rules(chain), wanted), settled, "{chain:?} {wanted:?}");
    }
}

#[test]
fn each_value_of_the_flag_asks_for_its_rules_in_each_chain() {
    let forward =
        |chain: HostChain, name: &str| HostChain { name: name.into(), hook: Hook::Forward, ..chain };
    let asked = |host_firewall, chain: &HostChain| {
        let local_traffic = LocalTraffic::Source { ipv4: None, ipv6: None };
        wanted(&Policy { host_firewall, ..Policy::new(local_traffic) }, chain)
    };
    for (chain, as_kube_proxy) in [
        (of_iptables(), &[Accepted::Marked(MARK)][..]),
        (forward(of_iptables(), "FORWARD"), &[Accepted::Known, Accepted::Marked(0x4000)]),
        (chain(TableFamily::Ip6, "filter", "INPUT"), &[Accepted::Marked(MARK)]),
        (input(), &[]),
        (chain(TableFamily::Inet, "filter", "INPUT"), &[]),
        (forward(of_iptables(), "forward"), &[]),
        (chain(TableFamily::Ip, "firewall", "INPUT"), &[]),
    ] {
        assert_eq!(asked(HostFirewall::AsKubeProxy, &chain), as_kube_proxy, "{chain}");
        assert_eq!(asked(HostFirewall::Accept, &chain), [Accepted::Marked(MARK)], "{chain}");
        assert_eq!(asked(HostFirewall::Warn, &chain), [], "{chain}");
    }
}

fn chain_message(family: Nfproto, table: &str, kind: &str, hook: u32) -> Vec<u8> {
    message(Message::NewChain, family, |encoder| {
        encoder.string(1, table);
        encoder.string(3, "c");
        encoder.nest(4, |place| {
            place.u32_be(1, hook);
            place.u32_be(2, (-5i32).cast_unsigned());
        });
        encoder.u32_be(5, 0);
        encoder.string(7, kind);
    })
}

#[test]
fn filters_at_input_and_forward_are_the_hosts_chains_and_nothing_else_is() {
    const FAMILIES: [(u8, Option<TableFamily>); 6] = [
        (1, Some(TableFamily::Inet)),
        (2, Some(TableFamily::Ip)),
        (10, Some(TableFamily::Ip6)),
        (3, None),
        (5, None),
        (7, None),
    ];
    for (number, family) in FAMILIES {
        for (kind, hook, expected) in [
            ("filter", 1, Some(Hook::Input)),
            ("filter", 2, Some(Hook::Forward)),
            ("filter", 0, None),
            ("filter", 5, None),
            ("nat", 1, None),
        ] {
            let payload = chain_message(Nfproto(number), "t", kind, hook);
            let found = chain::decode_base(&reply(&payload)).unwrap();
            let expected = family.zip(expected).map(|(family, hook)| {
                let (table, name) = ("t".into(), "c".into());
                let chain = HostChain { backend: Backend::Nft, family, table, name, hook, priority: -5 };
                BaseChain { chain, drops_by_policy: true }
            });
            assert_eq!(found, expected, "family {number}, {kind}, hook {hook}");
        }
    }
}

#[test]
fn our_own_tables_are_not_the_hosts() {
    for (family, is_ours) in [(2, true), (10, true), (1, false)] {
        let payload = chain_message(Nfproto(family), "kube-ipvs", "filter", 1);
        assert_eq!(chain::decode_base(&reply(&payload)).unwrap().is_none(), is_ours, "{family}");
    }
}

#[test]
fn a_name_that_is_not_text_hides_only_its_own_chain() {
    let payload = message(Message::NewChain, TableFamily::Ip, |encoder| encoder.bytes(3, b"\xff\0"));
    assert_eq!(chain::decode_base(&reply(&payload)).unwrap(), None);
    let payload = message(Message::NewTable, TableFamily::Ip, |encoder| encoder.bytes(1, b"\xff\0"));
    assert_eq!(chain::decode_table(&reply(&payload)).unwrap(), None);
}

fn decode_everything(payload: &[u8]) {
    let _ = chain::decode_table(&reply(payload));
    let _ = chain::decode_base(&reply(payload));
    let _ = rule::decode(&reply(payload), &input());
}

proptest! {
    #[test]
    fn no_reply_makes_a_decoder_panic(payload in prop::collection::vec(any::<u8>(), 0..200)) {
        decode_everything(&payload);
    }

    #[test]
    fn no_expression_makes_a_decoder_panic(
        name in prop::sample::select(vec!["meta", "bitwise", "cmp", "immediate", "match", "target", "objref"]),
        extension in prop::sample::select(vec!["mark", "conntrack", "comment", "REJECT", "tcp"]),
        parts in prop::collection::vec((0u16..8, prop::collection::vec(any::<u8>(), 0..24)), 0..8),
    ) {
        effect_of(&[(name, &|data: &mut Encoder<'_>| {
            data.string(1, extension);
            for (kind, payload) in &parts {
                data.bytes(*kind, payload);
                data.nest(*kind, |inner| inner.nest(1, |inner| inner.bytes(1, payload)));
            }
        })]);
    }
}

#[test]
fn tables_are_listed_with_their_chains_and_what_base_chains_do() {
    let table = |family: u8, name: &str| {
        let payload = message(Message::NewTable, Nfproto(family), |encoder| encoder.string(1, name));
        chain::decode_table(&reply(&payload)).unwrap().unwrap()
    };
    let chain = |family: u8, name: &str, base: Option<(&str, u32, i32, u32)>| {
        let payload = message(Message::NewChain, Nfproto(family), |encoder| {
            encoder.string(1, "filter");
            encoder.string(3, name);
            if let Some((kind, hook, priority, policy)) = base {
                encoder.nest(4, |place| {
                    place.u32_be(1, hook);
                    place.u32_be(2, priority.cast_unsigned());
                });
                encoder.u32_be(5, policy);
                encoder.string(7, kind);
            }
        });
        chain::decode_any(&reply(&payload)).unwrap().unwrap()
    };
    let mut inet = table(1, "filter");
    inet.chains = vec![chain(1, "input", Some(("filter", 1, -10, 0))), chain(1, "allowed", None)];
    let mut netdev = table(5, "filter");
    netdev.chains = vec![chain(5, "in", Some(("filter", 0, 0, 1)))];
    let expected = "\
table inet filter
  chain input: type filter hook input priority -10, policy drop
  chain allowed
table netdev filter
  chain in: type filter hook 0 priority 0, policy accept
table 12 empty
";
    assert_eq!([inet, netdev, table(12, "empty")].map(|table| table.to_string()).concat(), expected);
}
