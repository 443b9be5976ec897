//! Elements are added, deleted and read back.

use ipvs::Family;
use netfilter::{ElementSet, Error, KernelNetfilter, Netfilter, Operation};

use super::{add, allowed, both, by_source, cluster_ip, delete, hairpin, some_elements, with_installed};
use crate::{support::host::in_fresh_namespace, support::programs::run};

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn elements_are_listed_by_nft_and_observed_as_they_were_added() {
    with_installed(|netfilter| {
        assert_eq!(netfilter.observe().unwrap(), both(&some_elements()));
        let listed = run("nft list ruleset");
        for text in [
            "10.96.0.1 . tcp . 443 }",
            "192.0.2.1 . sctp . 30080 }",
            "10.244.0.7 . udp . 53 . 10.244.0.7 }",
            "fd00::1 . tcp . 443 }",
            "set vips {\n\t\ttype ipv4_addr\n\t\telements = { 192.0.2.9 }",
            "192.0.2.9 . udp . 443 . 10.0.0.0/8",
            "192.0.2.9 . udp . 443 . 0.0.0.1-9.255.255.254",
            "2001:db8::9 . udp . 443 . 2001:db8:2::/48 }",
            "elements = { tcp . 30500 }",
        ] {
            assert!(listed.contains(text), "{text} is not in {listed}");
        }
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn adding_what_exists_and_deleting_what_does_not_changes_nothing() {
    with_installed(|netfilter| {
        netfilter.apply(&add(&some_elements())).unwrap();
        assert_eq!(netfilter.observe().unwrap(), both(&some_elements()));
        // The kernel itself would delete 10.0.0.0/8 in place of the part of it that is named here.
        let part = allowed("192.0.2.9", "10.1.0.0", "10.1.255.255");
        let absent = [cluster_ip("10.96.0.2", 80), hairpin("fd00::9", 1), part];
        netfilter.apply(&delete(&absent)).unwrap();
        assert_eq!(netfilter.observe().unwrap(), both(&some_elements()));
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn a_deletion_removes_those_elements_and_no_others() {
    with_installed(|netfilter| {
        let (gone, left): (Vec<_>, Vec<_>) =
            some_elements().into_iter().enumerate().partition(|(n, _)| n % 3 == 0);
        let [gone, left] =
            [gone, left].map(|part| part.into_iter().map(|(_, element)| element).collect::<Vec<_>>());
        let gone = gone.as_slice();
        // Twice, and with one that is not there: present and absent elements share a request.
        netfilter.apply(&delete(&[gone, &[cluster_ip("10.96.9.9", 1)], gone].concat())).unwrap();
        assert_eq!(netfilter.observe().unwrap(), both(&left));
        netfilter.apply(&add(gone)).unwrap();
        assert_eq!(netfilter.observe().unwrap(), both(&some_elements()));
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn changes_to_one_element_take_effect_in_their_order() {
    with_installed(|netfilter| {
        for element in [cluster_ip("10.96.0.3", 80), allowed("192.0.2.9", "11.0.0.0", "11.0.0.9")] {
            let (add, delete) = (Operation::AddElement(element), Operation::DeleteElement(element));
            netfilter.apply(&[add, delete, add]).unwrap();
            assert!(netfilter.observe().unwrap().elements.contains(&element), "{element}");
            netfilter.apply(&[delete, add, delete]).unwrap();
            assert!(!netfilter.observe().unwrap().elements.contains(&element), "{element}");
        }
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn a_failing_transaction_changes_nothing_and_names_the_object() {
    in_fresh_namespace(|| {
        let mut netfilter = KernelNetfilter::open(&by_source()).unwrap();
        netfilter.apply(&[Operation::InstallTable(Family::V4)]).unwrap();
        for element in some_elements().iter().filter(|element| element.family() == Family::V6) {
            let error = netfilter.apply(&add(&[cluster_ip("10.96.0.1", 443), *element])).unwrap_err();
            let named = format!("cannot add element ip6 kube-ipvs {} {{", element.set());
            assert!(error.to_string().contains(&named), "{error}");
        }
        let elements = [cluster_ip("10.96.0.1", 443), cluster_ip("fd00::1", 443)];
        let error = netfilter.apply(&add(&elements)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "nf_tables transaction rolled back: cannot add element ip6 kube-ipvs cluster-ips { fd00::1 . tcp . 443 }"
        );
        let Error::RolledBack { source, .. } = &error else { panic!("{error:?}") };
        assert_eq!(source.errno(), Some(netlink::Errno::ENOENT));
        assert_eq!(netfilter.observe().unwrap().elements, ElementSet::default());
    });
}
