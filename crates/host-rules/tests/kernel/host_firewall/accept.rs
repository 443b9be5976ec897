//! What is put into a chain, how others list it, and that nothing else of theirs changes.

use std::sync::atomic::{AtomicBool, Ordering};

use host_rules::{
    Backend,
    host_firewall::{Accepts, Error, FirewallChains as _, Hook, HostChain, TableFamily},
};
use netlink::{Batch, Protocol, Socket};

use super::{MARK, accept, only_closed_chain, open, shell};
use crate::support::{
    host::in_fresh_namespace,
    programs::{nft, run},
};

/// Chains of several families, closed in several ways, with rules and sets of their own.
const HOST: &str = "
    table inet firewall {
        set banned { type ipv4_addr; elements = { 192.0.2.1, 192.0.2.7 }; }
        chain input {
            type filter hook input priority filter; policy drop;
            ip saddr @banned drop comment \"banned\"
            tcp dport { 22, 443 } accept
        }
        chain forward {
            type filter hook forward priority filter + 5; policy accept;
            ct state vmap { established : accept, related : accept, invalid : drop }
            reject with icmpx type admin-prohibited
        }
        chain output { type filter hook output priority filter; policy accept; }
    }
    table ip own { chain in { type filter hook input priority -5; policy drop; }; }
    table ip6 own { chain in { type filter hook input priority -5; policy accept; counter drop; }; }
";

/// Our rule as nft lists it.
const OURS: &str = "\t\tmeta mark & 0x00001000 == 0x00001000 accept comment \"kube-ipvs: what it forwards\"";

fn rule_set() -> String {
    run("nft -a list ruleset")
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn our_rule_comes_first_in_each_chain_and_leaves_without_a_trace() {
    in_fresh_namespace(|| {
        nft(HOST);
        run("iptables-nft -P INPUT DROP");
        run("iptables-nft -A INPUT -p tcp --dport 22 -j ACCEPT");
        run("ip6tables-nft -A FORWARD -j REJECT");
        let before = rule_set();
        let mut chains = open();
        let closed = chains.closed_chains(&accept()).unwrap();
        assert_eq!(closed.len(), 6, "{closed:?}");
        for closed in &closed {
            assert!(chains.settle(&closed.chain, &accept()).unwrap(), "{closed}");
            let listed = run(&format!("nft list chain {}", closed.chain));
            let first = listed.lines().find(|line| line.starts_with("\t\t") && !line.contains(" hook "));
            // How nft shows a match of iptables depends on how it was built.
            let matching = if closed.chain.belongs_to_iptables() {
                first.is_some_and(|rule| rule.ends_with("accept comment \"kube-ipvs: what it forwards\""))
            } else {
                first == Some(OURS)
            };
            assert!(matching, "{closed}: {first:?}");
        }
        let with_ours = rule_set();
        assert!(
            chains
                .closed_chains(&accept())
                .unwrap()
                .iter()
                .all(|closed| closed.accepts == Accepts::ByOurRules)
        );
        for closed in &closed {
            assert!(!chains.settle(&closed.chain, &accept()).unwrap(), "{closed}, again");
        }
        assert_eq!(rule_set(), with_ours, "nothing happens twice");

        let with_our_rule = chains.chains_with_our_rules().unwrap();
        assert_eq!(with_our_rule, closed.iter().map(|closed| closed.chain.clone()).collect::<Vec<_>>());
        for chain in &with_our_rule {
            assert!(chains.withdraw(chain).unwrap(), "{chain}");
            assert!(!chains.withdraw(chain).unwrap(), "{chain}, again");
        }
        assert_eq!(rule_set(), before);
        assert_eq!(chains.chains_with_our_rules().unwrap(), []);
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn iptables_lists_our_rule_as_one_of_its_own_and_restores_it() {
    const OURS: &str =
        "-m mark --mark 0x1000/0x1000 -m comment --comment \"kube-ipvs: what it forwards\" -j ACCEPT";
    for (iptables, hook) in
        [("iptables", "INPUT"), ("iptables", "FORWARD"), ("ip6tables", "INPUT"), ("ip6tables", "FORWARD")]
    {
        in_fresh_namespace(|| {
            let save = || {
                let saved = run(&format!("{iptables}-nft-save"));
                saved.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n")
            };
            run(&format!("{iptables}-nft -P {hook} DROP"));
            run(&format!("{iptables}-nft -A {hook} -p tcp --dport 22 -j ACCEPT"));
            let before = save();
            let mut chains = open();
            let chain = only_closed_chain(&mut chains);
            assert!(chain.belongs_to_iptables());
            chains.settle(&chain, &accept()).unwrap();

            let listed = run(&format!("{iptables}-nft -S {hook}"));
            let rules: Vec<_> = listed.lines().skip(1).collect();
            let ours = format!("-A {hook} {OURS}");
            assert_eq!(rules, [&*ours, &*format!("-A {hook} -p tcp -m tcp --dport 22 -j ACCEPT")]);
            let table = run(&format!("{iptables}-nft -L {hook} -n"));
            assert!(table.contains("mark match 0x1000/0x1000"), "{table}");

            // Saved and restored it is still ours, and comes as often as before.
            let saved = save();
            shell(&format!("{iptables}-nft-save | {iptables}-nft-restore"));
            assert_eq!(save(), saved);
            assert_eq!(chains.closed_chains(&accept()).unwrap()[0].accepts, Accepts::ByOurRules);
            assert!(!chains.settle(&chain, &accept()).unwrap());
            assert!(chains.withdraw(&chain).unwrap());
            assert_eq!(save(), before);
        });
    }
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn a_rule_of_others_that_does_the_same_stays_beside_ours() {
    for (close, rule) in [
        ("iptables-nft -P INPUT DROP", "iptables-nft -A INPUT -m mark --mark 0x1000/0x1000 -j ACCEPT"),
        (
            "ip6tables-nft -P FORWARD DROP",
            "nft insert rule ip6 filter FORWARD mark and 0x1000 == 0x1000 counter accept",
        ),
    ] {
        in_fresh_namespace(|| {
            run(close);
            run(rule);
            let before = rule_set();
            let mut chains = open();
            assert_eq!(chains.closed_chains(&accept()).unwrap()[0].accepts, Accepts::Nothing, "{rule}");
            let chain = only_closed_chain(&mut chains);
            assert!(chains.settle(&chain, &accept()).unwrap(), "{rule}");
            assert!(chains.withdraw(&chain).unwrap(), "{rule}");
            assert_eq!(rule_set(), before, "{rule}");
        });
    }
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn rules_that_resemble_ours_stay() {
    in_fresh_namespace(|| {
        nft("table inet filter { chain input {
            type filter hook input priority filter; policy drop;
            meta mark & 0x00001000 != 0x00001000 accept
            meta mark & 0x00004000 == 0x00004000 accept
            meta mark & 0x00003000 == 0x00001000 accept
            meta mark 0x00001000 accept
            meta mark & 0x00001000 == 0x00001000 drop
            meta mark & 0x00001000 == 0x00001000 tcp dport 22 accept
            ct mark & 0x00001000 == 0x00001000 accept
        }; }");
        let before = rule_set();
        let mut chains = open();
        assert_eq!(chains.closed_chains(&accept()).unwrap()[0].accepts, Accepts::Nothing);
        let chain = only_closed_chain(&mut chains);
        assert!(!chains.withdraw(&chain).unwrap());
        assert!(chains.settle(&chain, &accept()).unwrap());
        assert!(chains.withdraw(&chain).unwrap());
        assert_eq!(rule_set(), before);
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn a_rule_of_ours_that_has_no_effect_is_replaced() {
    const COMMENT: &str = "comment \"kube-ipvs: what it forwards\"";
    for rules in [
        // Of another mark, and behind the rule that drops the rest.
        format!("meta mark & 0x2000 == 0x2000 accept {COMMENT}; drop"),
        format!("drop; meta mark & {MARK} == {MARK} accept {COMMENT}"),
        // Twice.
        format!("meta mark & {MARK} == {MARK} accept {COMMENT}; counter {COMMENT}; drop"),
    ] {
        in_fresh_namespace(|| {
            nft(&format!(
                "table ip6 filter {{ chain input {{ type filter hook input priority filter; {rules}; }}; }}"
            ));
            let mut chains = open();
            let chain = only_closed_chain(&mut chains);
            assert!(chains.settle(&chain, &accept()).unwrap(), "{rules}");
            assert_eq!(
                run("nft list chain ip6 filter input").lines().skip(3).take(2).collect::<Vec<_>>(),
                [OURS, "\t\tdrop"],
                "{rules}"
            );
            assert!(!chains.settle(&chain, &accept()).unwrap(), "{rules}");
        });
    }
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn a_chain_that_is_no_longer_there_is_an_error_that_names_it() {
    in_fresh_namespace(|| {
        nft("table inet gone { chain input { type filter hook input priority 0; policy drop; }; }");
        let mut chains = open();
        let chain = only_closed_chain(&mut chains);
        nft("delete table inet gone");
        let error = chains.settle(&chain, &accept()).unwrap_err();
        assert_eq!(error.to_string(), "cannot put our rules into chain inet gone input");
        assert!(!chains.withdraw(&chain).unwrap(), "there is nothing to withdraw");
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn where_our_mark_is_not_to_be_seen_no_rule_is_put() {
    for (priority, within) in [(-200, false), (-150, false), (-148, true), (89, true), (91, false)] {
        in_fresh_namespace(|| {
            nft(&format!(
                "table inet t {{ chain c {{ type filter hook input priority {priority}; policy drop; }}; }}"
            ));
            let mut chains = open();
            let chain = only_closed_chain(&mut chains);
            let outcome = chains.settle(&chain, &accept());
            assert_eq!(matches!(outcome, Ok(true)), within, "{priority}: {outcome:?}");
            assert_eq!(matches!(outcome, Err(Error::OutOfReach(_))), !within, "{priority}: {outcome:?}");
        });
    }
}

/// Makes a closed chain in a table that this socket owns: as long as it is open no other program may change it.
fn owned_table() -> Option<Socket> {
    const NFT_TABLE_F_OWNER: u32 = 2;
    let mut batch = Batch::default();
    let resource = |encoder: &mut netlink::Encoder<'_>| encoder.raw(&[0, 0, 0, 10]);
    batch.add(0x10, 0, resource);
    batch.add(0xa00, 0x400, |table| {
        table.raw(&[1, 0, 0, 0]);
        table.string(1, "owned");
        table.u32_be(2, NFT_TABLE_F_OWNER);
    });
    batch.add(0xa03, 0x400, |chain| {
        chain.raw(&[1, 0, 0, 0]);
        chain.string(1, "owned");
        chain.string(3, "input");
        chain.nest(4, |hook| {
            hook.u32_be(1, 1);
            hook.u32_be(2, 0);
        });
        chain.u32_be(5, 0);
        chain.string(7, "filter");
    });
    batch.add(0x11, 0, resource);
    let mut socket = Socket::open(Protocol::Netfilter).unwrap();
    socket.transact(&mut batch).ok().map(|()| socket)
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn a_table_that_another_program_owns_is_named_as_such() {
    in_fresh_namespace(|| {
        let Some(owner) = owned_table() else {
            println!("ABSENT: tables with an owner");
            return;
        };
        let mut chains = open();
        let chain = only_closed_chain(&mut chains);
        let error = chains.settle(&chain, &accept()).unwrap_err();
        assert!(matches!(&error, Error::Owned(owned) if *owned == chain), "{error:?}");
        assert!(error.to_string().contains("inet owned input"), "{error}");
        drop(owner);
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn changes_of_others_at_the_same_time_are_neither_lost_nor_in_the_way() {
    in_fresh_namespace(|| {
        nft("table inet busy { chain input { type filter hook input priority 0; policy drop; }; }");
        let mut chains = open();
        let chain = only_closed_chain(&mut chains);
        let over = AtomicBool::new(false);
        let added = std::thread::scope(|scope| {
            let others = scope.spawn(|| {
                let mut added = 0;
                while !over.load(Ordering::Relaxed) {
                    run("nft insert rule inet busy input tcp dport 22 accept");
                    added += 1;
                }
                added
            });
            for _ in 0..100 {
                assert!(chains.settle(&chain, &accept()).unwrap());
                assert!(chains.withdraw(&chain).unwrap());
            }
            over.store(true, Ordering::Relaxed);
            others.join().unwrap()
        });
        assert_eq!(run("nft list chain inet busy input").matches("tcp dport 22").count(), added);
    });
}

#[test]
#[ignore = "needs root: cargo xtask test --tier kernel"]
fn a_chain_named_by_hand_will_do() {
    in_fresh_namespace(|| {
        nft("table ip t { chain c { type filter hook forward priority 0; policy accept; }; }");
        let chain = HostChain {
            backend: Backend::Nft,
            family: TableFamily::Ip,
            table: "t".into(),
            name: "c".into(),
            hook: Hook::Forward,
            priority: 0,
        };
        let mut chains = open();
        assert!(chains.settle(&chain, &accept()).unwrap());
        assert_eq!(chains.closed_chains(&accept()).unwrap(), [], "it is not closed");
        assert_eq!(
            chains.chains_with_our_rules().unwrap(),
            std::slice::from_ref(&chain),
            "our rule is there all the same"
        );
        assert!(chains.withdraw(&chain).unwrap());
    });
}
