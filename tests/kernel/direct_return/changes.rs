//! Direct return comes and goes: for a node, for a Service, or because another program changes its devices.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ipvs::Family;
use netfilter::tunnel;
use serde_json::json;
use testkit::{
    daemon::{eventually, eventually_within},
    lab::{Host, Manner},
};

use super::cluster::{Cluster, all_still_work, families, parsed, tunnelled};
use crate::support::cluster::at;

/// Nodes ask each other every ten seconds, and a few times.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(90);

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_node_that_does_not_take_part_gets_its_requests_masqueraded_until_it_does() {
    let mut cluster = Cluster::without_daemons(&[1, 1, 0], &tunnelled());
    for node in [0, 2] {
        cluster.run(node);
    }
    for address in families() {
        // The pod of node-2 is reached all the same.
        eventually("node-3 tunnels to node-1", || {
            let methods = cluster.methods(2, address)?;
            ensure!(methods == ["Tunnel", "Masq"], "{methods:?}");
            Ok(())
        })
        .unwrap();
        cluster.fabric.enter_by(parsed(address), 2).unwrap();
        let answers: Vec<_> = (0..20).map(|_| cluster.fabric.client.ask(at(address, 80)).unwrap()).collect();
        let client = cluster.fabric.client.address(parsed(address));
        for answer in &answers {
            assert_eq!(answer.seen_as == client, answer.from == "pod-1", "{answer:?}");
        }
    }
    cluster.run(1);
    for address in families() {
        cluster.tunnels(2, address);
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn open_connections_outlive_a_change_of_the_method_and_back() {
    let cluster = Cluster::start(&[1, 1, 0], &tunnelled());
    let mut open = Vec::new();
    for address in families() {
        (0..3).for_each(|node| cluster.tunnels(node, address));
        cluster.fabric.enter_by(parsed(address), 2).unwrap();
        open.extend(cluster.connections(address, 10));
    }
    cluster.write("shop", &cluster.service(&json!({})));
    for address in families() {
        (0..3).for_each(|node| cluster.masquerades(node, address));
        let masqueraded = cluster.connections(address, 10);
        let client = cluster.fabric.client.address(parsed(address));
        assert!(masqueraded.iter().all(|connection| connection.answer.seen_as != client), "{masqueraded:?}");
        open.extend(masqueraded);
    }
    all_still_work(&mut open);
    // No periodic sync removes what they need.
    cluster.sync_in_full(0..3);
    all_still_work(&mut open);
    cluster.write("shop", &cluster.service(&tunnelled()));
    for address in families() {
        (0..3).for_each(|node| cluster.tunnels(node, address));
    }
    all_still_work(&mut open);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_deleted_or_changed_tunnel_device_is_repaired_at_once() {
    let mut cluster = Cluster::without_daemons(&[1, 0], &tunnelled());
    for node in 0..2 {
        cluster.run_with(node, &["--ipvs-sync-period=10m"]);
    }
    for (address, family) in families().zip(Family::BOTH) {
        (0..2).for_each(|node| cluster.tunnels(node, address));
        cluster.fabric.enter_by(parsed(address), 1).unwrap();
        let mut connections = cluster.connections(address, 4);
        let device = tunnel::device(family);
        for change in [
            format!("link delete {device}"),
            format!("link set {device} down"),
            format!("addr flush dev {device}"),
        ] {
            cluster.fabric.nodes[0].ip(&change).unwrap();
            for connection in &mut connections {
                connection.still_works().unwrap_or_else(|error| panic!("after {change}: {error:#}"));
            }
        }
    }
}

/// What a node has for direct return: tunnel devices, rules, and its kernel parameters.
fn parts(node: &Host) -> (usize, usize, String) {
    let links = node.run("ip", &["-o", "link", "show"]).unwrap();
    let devices = links.matches("kube-ipvs-tun").count();
    // The counters are always there.
    let is_rule = |line: &&str| !(line.trim_start().starts_with("counter ") && line.ends_with('{'));
    let ruleset = node.run("nft", &["list", "ruleset"]).unwrap();
    let rules = ruleset.lines().filter(is_rule).map(|line| line.matches("tunnel").count()).sum();
    let values = ["sloppy_tcp", "sloppy_sctp", "schedule_icmp", "pmtu_disc"]
        .map(|name| node.run("sysctl", &["-n", &format!("net.ipv4.vs.{name}")]).unwrap().trim().to_owned());
    (devices, rules, values.join(" "))
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_node_without_such_a_service_has_nothing_of_it_but_what_the_operator_asked_for() {
    let cluster = Cluster::start(&[1, 1], &json!({}));
    let node = &cluster.fabric.nodes[0];
    let nothing = (0, 0, "1 1 1 0".to_owned());
    for address in families() {
        cluster.masquerades(0, address);
    }
    assert_eq!(parts(node), nothing);
    cluster.write("shop", &cluster.service(&tunnelled()));
    families().for_each(|address| cluster.tunnels(0, address));
    let (devices, rules, values) = parts(node);
    assert_eq!((devices, values.as_str()), (2, "1 1 1 0"));
    assert!(rules > 10, "{rules}");
    cluster.write("shop", &cluster.service(&json!({})));
    eventually("devices and rules have gone", || {
        ensure!(parts(node) == nothing, "{:?}", parts(node));
        Ok(())
    })
    .unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn annotation_changes_nothing_on_a_node_whose_operator_did_not_allow_it() {
    let mut cluster = Cluster::without_daemons(&[1, 1], &tunnelled());
    for node in 0..2 {
        cluster.run_with(node, &["--ipvs-sync-period=2s", "--external-forwarding-method=masq"]);
    }
    let why = "no direct return (IPv4): node node-1 does not allow annotations to request it (--external-forwarding-method)";
    let node = &cluster.fabric.nodes[0];
    eventually("the Service's owner can read why", || {
        let explained = cluster.daemon(0).ask(node, "status")?;
        ensure!(explained.contains(why), "{explained}");
        Ok(())
    })
    .unwrap();
    for address in families() {
        cluster.masquerades(0, address);
    }
    cluster.sync_in_full(0..1);
    assert_eq!(parts(node), (0, 0, "0 0 0 1".to_owned()));
    assert!(cluster.daemon(0).log().contains(why), "{}", cluster.daemon(0).log());
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn where_a_network_filters_tunnels_requests_are_masqueraded_and_status_says_so() {
    let cluster = Cluster::start(&[1, 1, 0], &tunnelled());
    let filter = "add table inet filter
        add chain inet filter forward { type filter hook forward priority 0; }
        add rule inet filter forward meta l4proto { 4, 41 } drop";
    cluster.fabric.router.run("nft", &[filter]).unwrap();
    for address in families() {
        (0..3).for_each(|node| cluster.tunnels(node, address));
        cluster.fabric.enter_by(parsed(address), 2).unwrap();
    }
    let manner = || Manner { patience: Duration::from_secs(1), ..Manner::default() };
    let client = &cluster.fabric.client;
    for address in families() {
        eventually_within(GIVEN_UP_AFTER, "requests are masqueraded", || {
            let answers: Vec<_> =
                (0..4).filter_map(|_| client.connect_in(manner(), at(address, 80)).ok()).collect();
            ensure!(answers.len() == 4, "{answers:?}");
            Ok(())
        })
        .unwrap();
        assert_ne!(client.ask(at(address, 80)).unwrap().seen_as, client.address(parsed(address)));
    }
    let node = &cluster.fabric.nodes[2];
    let warnings = || -> Result<Vec<String>> {
        let status = cluster.daemon(2).status(node)?;
        let advice = status["advice"].as_array().context("no advice")?;
        let of_tunnels = advice.iter().filter(|advice| advice["cause"] == "tunnel");
        Ok(of_tunnels.map(|advice| advice["subject"].to_string()).collect())
    };
    eventually("status names both families", || {
        let found = warnings()?;
        ensure!(found == [r#""IPv4""#, r#""IPv6""#], "{found:?}");
        Ok(())
    })
    .unwrap();
    cluster.fabric.router.run("nft", &["delete table inet filter"]).unwrap();
    cluster.daemon(2).ask(node, "resync").unwrap();
    for address in families() {
        cluster.tunnels(2, address);
        assert_eq!(client.ask(at(address, 80)).unwrap().seen_as, client.address(parsed(address)));
    }
    eventually("status is silent", || {
        let found = warnings()?;
        ensure!(found.is_empty(), "{found:?}");
        Ok(())
    })
    .unwrap();
}
