//! Tables of others, and their transactions at the same time.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    sync::atomic::{AtomicBool, Ordering},
    sync::mpsc,
    thread,
    time::Duration,
};

use netfilter::{Element, KernelNetfilter, Netfilter};
use netlink::{Batch, Socket, Transcript};

use super::{INSTALL, add, both, by_source, delete, some_elements, with_installed};
use crate::{
    support::host::in_fresh_namespace,
    support::programs::{nft, run},
};

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
fn our_tables_are_read_and_written_while_other_tables_change_all_the_time() {
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
                    nft("flush chain ip kube-ipvs vip-ports");
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
fn tables_need_not_be_read_again_where_only_this_client_has_changed_nf_tables() {
    let [one, another] = [Element::Vip([10, 96, 9, 1].into()), Element::Vip([10, 96, 9, 2].into())];
    with_installed(|netfilter| {
        let observed = netfilter.observe().unwrap();
        let may_differ = |netfilter: &mut KernelNetfilter| netfilter.may_differ(&observed).unwrap();
        assert!(!may_differ(netfilter));
        netfilter.apply(&add(&[one])).unwrap();
        netfilter.apply(&[&delete(&[one])[..], &add(&[another])].concat()).unwrap();
        assert!(!may_differ(netfilter), "after changes of our own");
        netfilter.apply(&add(&[another])).unwrap();
        assert!(!may_differ(netfilter), "after one without effect");
    });
    for change in ["add table ip others", "add element ip kube-ipvs vips { 10.96.9.3 }"] {
        for own in [vec![], add(&[one]), add(&some_elements())] {
            with_installed(|netfilter| {
                let observed = netfilter.observe().unwrap();
                nft(change);
                netfilter.apply(&own).unwrap();
                assert!(netfilter.may_differ(&observed).unwrap(), "{change}, then {own:?}");
                let later = netfilter.observe().unwrap();
                assert!(!netfilter.may_differ(&later).unwrap());
                assert!(
                    netfilter.may_differ(&observed).unwrap(),
                    "what was observed before is still out of date"
                );
            });
        }
    }
    with_installed(|netfilter| {
        let observed = netfilter.observe().unwrap();
        netfilter.apply(&INSTALL).unwrap();
        assert!(netfilter.may_differ(&observed).unwrap(), "tables that are made are read");

        let mut another_client = KernelNetfilter::open_unprobed(&by_source(), BTreeMap::new()).unwrap();
        assert!(
            another_client.may_differ(&observed).unwrap(),
            "it knows nothing of what others have changed"
        );
    });
}
