//! Our tables on the real kernel, cross-checked with the nft program.

use std::{
    collections::{BTreeSet, HashSet},
    net::{Ipv4Addr, Ipv6Addr},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use ipvs::{Family, Protocol, RealServerAddress, ServiceAddress};
use netfilter::{
    AllowedSource, Element, Error, HairpinFlow, HealthCheckPort, HostFirewall, KernelNetfilter, LocalTraffic,
    Netfilter, Observed, Operation, Policy, Ruleset,
};
use netlink::{Batch, Socket, Transcript};

use crate::support::{
    host::in_fresh_namespace,
    programs::{nft, run},
};

const INSTALL: [Operation; 2] = [Operation::InstallTable(Family::V4), Operation::InstallTable(Family::V6)];

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

/// A load balancer's address.
fn restricted(ip: &str) -> ServiceAddress {
    ServiceAddress { protocol: Protocol::Udp, ip: ip.parse().unwrap(), port: 443 }
}

fn allowed(to: &str, first: &str, last: &str) -> Element {
    let [first, last] = [first, last].map(|ip| ip.parse().unwrap());
    Element::AllowedSource(AllowedSource { to: restricted(to), first, last })
}

/// One of each kind in each family.
fn some_elements() -> Vec<Element> {
    vec![
        cluster_ip("10.96.0.1", 443),
        cluster_ip("fd00::1", 443),
        external("192.0.2.1", 30080),
        external("2001:db8::1", 30080),
        Element::ExternalLocal(restricted("192.0.2.9")),
        Element::ExternalLocal(restricted("2001:db8::9")),
        hairpin("10.244.0.7", 53),
        hairpin("fd00:10:244::7", 53),
        Element::Vip("192.0.2.9".parse().unwrap()),
        Element::Vip("2001:db8::9".parse().unwrap()),
        Element::Restricted(restricted("192.0.2.9")),
        Element::Restricted(restricted("2001:db8::9")),
        allowed("192.0.2.9", "10.0.0.0", "10.255.255.255"),
        allowed("192.0.2.9", "0.0.0.1", "9.255.255.254"),
        allowed("192.0.2.9", "192.0.2.9", "192.0.2.9"),
        allowed("2001:db8::9", "2001:db8:2::", "2001:db8:2:ffff:ffff:ffff:ffff:ffff"),
        Element::HealthCheckPort(HealthCheckPort { family: Family::V4, port: 30500 }),
        Element::HealthCheckPort(HealthCheckPort { family: Family::V6, port: 30500 }),
    ]
}

fn add(elements: &[Element]) -> Vec<Operation> {
    elements.iter().copied().map(Operation::AddElement).collect()
}

fn delete(elements: &[Element]) -> Vec<Operation> {
    elements.iter().copied().map(Operation::DeleteElement).collect()
}

fn both(elements: &[Element]) -> Observed {
    Observed {
        installed: BTreeSet::from(Family::BOTH),
        prepared: BTreeSet::new(),
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
            host_firewall: HostFirewall::Accept,
        },
        Policy { mark: 0x2000, host_firewall: HostFirewall::Accept, ..by_source() },
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
        netfilter.apply(&[Operation::InstallTable(Family::V6)]).unwrap();
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
        "insert rule ip kube-ipvs nat-postrouting ip saddr 1.2.3.4 return comment \"marked flows\"",
        "add chain ip kube-ipvs more",
        "add chain ip kube-ipvs more { type nat hook input priority 100; }",
        "add chain ip kube-ipvs nat-prerouting { type nat hook prerouting priority -101; policy drop; }",
        "flush chain ip kube-ipvs nat-output; delete chain ip kube-ipvs nat-output",
        "flush chain ip kube-ipvs nat-output; delete chain ip kube-ipvs nat-output; \
         add chain ip kube-ipvs nat-output { type nat hook output priority -90; }; \
         add rule ip kube-ipvs nat-output jump services",
        "flush chain ip kube-ipvs nat-output; delete chain ip kube-ipvs nat-output; \
         add chain ip kube-ipvs nat-output { type route hook output priority -101; }; \
         add rule ip kube-ipvs nat-output jump services",
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
        let expected = Family::BOTH.map(|family| Ruleset::new(&by_source(), family).to_string()).concat();
        assert_eq!(run("nft --terse list ruleset"), expected);
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn rules_in_another_order_are_not_ours() {
    with_installed(|netfilter| {
        let chain = run("nft list chain ip kube-ipvs nat-postrouting");
        let mut rules: Vec<&str> = chain.lines().filter(|line| line.contains("comment")).collect();
        rules.reverse();
        let again =
            rules.iter().map(|rule| format!("add rule ip kube-ipvs nat-postrouting {}\n", rule.trim()));
        nft(&format!("flush chain ip kube-ipvs nat-postrouting\n{}", again.collect::<String>()));
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
fn a_set_with_another_definition_is_replaced_and_the_other_sets_elements_are_put_back() {
    const KEY: &str = "type ipv4_addr . inet_proto . inet_service . ipv4_addr";
    for definition in [
        "type ipv4_addr; elements = { 10.0.0.1 }",
        &format!("{KEY}; size 1000"),
        &format!("{KEY}; flags timeout"),
        &format!("{KEY}; timeout 1h"),
        &format!("{KEY}; flags dynamic"),
        &format!("{KEY}; flags interval"),
    ] {
        with_installed(|netfilter| {
            nft(&format!(
                "flush chain ip kube-ipvs nat-postrouting
                 delete set ip kube-ipvs hairpin
                 add set ip kube-ipvs hairpin {{ {definition}; }}"
            ));
            netfilter.apply(&INSTALL).unwrap();
            let expected: Vec<_> =
                some_elements().into_iter().filter(|e| *e != hairpin("10.244.0.7", 53)).collect();
            assert_eq!(netfilter.observe().unwrap(), both(&expected), "{definition}");
            assert!(!run("nft list set ip kube-ipvs hairpin").contains(definition));
        });
    }
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn what_somebody_put_into_our_sets_goes_even_if_it_cannot_be_ours() {
    for strange in [
        "allowed-sources { 192.0.2.0/24 . tcp . 80 . 0.0.0.0-10.5.5.0 }",
        "allowed-sources { 192.0.2.7 . tcp . 1-79 . 0.0.0.0/0 }",
        "cluster-ips { 10.96.0.7 . udplite . 22 }",
        "hairpin { 10.1.1.1 . tcp . 22 . 10.1.1.2 }",
        "health-check-ports { udp . 30000 }",
    ] {
        with_installed(|netfilter| {
            nft(&format!("add element ip kube-ipvs {strange}"));
            let seen = netfilter.observe().unwrap();
            assert_eq!(seen.installed, BTreeSet::from([Family::V6]), "{strange}");
            netfilter.apply(&INSTALL).unwrap();
            assert_eq!(netfilter.observe().unwrap(), both(&some_elements()), "{strange}");
        });
    }
}

/// Adds a table and deletes it, as `nft` would, but in less time than that needs to start.
fn another_tables_transaction() -> Batch {
    let [begin, end, new_table, delete_table] = [0x10, 0x11, 0xa00, 0xa02];
    let mut batch = Batch::default();
    batch.add(begin, 0, |encoder| encoder.raw(&[0, 0, 0, 10]));
    for kind in [new_table, delete_table] {
        batch.add(kind, 0, |encoder| {
            encoder.raw(&[2, 0, 0, 0]);
            encoder.string(1, "others");
        });
    }
    batch.add(end, 0, |encoder| encoder.raw(&[0, 0, 0, 10]));
    batch
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn tables_of_others_that_change_all_the_time_do_not_keep_ours_from_being_read_and_written() {
    with_installed(|netfilter| {
        let vips: Vec<_> =
            (0..20_000u32).map(|n| Element::Vip(Ipv4Addr::from(0x0a60_0000 + n).into())).collect();
        netfilter.apply(&add(&vips)).unwrap();
        let expected = both(&[some_elements(), vips].concat());
        let chains: Vec<_> = (0..20_000).map(|n| format!("chain chain-{n} {{ }}\n")).collect();
        nft(&format!("table ip many {{\n{}}}", chains.concat()));
        let busy = AtomicBool::new(true);
        thread::scope(|threads| {
            let (meanwhile, begun) = mpsc::channel();
            let busy = &busy;
            threads.spawn(move || {
                let mut socket = Socket::open(netlink::Protocol::Netfilter).unwrap();
                while busy.load(Ordering::Relaxed) {
                    socket.transact(&mut another_tables_transaction()).unwrap();
                    _ = meanwhile.send(());
                    thread::sleep(Duration::from_millis(1));
                }
            });
            begun.recv().unwrap();
            let tried: Vec<_> = (0..5)
                .map(|_| {
                    // A rule that is missing makes the whole table be read and repaired.
                    nft("flush chain ip kube-ipvs services");
                    let applied = netfilter.apply(&INSTALL);
                    (applied.map_err(|error| error.to_string()), netfilter.observe().ok())
                })
                .collect();
            busy.store(false, Ordering::Relaxed);
            assert_eq!(tried, vec![(Ok(()), Some(expected)); 5]);
        });
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn the_tables_of_an_earlier_version_are_replaced_and_their_elements_stay() {
    in_fresh_namespace(|| {
        for (family, address) in [("ip", "ipv4_addr"), ("ip6", "ipv6_addr")] {
            nft(&format!(
                "table {family} kube-ipvs {{
                    set cluster-ips {{ type {address} . inet_proto . inet_service; }}
                    set external {{ type {address} . inet_proto . inet_service; }}
                    set hairpin {{ type {address} . inet_proto . inet_service . {address}; }}
                    chain services {{ {family} daddr . meta l4proto . th dport @external meta mark set 0x4000; }}
                    chain output {{ type nat hook output priority -100; jump services; }}
                    chain postrouting {{ type nat hook postrouting priority 100; meta mark 0x4000 masquerade; }}
                }}"
            ));
        }
        let mut netfilter = KernelNetfilter::open(&by_source()).unwrap();
        let elements: Vec<_> = some_elements()
            .into_iter()
            .filter(|element| ["cluster-ips", "external", "hairpin"].contains(&element.set()))
            .collect();
        netfilter.apply(&add(&elements)).unwrap();
        let expected = Observed { installed: BTreeSet::new(), ..both(&elements) };
        assert_eq!(netfilter.observe().unwrap(), expected);
        netfilter.apply(&INSTALL).unwrap();
        assert_eq!(netfilter.observe().unwrap(), both(&elements));
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
fn a_new_table_leaves_destinations_to_others_until_it_is_installed_and_one_that_took_them_goes_on_taking_them()
 {
    const PREPARE: [Operation; 2] =
        [Operation::PrepareTable(Family::V4), Operation::PrepareTable(Family::V6)];
    in_fresh_namespace(|| {
        let kept = || run("nft list ruleset").matches("no hostPort of another table takes this").count();
        let mut netfilter = KernelNetfilter::open(&by_source()).unwrap();
        netfilter.apply(&[&PREPARE[..], &add(&some_elements())].concat()).unwrap();
        let prepared = Observed {
            installed: BTreeSet::new(),
            prepared: BTreeSet::from(Family::BOTH),
            ..both(&some_elements())
        };
        assert_eq!((netfilter.observe().unwrap(), kept()), (prepared.clone(), 0));
        netfilter.apply(&PREPARE).unwrap();
        assert_eq!((netfilter.observe().unwrap(), kept()), (prepared, 0), "by the next daemon");

        let rules = Family::BOTH.len() * 2 * 3;
        netfilter.apply(&INSTALL).unwrap();
        assert_eq!((netfilter.observe().unwrap(), kept()), (both(&some_elements()), rules));
        netfilter.apply(&PREPARE).unwrap();
        assert_eq!((netfilter.observe().unwrap(), kept()), (both(&some_elements()), rules));
        nft("flush chain ip kube-ipvs services");
        netfilter.apply(&PREPARE).unwrap();
        assert_eq!((netfilter.observe().unwrap(), kept()), (both(&some_elements()), rules), "repaired");
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
        assert_eq!(netfilter.observe().unwrap().elements, HashSet::new());
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn overlapping_ranges_replace_each_other_in_one_transaction() {
    let to = "192.0.2.9";
    let wide = [allowed(to, "10.0.0.0", "10.255.255.255")];
    let parts = [allowed(to, "10.1.0.0", "10.1.255.255"), allowed(to, "10.2.0.0", "10.2.255.255")];
    let same_start = [allowed(to, "10.1.0.0", "10.1.0.255")];
    in_fresh_namespace(|| {
        let mut netfilter = KernelNetfilter::open(&by_source()).unwrap();
        netfilter.apply(&[&INSTALL[..], &add(&wide)].concat()).unwrap();
        for (from, to) in [
            (&wide[..], &parts[..]),
            (&parts, &wide),
            (&wide, &parts),
            (&parts, &same_start),
            (&same_start, &parts),
        ] {
            // In whatever order: what goes makes room for what comes.
            netfilter.apply(&[add(to), delete(from)].concat()).unwrap();
            assert_eq!(netfilter.observe().unwrap(), both(to));
        }
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn a_range_within_another_is_refused_by_name_and_changes_nothing() {
    with_installed(|netfilter| {
        let part = allowed("192.0.2.9", "10.1.0.0", "10.1.255.255");
        match netfilter.apply(&add(&[part])) {
            Err(error) => assert_eq!(
                error.to_string(),
                "nf_tables transaction rolled back: cannot add element ip kube-ipvs allowed-sources \
                 { 192.0.2.9 . udp . 443 . 10.1.0.0-10.1.255.255 }"
            ),
            // 5.10 takes it for the one that holds it, and thinks it is there.
            Ok(()) => println!("ABSENT: this kernel refuses no range within another"),
        }
        assert_eq!(netfilter.observe().unwrap(), both(&some_elements()));
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn ranges_are_deleted_from_a_table_that_is_built_anew_in_the_same_transaction() {
    with_installed(|netfilter| {
        let (gone, absent) = (
            allowed("192.0.2.9", "10.0.0.0", "10.255.255.255"),
            allowed("192.0.2.9", "11.0.0.0", "11.0.0.9"),
        );
        nft("add set ip kube-ipvs unknown { type ipv4_addr; }");
        netfilter.apply(&[&delete(&[gone, absent]), &INSTALL[..]].concat()).unwrap();
        let left: Vec<_> = some_elements().into_iter().filter(|element| *element != gone).collect();
        assert_eq!(netfilter.observe().unwrap(), both(&left));
        run("nft flush ruleset");
        netfilter.apply(&[&delete(&[gone, absent]), &INSTALL[..]].concat()).unwrap();
        assert_eq!(netfilter.observe().unwrap(), both(&[]));
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn this_kernel_lacks_nothing_and_finding_that_out_changes_nothing() {
    in_fresh_namespace(|| {
        nft("table ip somebody-else { chain output { type nat hook output priority 0; }; }");
        let list = || run("nft -a list ruleset");
        let before = list();
        let netfilter = KernelNetfilter::open(&by_source()).unwrap();
        for family in Family::BOTH {
            assert_eq!(netfilter.missing_features(family), []);
        }
        assert_eq!(list(), before);
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn other_tables_are_neither_read_nor_touched() {
    in_fresh_namespace(|| {
        let transcript = Transcript::default();
        let mut netfilter = transcript.record(|| KernelNetfilter::open(&by_source())).unwrap();
        netfilter.apply(&[&INSTALL[..], &add(&some_elements())].concat()).unwrap();
        let foreign = "table inet somebody-else {
            set cluster-ips { type ipv4_addr . inet_proto . inet_service; elements = { 1.2.3.4 . tcp . 5 }; }
            chain services { accept; }
        }
        table ip somebody-elses { chain services { type nat hook output priority -100; accept; }; }";
        nft(foreign);
        let list =
            || run("nft -a list table inet somebody-else") + &run("nft -a list table ip somebody-elses");
        let before = list();
        assert_eq!(netfilter.observe().unwrap(), both(&some_elements()));
        nft("flush table ip kube-ipvs");
        netfilter.apply(&INSTALL).unwrap();
        nft("delete table ip kube-ipvs");
        netfilter.apply(&INSTALL).unwrap();
        assert_eq!(list(), before);
        let (heard, name) = (transcript.encode(), b"somebody-else");
        assert!(
            !heard.windows(name.len()).any(|part| part == name),
            "the kernel was asked for their objects"
        );
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
        let elements: Vec<Element> = (0..25_000u32)
            .flat_map(|n| {
                let vip = Ipv4Addr::from_bits(0x0a60_0000 + n).to_string();
                let pod = Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(n)).to_string();
                [
                    cluster_ip(&vip, 80),
                    Element::Vip(vip.parse().unwrap()),
                    external(&pod, 80),
                    hairpin(&pod, 8080),
                ]
            })
            .collect();
        let mut sorted = elements.clone();
        sorted.sort_unstable();
        let mut timed = |what: &str, changes: &[Operation]| {
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

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn one_set_takes_more_than_sixty_thousand_elements() {
    in_fresh_namespace(|| {
        let mut netfilter = KernelNetfilter::open(&by_source()).unwrap();
        // ipset's limit is 65,536, if nobody has set another.
        let elements: Vec<Element> = (0..66_000u32)
            .map(|n| cluster_ip(&Ipv4Addr::from_bits(0x0a60_0000 + n).to_string(), 80))
            .collect();
        netfilter.apply(&[&INSTALL[..], &add(&elements)].concat()).unwrap();
        // What was read at once differed, and a moment later it did not: it seems that the kernel goes on
        // enlarging the hash table, and a dump misses some elements meanwhile.
        let expected = both(&elements);
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut observed = netfilter.observe().unwrap();
        while observed != expected && Instant::now() < deadline {
            eprintln!("{} of {}", observed.elements.len(), elements.len());
            thread::sleep(Duration::from_millis(100));
            observed = netfilter.observe().unwrap();
        }
        assert!(observed == expected, "{} of {}", observed.elements.len(), elements.len());
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn five_thousand_source_ranges_fit_and_one_more_is_one_small_transaction() {
    in_fresh_namespace(|| {
        let mut netfilter = KernelNetfilter::open(&by_source()).unwrap();
        // 50 ranges at each of 100 addresses, every other /24.
        let ranges: Vec<Element> = (0..5_000u32)
            .map(|n| {
                let to = Ipv4Addr::from_bits(0xc000_0200 + n / 50);
                let first = 0x0a00_0000 + (n % 50) * 512;
                let [first, last] = [first, first + 255].map(|ip| Ipv4Addr::from_bits(ip).to_string());
                allowed(&to.to_string(), &first, &last)
            })
            .collect();
        let one = allowed("192.0.2.1", "10.255.0.0", "10.255.0.7");
        let mut timed = |what: &str, changes: &[Operation]| {
            let start = Instant::now();
            netfilter.apply(changes).unwrap();
            eprintln!("{what}: {:?}", start.elapsed());
        };
        timed("5,000 source ranges", &[&INSTALL[..], &add(&ranges)].concat());
        timed("one more", &add(&[one]));
        timed("it is deleted", &delete(&[one]));
        timed("one is replaced", &[delete(&ranges[..1]), add(&[one])].concat());
        let expected = [&[one], &ranges[1..]].concat();
        let start = Instant::now();
        assert_eq!(netfilter.observe().unwrap(), both(&expected));
        eprintln!("observe: {:?}", start.elapsed());
        let start = Instant::now();
        netfilter.apply(&delete(&expected)).unwrap();
        eprintln!("5,000 deleted: {:?}", start.elapsed());
        assert_eq!(netfilter.observe().unwrap(), both(&[]));
    });
}
