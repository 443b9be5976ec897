//! As many elements as a large cluster has.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    thread,
    time::{Duration, Instant},
};

use netfilter::{Element, KernelNetfilter, Netfilter, Operation};

use super::{INSTALL, add, both, by_source, cluster_ip, delete, external, hairpin};
use crate::support::host::in_fresh_namespace;

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
        // ipset's limit is 65,536, unless the set has another.
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
