//! Our tables on the real kernel, cross-checked with the nft program.

use std::{
    collections::{BTreeSet, HashSet},
    net::{Ipv4Addr, Ipv6Addr},
    time::Instant,
};

use ipvs::{Family, Protocol, RealServerAddress, ServiceAddress};
use netfilter::{
    Change, Element, Error, HairpinFlow, HostFirewall, KernelNetfilter, LocalTraffic, Netfilter, Observed,
    Policy, Ruleset,
};

use crate::{
    host::in_fresh_namespace,
    programs::{nft, run},
};

const INSTALL: [Change; 2] = [Change::InstallTable(Family::V4), Change::InstallTable(Family::V6)];

fn policy(local_traffic: LocalTraffic) -> Policy {
    Policy { masquerade_all: false, mark: 0x4000, local_traffic, host_firewall: HostFirewall::Warn }
}

fn by_source() -> Policy {
    policy(LocalTraffic::Source {
        ipv4: Some("10.244.0.0/16".parse().unwrap()),
        ipv6: Some("fd00:10:244::/56".parse().unwrap()),
    })
}

fn cluster_ip(ip: &str, port: u16) -> Element {
    Element::ClusterIp(ServiceAddress { protocol: Protocol::Tcp, ip: ip.parse().unwrap(), port })
}

fn external(ip: &str, port: u16) -> Element {
    Element::External(ServiceAddress { protocol: Protocol::Sctp, ip: ip.parse().unwrap(), port })
}

fn hairpin(ip: &str, port: u16) -> Element {
    Element::Hairpin(HairpinFlow {
        protocol: Protocol::Udp,
        pod: RealServerAddress { ip: ip.parse().unwrap(), port },
    })
}

fn some_elements() -> Vec<Element> {
    vec![
        cluster_ip("10.96.0.1", 443),
        cluster_ip("fd00::1", 443),
        external("192.0.2.1", 30080),
        external("2001:db8::1", 30080),
        hairpin("10.244.0.7", 53),
        hairpin("fd00:10:244::7", 53),
    ]
}

fn add(elements: &[Element]) -> Vec<Change> {
    elements.iter().copied().map(Change::AddElement).collect()
}

fn delete(elements: &[Element]) -> Vec<Change> {
    elements.iter().copied().map(Change::DeleteElement).collect()
}

fn both(elements: &[Element]) -> Observed {
    Observed {
        installed: BTreeSet::from(Family::BOTH),
        elements: elements.iter().copied().collect::<HashSet<_>>(),
    }
}

/// Tables with some elements, in a fresh namespace.
fn with_installed(test: impl FnOnce(&mut KernelNetfilter) + Send) {
    in_fresh_namespace(|| {
        let mut netfilter = KernelNetfilter::open(&by_source()).unwrap();
        netfilter.apply(&[&INSTALL[..], &add(&some_elements())].concat()).unwrap();
        test(&mut netfilter);
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn what_is_installed_is_what_nft_lists_for_every_policy() {
    let without_range = LocalTraffic::Source { ipv4: None, ipv6: None };
    let everything = LocalTraffic::Source {
        ipv4: Some("0.0.0.0/0".parse().unwrap()),
        ipv6: Some("::/0".parse().unwrap()),
    };
    let one_address = LocalTraffic::Source {
        ipv4: Some("10.0.0.1/32".parse().unwrap()),
        ipv6: Some("fd00::1/128".parse().unwrap()),
    };
    let odd_length = LocalTraffic::Source {
        ipv4: Some("10.11.12.13/13".parse().unwrap()),
        ipv6: Some("fd00:1234:5678::/45".parse().unwrap()),
    };
    for policy in [
        by_source(),
        policy(without_range.clone()),
        policy(everything),
        policy(one_address),
        policy(odd_length),
        policy(LocalTraffic::Bridge("cbr0".into())),
        policy(LocalTraffic::Bridge("a-name-of-15-by".into())),
        policy(LocalTraffic::InterfacePrefix("veth".into())),
        Policy {
            masquerade_all: true,
            mark: 1 << 30,
            local_traffic: without_range,
            host_firewall: HostFirewall::Warn,
        },
    ] {
        in_fresh_namespace(|| {
            let mut netfilter = KernelNetfilter::open(&policy).unwrap();
            netfilter.apply(&INSTALL).unwrap();
            let expected = Family::BOTH.map(|family| Ruleset::new(&policy, family).to_string());
            assert_eq!(run("nft list ruleset"), expected.concat(), "{policy:?}");
            assert_eq!(netfilter.observe().unwrap(), both(&[]), "{policy:?}");
        });
    }
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn nothing_is_observed_where_nothing_is_installed() {
    in_fresh_namespace(|| {
        let mut netfilter = KernelNetfilter::open(&by_source()).unwrap();
        assert_eq!(netfilter.observe().unwrap(), Observed::default());
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn one_family_is_installed_without_the_other() {
    in_fresh_namespace(|| {
        let mut netfilter = KernelNetfilter::open(&by_source()).unwrap();
        netfilter.apply(&[Change::InstallTable(Family::V6)]).unwrap();
        assert_eq!(netfilter.observe().unwrap().installed, BTreeSet::from([Family::V6]));
    });
}

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
        let absent = [cluster_ip("10.96.0.2", 80), hairpin("fd00::9", 1)];
        netfilter.apply(&delete(&absent)).unwrap();
        assert_eq!(netfilter.observe().unwrap(), both(&some_elements()));
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn a_deletion_removes_those_elements_and_no_others() {
    with_installed(|netfilter| {
        let (gone, left) = (&some_elements()[..2], &some_elements()[2..]);
        // Twice, and with one that is not there: present and absent elements share a request.
        netfilter.apply(&delete(&[gone, &[cluster_ip("10.96.9.9", 1)], gone].concat())).unwrap();
        assert_eq!(netfilter.observe().unwrap(), both(left));
        netfilter.apply(&add(gone)).unwrap();
        assert_eq!(netfilter.observe().unwrap(), both(&some_elements()));
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn changes_to_one_element_take_effect_in_their_order() {
    with_installed(|netfilter| {
        let element = cluster_ip("10.96.0.3", 80);
        let (add, delete) = (Change::AddElement(element), Change::DeleteElement(element));
        netfilter.apply(&[add, delete, add]).unwrap();
        assert!(netfilter.observe().unwrap().elements.contains(&element));
        netfilter.apply(&[delete, add, delete]).unwrap();
        assert!(!netfilter.observe().unwrap().elements.contains(&element));
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn an_installed_table_is_not_written_again() {
    with_installed(|netfilter| {
        let before = run("nft -a list ruleset");
        netfilter.apply(&INSTALL).unwrap();
        assert_eq!(run("nft -a list ruleset"), before, "handles show that nothing was replaced");
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn drift_is_noticed_and_repaired_and_the_elements_stay() {
    for drift in [
        "flush chain ip kube-ipvs services",
        "flush table ip kube-ipvs",
        "add rule ip kube-ipvs services accept",
        "insert rule ip kube-ipvs postrouting ip saddr 1.2.3.4 return comment \"marked flows\"",
        "add chain ip kube-ipvs more",
        "add chain ip kube-ipvs more { type nat hook input priority 100; }",
        "add chain ip kube-ipvs prerouting { type nat hook prerouting priority dstnat; policy drop; }",
        "flush chain ip kube-ipvs output; delete chain ip kube-ipvs output",
        "flush chain ip kube-ipvs output; delete chain ip kube-ipvs output; \
         add chain ip kube-ipvs output { type nat hook output priority -90; }; \
         add rule ip kube-ipvs output jump services",
        "flush chain ip kube-ipvs output; delete chain ip kube-ipvs output; \
         add chain ip kube-ipvs output { type route hook output priority -100; }; \
         add rule ip kube-ipvs output jump services",
        "add set ip kube-ipvs more { type ipv4_addr; }",
        "add table ip kube-ipvs { flags dormant; }",
    ] {
        with_installed(|netfilter| {
            nft(drift);
            let observed = netfilter.observe().unwrap();
            assert_eq!(observed.installed, BTreeSet::from([Family::V6]), "{drift}");
            assert_eq!(observed.elements, both(&some_elements()).elements, "{drift}");
            netfilter.apply(&INSTALL).unwrap();
            assert_eq!(netfilter.observe().unwrap(), both(&some_elements()), "{drift}");
        });
    }
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn one_deleted_rule_is_noticed_and_comes_back_in_its_place() {
    with_installed(|netfilter| {
        let listed = run("nft -a list chain ip kube-ipvs services");
        let handle = listed
            .lines()
            .find(|line| line.contains("loopback"))
            .and_then(|line| line.rsplit(' ').next())
            .unwrap()
            .to_owned();
        run(&format!("nft delete rule ip kube-ipvs services handle {handle}"));
        assert!(!netfilter.observe().unwrap().installed.contains(&Family::V4));
        netfilter.apply(&INSTALL).unwrap();
        let list = || {
            run("nft -s list ruleset")
                .lines()
                .filter(|l| !l.contains("elements"))
                .collect::<Vec<_>>()
                .join("\n")
        };
        let expected = Family::BOTH.map(|family| Ruleset::new(&by_source(), family).to_string()).concat();
        assert_eq!(list(), expected.trim_end());
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn rules_in_another_order_are_not_ours() {
    with_installed(|netfilter| {
        let chain = run("nft list chain ip kube-ipvs postrouting");
        let mut rules: Vec<&str> = chain.lines().filter(|line| line.contains("comment")).collect();
        rules.reverse();
        let again = rules.iter().map(|rule| format!("add rule ip kube-ipvs postrouting {}\n", rule.trim()));
        nft(&format!("flush chain ip kube-ipvs postrouting\n{}", again.collect::<String>()));
        assert!(!netfilter.observe().unwrap().installed.contains(&Family::V4));
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn rules_of_another_policy_are_not_installed_and_are_replaced() {
    with_installed(|_| {
        let all = Policy { masquerade_all: true, ..by_source() };
        let mut netfilter = KernelNetfilter::open(&all).unwrap();
        assert_eq!(netfilter.observe().unwrap().installed, BTreeSet::new());
        netfilter.apply(&INSTALL).unwrap();
        assert_eq!(netfilter.observe().unwrap(), both(&some_elements()));
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn a_set_with_another_key_is_replaced_and_the_other_sets_elements_are_put_back() {
    with_installed(|netfilter| {
        nft("flush chain ip kube-ipvs postrouting
             delete set ip kube-ipvs hairpin
             add set ip kube-ipvs hairpin { type ipv4_addr; elements = { 10.0.0.1 }; }");
        netfilter.apply(&INSTALL).unwrap();
        let expected: Vec<_> =
            some_elements().into_iter().filter(|e| *e != hairpin("10.244.0.7", 53)).collect();
        assert_eq!(netfilter.observe().unwrap(), both(&expected));
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn the_table_of_a_version_without_external_addresses_is_replaced_and_its_elements_stay() {
    with_installed(|netfilter| {
        for table in ["ip kube-ipvs", "ip6 kube-ipvs"] {
            nft(&format!("flush chain {table} services; delete set {table} external"));
        }
        let rest: Vec<_> = some_elements().into_iter().filter(|e| e.set() != "external").collect();
        let expected = Observed { installed: BTreeSet::new(), ..both(&rest) };
        assert_eq!(netfilter.observe().unwrap(), expected);
        netfilter.apply(&INSTALL).unwrap();
        assert_eq!(netfilter.observe().unwrap(), both(&rest));
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn a_deleted_table_is_installed_again_with_the_elements_given() {
    with_installed(|netfilter| {
        run("nft flush ruleset");
        assert_eq!(netfilter.observe().unwrap(), Observed::default());
        netfilter.apply(&[&add(&some_elements()), &INSTALL[..]].concat()).unwrap();
        assert_eq!(netfilter.observe().unwrap(), both(&some_elements()), "tables come first");
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn a_failing_transaction_changes_nothing_and_names_the_object() {
    in_fresh_namespace(|| {
        let mut netfilter = KernelNetfilter::open(&by_source()).unwrap();
        netfilter.apply(&[Change::InstallTable(Family::V4)]).unwrap();
        let elements = [cluster_ip("10.96.0.1", 443), cluster_ip("fd00::1", 443)];
        let error = netfilter.apply(&add(&elements)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "nf_tables transaction rolled back: cannot add element ip6 kube-ipvs cluster-ips { fd00::1 . tcp . 443 }"
        );
        let Error::RolledBack { source, .. } = &error else { panic!("{error:?}") };
        assert_eq!(source.errno(), Some(netlink::Errno::ENOENT));
        assert_eq!(netfilter.observe().unwrap().elements, HashSet::new());
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn other_tables_are_neither_read_nor_touched() {
    with_installed(|netfilter| {
        let foreign = "table inet somebody-else {
            set cluster-ips { type ipv4_addr . inet_proto . inet_service; elements = { 1.2.3.4 . tcp . 5 }; }
            chain services { accept; }
        }
        table ip another { chain services { type nat hook output priority -100; accept; }; }";
        nft(foreign);
        let list = || run("nft -a list table inet somebody-else") + &run("nft -a list table ip another");
        let before = list();
        assert_eq!(netfilter.observe().unwrap(), both(&some_elements()));
        nft("flush table ip kube-ipvs");
        netfilter.apply(&INSTALL).unwrap();
        nft("delete table ip kube-ipvs");
        netfilter.apply(&INSTALL).unwrap();
        assert_eq!(list(), before);
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn a_repair_that_others_interfere_with_still_comes_out_right() {
    with_installed(|netfilter| {
        std::thread::scope(|scope| {
            // Threads share the namespace of the thread that starts them.
            let other = scope.spawn(|| {
                for _ in 0..40 {
                    run("nft add table ip noise");
                    run("nft delete table ip noise");
                }
            });
            let mut repairs = 0;
            while !other.is_finished() {
                nft("flush table ip kube-ipvs");
                match netfilter.apply(&INSTALL) {
                    Ok(()) => repairs += 1,
                    Err(error) => assert!(format!("{error:?}").contains("ERESTART"), "{error:?}"),
                }
            }
            assert!(repairs > 0);
        });
        netfilter.apply(&INSTALL).unwrap();
        assert_eq!(netfilter.observe().unwrap(), both(&some_elements()));
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn a_hundred_thousand_elements_fit_into_one_transaction() {
    in_fresh_namespace(|| {
        let mut netfilter = KernelNetfilter::open(&by_source()).unwrap();
        let elements: Vec<Element> = (0..50_000u32)
            .flat_map(|n| {
                let vip = Ipv4Addr::from_bits(0x0a60_0000 + n);
                let pod = Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(n));
                [cluster_ip(&vip.to_string(), 80), hairpin(&pod.to_string(), 8080)]
            })
            .collect();
        let mut sorted = elements.clone();
        sorted.sort_unstable();
        let mut timed = |what: &str, changes: &[Change]| {
            let start = Instant::now();
            netfilter.apply(changes).unwrap();
            eprintln!("{what}: {:?}", start.elapsed());
        };
        timed("both tables and 100,000 elements", &[&INSTALL[..], &add(&sorted)].concat());
        timed("one more element", &add(&[cluster_ip("10.95.0.1", 1)]));
        timed("the same element deleted", &delete(&[cluster_ip("10.95.0.1", 1)]));
        timed("the tables as they are", &INSTALL);
        let start = Instant::now();
        let observed = netfilter.observe().unwrap();
        eprintln!("observe: {:?}", start.elapsed());
        assert_eq!(observed, both(&elements));
        let start = Instant::now();
        netfilter.apply(&delete(&sorted)).unwrap();
        eprintln!("100,000 elements deleted: {:?}", start.elapsed());
        assert_eq!(netfilter.observe().unwrap(), both(&[]));
    });
}
