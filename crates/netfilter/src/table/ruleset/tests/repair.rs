//! The transactions that make a table right.

use insta::assert_snapshot;

use super::*;
use crate::nft::counter::ObservedObject;

/// What the kernel shows when `ruleset` is installed.
fn installed(ruleset: &Ruleset) -> ObservedTable {
    let family = ruleset.family;
    ObservedTable {
        flags: 0,
        objects: ruleset
            .counters
            .iter()
            .map(|counter| ObservedObject {
                family: Some(family),
                name: counter.name().into(),
                packets: Some(0),
            })
            .collect(),
        sets: ruleset.sets.iter().map(|set| set.observed(family)).collect(),
        chains: ruleset.chains.iter().map(Chain::observed).collect(),
        rules: ruleset
            .chains
            .iter()
            .flat_map(|chain| chain.rules.iter().map(move |rule| (chain.name, rule)))
            .map(|(chain, rule)| ObservedRule {
                chain: chain.into(),
                comment: rule.comment(family).into(),
                keeps_destination: rule.statements.contains(&Statement::DnatToDaddr),
            })
            .collect(),
    }
}

/// The transaction that makes `table` right.
fn repair(table: Option<&ObservedTable>, elements: &[Vec<Element>]) -> String {
    repair_with(table, &Elements { ours: elements.to_vec(), has_foreign: false })
}

fn repair_with(table: Option<&ObservedTable>, elements: &Elements) -> String {
    let ruleset = Ruleset::new(&by_source(), Family::V4);
    let mut transaction = Transaction::default();
    ruleset.install(&mut transaction, table, elements);
    transaction.to_string()
}

#[test]
fn installing_where_nothing_is() {
    let transaction = repair(None, &[]);
    let objects: Vec<_> = transaction.lines().filter(|line| !line.starts_with("add rule")).collect();
    assert_snapshot!(objects.join("\n"), @r##"
    add table ip kube-ipvs
    add counter ip kube-ipvs drop-vip-as-source
    add counter ip kube-ipvs drop-source-range
    add counter ip kube-ipvs drop-no-local-endpoint
    add counter ip kube-ipvs drop-tunnel
    add counter ip kube-ipvs reject-no-service
    add counter ip kube-ipvs masquerade-marked
    add counter ip kube-ipvs masquerade-hairpin
    add counter ip kube-ipvs masquerade-no-tunnel
    add counter ip kube-ipvs tunnel-sent
    add counter ip kube-ipvs tunnel-received
    add set ip kube-ipvs vips { type ipv4_addr; }
    add set ip kube-ipvs restricted { type ipv4_addr . inet_proto . inet_service; }
    add set ip kube-ipvs allowed-sources { type ipv4_addr . inet_proto . inet_service . ipv4_addr; flags interval; }
    add set ip kube-ipvs cluster-ips { type ipv4_addr . inet_proto . inet_service; }
    add set ip kube-ipvs external { type ipv4_addr . inet_proto . inet_service; }
    add set ip kube-ipvs external-local { type ipv4_addr . inet_proto . inet_service; }
    add set ip kube-ipvs local-clients-only { type ipv4_addr . inet_proto . inet_service; }
    add set ip kube-ipvs hairpin { type ipv4_addr . inet_proto . inet_service . ipv4_addr; }
    add set ip kube-ipvs health-check-ports { type inet_proto . inet_service; }
    add set ip kube-ipvs untracked { type ipv4_addr . inet_proto . inet_service; }
    add set ip kube-ipvs untracked-endpoints { type ipv4_addr . inet_proto . inet_service; }
    add set ip kube-ipvs tracked-clients { type ipv4_addr; }
    add chain ip kube-ipvs kept-destinations
    add chain ip kube-ipvs from-outside
    add chain ip kube-ipvs source-ranges
    add chain ip kube-ipvs new-flows
    add chain ip kube-ipvs vip-ports
    add chain ip kube-ipvs local-clients
    add chain ip kube-ipvs nat-prerouting { type nat hook prerouting priority -101; policy accept; }
    add chain ip kube-ipvs nat-output { type nat hook output priority -101; policy accept; }
    add chain ip kube-ipvs nat-postrouting { type nat hook postrouting priority 99; policy accept; }
    add chain ip kube-ipvs filter-input { type filter hook input priority 0; policy accept; }
    add chain ip kube-ipvs filter-output { type filter hook output priority -102; policy accept; }
    "##);
    assert!(transaction.ends_with(&all_rules()), "rules last, when every chain that they jump to exists");
}

#[test]
fn what_is_installed_needs_no_transaction() {
    let table = installed(&Ruleset::new(&by_source(), Family::V4));
    assert_eq!(repair(Some(&table), &[]), "");
}

/// The requests that add the rules of a table that is not there yet.
fn all_rules() -> String {
    let fresh = repair(None, &[]);
    fresh.split_inclusive('\n').filter(|line| line.starts_with("add rule")).collect()
}

#[test]
fn a_missing_rule_fills_the_chains_anew_and_leaves_the_sets_alone() {
    let mut table = installed(&Ruleset::new(&by_source(), Family::V4));
    table.rules.remove(0);
    assert_eq!(repair(Some(&table), &[]), format!("flush table ip kube-ipvs\n{}", all_rules()));
}

#[test]
fn a_foreign_chain_goes_and_a_missing_one_comes() {
    let mut table = installed(&Ruleset::new(&by_source(), Family::V4));
    table.chains.retain(|chain| &*chain.name != "filter-output");
    table.chains.push(ObservedChain { name: "foreign".into(), hook: None });
    let chains = "delete chain ip kube-ipvs foreign\n\
        add chain ip kube-ipvs filter-output { type filter hook output priority -102; policy accept; }\n";
    assert_eq!(repair(Some(&table), &[]), format!("flush table ip kube-ipvs\n{chains}{}", all_rules()));
}

#[test]
fn what_cannot_be_ours_in_a_set_goes_with_the_table_and_ours_are_put_back() {
    let table = installed(&Ruleset::new(&by_source(), Family::V4));
    let element = Element::Vip([10, 96, 0, 1].into());
    let transaction = repair_with(Some(&table), &Elements { ours: vec![vec![element]], has_foreign: true });
    assert!(transaction.starts_with("delete table ip kube-ipvs\nadd table ip kube-ipvs\n"), "{transaction}");
    assert!(transaction.ends_with("\nadd element ip kube-ipvs vips { 10.96.0.1 }\n"), "{transaction}");
}

#[test]
fn a_wrong_set_builds_the_table_anew_and_puts_known_elements_back() {
    let mut table = installed(&Ruleset::new(&by_source(), Family::V4));
    table.sets.push(ObservedSet::default());
    let element = Element::ClusterIp(ipvs::ServiceAddress {
        protocol: ipvs::Protocol::Tcp,
        ip: [10, 96, 0, 1].into(),
        port: 443,
    });
    let transaction = repair(Some(&table), &[vec![element], vec![]]);
    assert!(transaction.starts_with("delete table ip kube-ipvs\nadd table ip kube-ipvs\n"), "{transaction}");
    assert!(
        transaction.ends_with("\nadd element ip kube-ipvs cluster-ips { 10.96.0.1 . tcp . 443 }\n"),
        "{transaction}"
    );
}

/// The transactions that turn the usual table into one with direct return, and back.
#[test]
fn direct_return_comes_and_goes_while_everything_else_stays() {
    let [usual, extended] =
        [Ruleset::new, Ruleset::with_direct_return].map(|new| new(&by_source(), Family::V4));
    let change = |from: &Ruleset, to: &Ruleset| {
        let mut transaction = Transaction::default();
        to.install(&mut transaction, Some(&installed(from)), &Elements::default());
        let text = transaction.to_string();
        let (rules, objects): (Vec<_>, Vec<_>) = text.lines().partition(|line| line.starts_with("add rule"));
        assert_eq!(rules.len(), to.chains.iter().map(|chain| chain.rules.len()).sum::<usize>());
        objects.join("\n")
    };
    assert_snapshot!(change(&usual, &extended), @r##"
    flush table ip kube-ipvs
    add set ip kube-ipvs direct-return { type ipv4_addr . inet_proto . inet_service; }
    add map ip kube-ipvs cluster-ip-for { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; }
    add map ip kube-ipvs max-segment-sizes { type ipv4_addr . inet_proto . inet_service : inet_service; }
    add map ip kube-ipvs tunnel-exits { type ipv4_addr . ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; }
    add set ip kube-ipvs endpoints-here { type ipv4_addr; }
    add set ip kube-ipvs endpoints-elsewhere { type ipv4_addr; }
    add set ip kube-ipvs tunnel-senders { type ipv4_addr; }
    add chain ip kube-ipvs tunnel-senders-only
    add chain ip kube-ipvs tunnel-prerouting { type filter hook prerouting priority -390; policy accept; }
    add chain ip kube-ipvs tunnel-left { type filter hook prerouting priority -150; policy accept; }
    add chain ip kube-ipvs tunnel-postrouting { type filter hook postrouting priority -150; policy accept; }
    "##);
    assert_snapshot!(change(&extended, &usual), @r##"
    flush table ip kube-ipvs
    delete chain ip kube-ipvs tunnel-senders-only
    delete chain ip kube-ipvs tunnel-prerouting
    delete chain ip kube-ipvs tunnel-left
    delete chain ip kube-ipvs tunnel-postrouting
    delete set ip kube-ipvs direct-return
    delete map ip kube-ipvs cluster-ip-for
    delete map ip kube-ipvs max-segment-sizes
    delete map ip kube-ipvs tunnel-exits
    delete set ip kube-ipvs endpoints-here
    delete set ip kube-ipvs endpoints-elsewhere
    delete set ip kube-ipvs tunnel-senders
    "##);
}

/// What a rule does to a packet is what its counter says.
#[test]
fn whatever_is_dropped_rejected_or_masqueraded_is_counted_and_nothing_else() {
    let ruleset = Ruleset::with_direct_return(&Policy { gue: true, ..by_source() }, Family::V4);
    for rule in ruleset.chains.iter().flat_map(|chain| &chain.rules) {
        let verdict = rule.statements.iter().find_map(|statement| match statement {
            Statement::Drop => Some("drop"),
            Statement::Reject => Some("reject"),
            Statement::Masquerade { .. } => Some("masquerade"),
            _ => None,
        });
        let counter = rule.statements.iter().find_map(|statement| match statement {
            Statement::Count(counter) => Some(*counter),
            _ => None,
        });
        let counted = counter.and_then(PacketCounter::verdict).map(|(verdict, _)| verdict);
        assert_eq!(counted, verdict, "{rule:?}");
        assert_eq!(counter.map(|it| PacketCounter::from_name(it.name())), counter.map(Some));
    }
}

#[test]
fn a_table_of_a_version_that_did_not_count_gets_its_counters_before_its_rules() {
    let ruleset = Ruleset::new(&by_source(), Family::V4);
    let mut table = installed(&ruleset.without_counters());
    let counters = PacketCounter::ALL.map(|it| format!("add counter ip kube-ipvs {}\n", it.name())).concat();
    assert_eq!(repair(Some(&table), &[]), format!("flush table ip kube-ipvs\n{counters}{}", all_rules()));

    table.objects = installed(&Ruleset::new(&by_source(), Family::V4)).objects;
    assert_eq!(repair(Some(&table), &[]), format!("flush table ip kube-ipvs\n{}", all_rules()), "they stay");
}

#[test]
fn a_kernel_without_counters_has_the_same_rules_and_none_of_them_counts() {
    let ruleset = Ruleset::with_direct_return(&by_source(), Family::V4);
    let without = ruleset.clone().without_counters();
    let rules = |ruleset: &Ruleset| ruleset.chains.iter().map(|chain| chain.rules.len()).sum::<usize>();
    assert_eq!(rules(&without), rules(&ruleset));
    assert!(!without.to_string().contains("counter"), "{without}");
}

#[test]
fn a_table_takes_flows_from_others_once_it_is_installed_and_not_when_prepared() {
    for new in [Ruleset::new, Ruleset::with_direct_return] {
        let ruleset = new(&by_source(), Family::V4);
        assert!(installed(&ruleset).takes_flows());
        assert!(!installed(&ruleset.prepared()).takes_flows());
    }
}
