use ipvs::{Protocol, ServiceAddress};
use proptest::{
    collection::{hash_set, vec},
    prelude::*,
    sample::select,
};

use super::*;
use crate::AllowedSource;

fn range(first: &str, last: &str) -> Element {
    let to = ServiceAddress { protocol: Protocol::Tcp, ip: [192, 0, 2, 1].into(), port: 443 };
    let [first, last] = [first, last].map(|ip| ip.parse().unwrap());
    Element::AllowedSource(AllowedSource { to, first, last })
}

#[test]
fn what_goes_goes_before_what_comes_and_what_is_as_wanted_stays() {
    let vip = Operation::AddElement(Element::Vip([192, 0, 2, 1].into()));
    let [wide, narrow, absent, kept] = [
        range("10.0.0.0", "10.255.255.255"),
        range("10.1.0.0", "10.1.255.255"),
        range("11.0.0.0", "11.0.0.1"),
        range("12.0.0.0", "12.0.0.1"),
    ];
    let operations = [
        Operation::AddElement(narrow),
        Operation::AddElement(kept),
        Operation::DeleteElement(absent),
        vip,
        Operation::DeleteElement(wide),
    ];
    let settled = settle_intervals(&operations, Family::V4, &HashSet::from([wide, kept]));
    assert_eq!(settled, [vip, Operation::DeleteElement(wide), Operation::AddElement(narrow)]);
}

#[test]
fn of_several_changes_to_one_interval_the_last_counts() {
    let range = range("10.0.0.0", "10.0.0.255");
    let (add, delete) = (Operation::AddElement(range), Operation::DeleteElement(range));
    let (there, gone) = (HashSet::from([range]), HashSet::new());
    assert_eq!(settle_intervals(&[add, delete], Family::V4, &there), [delete]);
    assert_eq!(settle_intervals(&[add, delete], Family::V4, &gone), []);
    assert_eq!(settle_intervals(&[delete, add], Family::V4, &there), []);
    assert_eq!(settle_intervals(&[delete, add], Family::V4, &gone), [add]);
}

#[test]
fn only_deletions_of_intervals_need_a_look_in_their_family() {
    let delete = [Operation::DeleteElement(range("10.0.0.0", "10.0.0.255"))];
    assert!(deletes_intervals(&delete, Family::V4));
    assert!(!deletes_intervals(&delete, Family::V6));
    let vip = Element::Vip([192, 0, 2, 1].into());
    assert!(!deletes_intervals(&[Operation::DeleteElement(vip)], Family::V4));
    assert!(!deletes_intervals(&[Operation::AddElement(range("10.0.0.0", "10.0.0.255"))], Family::V4));
}

fn range_of(family: Family, number: u8) -> Element {
    match family {
        Family::V4 => range(&format!("10.{number}.0.0"), &format!("10.{number}.255.255")),
        Family::V6 => {
            let to = ServiceAddress { protocol: Protocol::Tcp, ip: "fd00::1".parse().unwrap(), port: 443 };
            let [first, last] = ["", "ff"].map(|end| format!("fd0{number}::{end}").parse().unwrap());
            Element::AllowedSource(AllowedSource { to, first, last })
        }
    }
}

/// Few, so that changes meet: intervals of both families, and an element that is none.
fn elements() -> Vec<Element> {
    let ranges = Family::BOTH.into_iter().flat_map(|family| (0..4).map(move |it| range_of(family, it)));
    ranges.chain([Element::Vip([192, 0, 2, 1].into())]).collect()
}

fn operation() -> impl Strategy<Value = Operation> {
    (select(elements()), any::<bool>()).prop_map(|(element, add)| match add {
        true => Operation::AddElement(element),
        false => Operation::DeleteElement(element),
    })
}

fn of_an_interval(operation: &Operation, family: Family) -> Option<(Element, bool)> {
    let (element, added) = match operation {
        Operation::AddElement(element) => (*element, true),
        Operation::DeleteElement(element) => (*element, false),
        _ => return None,
    };
    (element.is_interval() && element.family() == family).then_some((element, added))
}

proptest! {
    #[test]
    fn last_change_to_each_interval_counts_and_no_missing_one_is_deleted(
        operations in vec(operation(), 0..20),
        there in hash_set(select(elements()), 0..9),
    ) {
        let family = Family::V4;
        let mut wanted = there.clone();
        for (element, add) in operations.iter().filter_map(|operation| of_an_interval(operation, family)) {
            if add { wanted.insert(element) } else { wanted.remove(&element) };
        }
        let mut kernel = there.clone();
        for operation in settle_intervals(&operations, family, &there) {
            match of_an_interval(&operation, family) {
                Some((element, true)) => prop_assert!(kernel.insert(element), "{operation} is there"),
                Some((element, false)) => prop_assert!(kernel.remove(&element), "{operation} is not there"),
                None => {}
            }
        }
        prop_assert_eq!(kernel, wanted);
    }

    #[test]
    fn intervals_come_last_and_those_that_go_before_those_that_come(
        operations in vec(operation(), 0..20),
        there in hash_set(select(elements()), 0..9),
    ) {
        let family = Family::V4;
        let settled = settle_intervals(&operations, family, &there);
        let is_other = |operation: &&Operation| of_an_interval(operation, family).is_none();
        let others: Vec<_> = operations.iter().filter(is_other).copied().collect();
        prop_assert!(settled.starts_with(&others), "the rest is as it was: {:?}", settled);
        let intervals = settled.iter().skip(others.len()).map(|operation| of_an_interval(operation, family));
        let added: Vec<_> = intervals.map(|it| it.map(|(_, added)| added)).collect();
        prop_assert!(!added.contains(&None) && added.is_sorted(), "{:?}", settled);
    }
}

fn cluster_ips(count: u16) -> Vec<Element> {
    let ip = [10, 96, 0, 1].into();
    let address = |port| ServiceAddress { protocol: Protocol::Tcp, ip, port };
    (0..count).map(|port| Element::ClusterIp(address(port))).collect()
}

#[test]
fn a_transaction_prints_one_request_a_line() {
    let mut transaction = Transaction::default();
    transaction.push(Request::AddTable(Family::V4));
    transaction.add_elements(&cluster_ips(2));
    transaction.delete_elements(&cluster_ips(6));
    insta::assert_snapshot!(transaction, @r##"
    add table ip kube-ipvs
    add element ip kube-ipvs cluster-ips { 10.96.0.1 . tcp . 0, 10.96.0.1 . tcp . 1 }
    add element ip kube-ipvs cluster-ips { 10.96.0.1 . tcp . 0, 10.96.0.1 . tcp . 1, 10.96.0.1 . tcp . 2, 10.96.0.1 . tcp . 3, … 2 more }
    delete element ip kube-ipvs cluster-ips { 10.96.0.1 . tcp . 0, 10.96.0.1 . tcp . 1, 10.96.0.1 . tcp . 2, 10.96.0.1 . tcp . 3, … 2 more }
    "##);
}

#[test]
fn the_begin_is_request_0_and_each_operation_one_request() {
    let mut transaction = Transaction::default();
    transaction.push(Request::AddTable(Family::V6));
    transaction.add_elements(&cluster_ips(2500));
    let batch = transaction.encode(None);
    assert_eq!(batch.len(), 1 + 1 + 5 + 1);
    assert_eq!(transaction.describe(1), "add table ip6 kube-ipvs");
    assert!(transaction.describe(6).ends_with("10.96.0.1 . tcp . 2403, … 96 more }"));
    for outside in [0, 7] {
        assert_eq!(transaction.describe(outside), "commit the transaction");
    }
}
