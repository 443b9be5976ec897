//! The daemon removes what kube-proxy has left, and only reports what comes later.

use anyhow::ensure;
use testkit::{daemon::eventually, lab::Host};

use super::{
    rules::{FAMILIES, Kind, OF_KUBE_PROXY, OF_OTHERS, chains, filter, make_sets, restore, shell},
    web,
};
use crate::support::cluster::{Cluster, NO_PERIOD, V4, V6, at};

/// Waits until nothing of kube-proxy's is left, in the packet filter and among the ipsets.
fn nothing_is_left(node: &Host, before: &str) {
    eventually("kube-proxy's rules and sets are gone", || {
        let filter = filter(node);
        ensure!(filter == before, "{filter}");
        Ok(())
    })
    .unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_daemon_removes_what_kube_proxy_has_left_once_its_own_rules_are_there() {
    let mut cluster = Cluster::without_daemon(1);
    let node = &cluster.lab.node;
    for kind in [Kind::Nft, Kind::Legacy] {
        restore(node, kind, OF_OTHERS);
    }
    let before = filter(node);
    make_sets(node);
    for kind in [Kind::Nft, Kind::Legacy] {
        restore(node, kind, OF_KUBE_PROXY);
    }
    shell(node, "nft add table ip kube-proxy; nft add table ip6 kube-proxy");

    cluster.restart(&[NO_PERIOD]);
    cluster.apply(&web());
    nothing_is_left(&cluster.lab.node, &before);
    eventually("the tables of the nftables mode are gone", || {
        let tables = cluster.lab.node.run("nft", &["list", "tables"])?;
        ensure!(!tables.contains("kube-proxy"), "{tables}");
        Ok(())
    })
    .unwrap();
    for vip in [V4, V6] {
        cluster.lab.client.ask(at(vip, 80)).unwrap();
    }
    let log = cluster.daemon().log();
    assert!(log.contains("removed what kube-proxy had left: iptables table nat: 3 jumps, 9 chains"), "{log}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn kube_forward_stays_until_something_else_accepts_the_answers_of_pods() {
    for kind in [Kind::Nft, Kind::Legacy] {
        let mut cluster = Cluster::without_daemon(1);
        let node = &cluster.lab.node;
        make_sets(node);
        restore(node, kind, OF_OTHERS);
        restore(node, kind, OF_KUBE_PROXY);
        for (family, ..) in FAMILIES {
            node.run(&kind.program(family, ""), &["-P", "FORWARD", "DROP"]).unwrap();
        }
        // Neighbours are to be found.
        node.run(&kind.program("ip6tables", ""), &["-A", "FORWARD", "-p", "icmpv6", "-j", "ACCEPT"]).unwrap();
        cluster.restart(&[NO_PERIOD, "--host-firewall=warn"]);
        cluster.apply(&web());
        eventually("the log names what stays", || {
            let log = cluster.daemon().log();
            let warnings =
                log.lines().filter(|line| line.contains("WARN") && line.contains("chain KUBE-FORWARD in "));
            ensure!(warnings.count() == 2, "{log}");
            Ok(())
        })
        .unwrap();
        assert_eq!(chains(&cluster.lab.node), ["KUBE-FORWARD", "KUBE-FORWARD"]);
        for vip in [V4, V6] {
            cluster.lab.client.ask(at(vip, 80)).unwrap();
        }

        cluster.restart(&[NO_PERIOD]);
        eventually("KUBE-FORWARD is gone", || {
            ensure!(chains(&cluster.lab.node).is_empty(), filter(&cluster.lab.node));
            Ok(())
        })
        .unwrap();
        for vip in [V4, V6] {
            cluster.lab.client.ask(at(vip, 80)).unwrap();
        }
    }
}

/// With it, rules that another proxy has written since are found within three seconds.
const OFTEN: &str = "--ipvs-sync-period=1s";

/// Whether the status warns of another proxy.
fn is_reported(cluster: &Cluster) -> anyhow::Result<bool> {
    let status = cluster.daemon().ask(&cluster.lab.node, "status")?;
    Ok(status
        .lines()
        .any(|line| line.starts_with("warning: ") && line.contains("another proxy seems to run")))
}

/// Waits until it does, or does not any more.
fn waits_until_reported(cluster: &Cluster, wanted: bool) {
    eventually(&format!("the status warns of another proxy: {wanted}"), || {
        ensure!(is_reported(cluster)? == wanted, "{}", cluster.daemon().log());
        Ok(())
    })
    .unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_later_kube_proxy_is_reported_and_its_rules_stay_until_the_daemon_restarts() {
    let mut cluster = Cluster::without_daemon(1);
    let node = &cluster.lab.node;
    restore(node, Kind::Nft, OF_OTHERS);
    let before = filter(node);
    let write_rules = |node: &Host| {
        make_sets(node);
        restore(node, Kind::Nft, OF_KUBE_PROXY);
    };
    write_rules(node);
    cluster.restart(&[OFTEN]);
    cluster.apply(&web());
    nothing_is_left(&cluster.lab.node, &before);
    assert!(!is_reported(&cluster).unwrap());

    write_rules(&cluster.lab.node);
    let rules = filter(&cluster.lab.node);
    waits_until_reported(&cluster, true);
    assert_eq!(filter(&cluster.lab.node), rules);
    let log = cluster.daemon().log();
    let warned =
        log.lines().filter(|line| line.contains("WARN") && line.contains("another proxy seems to run"));
    assert_eq!(warned.count(), 1, "{log}");

    cluster.restart(&[OFTEN]);
    nothing_is_left(&cluster.lab.node, &before);
    assert!(!is_reported(&cluster).unwrap());
    for vip in [V4, V6] {
        cluster.lab.client.ask(at(vip, 80)).unwrap();
    }

    shell(&cluster.lab.node, "nft add table ip6 kube-proxy");
    waits_until_reported(&cluster, true);
    shell(&cluster.lab.node, "nft delete table ip6 kube-proxy");
    waits_until_reported(&cluster, false);
}
