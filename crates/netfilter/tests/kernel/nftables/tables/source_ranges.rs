//! Intervals: the ranges of clients that may reach an address.

use std::{net::Ipv4Addr, time::Instant};

use netfilter::{Element, KernelNetfilter, Netfilter, Operation};

use super::{INSTALL, add, allowed, both, by_source, delete, some_elements, with_installed};
use crate::{
    support::host::in_fresh_namespace,
    support::programs::{nft, run},
};

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
