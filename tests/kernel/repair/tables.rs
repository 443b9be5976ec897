//! Our nf_tables tables.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{daemon::eventually, lab::Host};

use super::served;
use crate::support::cluster::NO_PERIOD;

/// The families of our tables in nft's words.
const FAMILIES: [&str; 2] = ["ip", "ip6"];

/// Our table as nft lists it.
fn table(node: &Host, family: &str) -> anyhow::Result<Vec<Value>> {
    let listed = node.run("nft", &["-j", "list", "table", family, "kube-ipvs"])?;
    let mut listed: Value = serde_json::from_str(&listed)?;
    Ok(serde_json::from_value(listed["nftables"].take())?)
}

/// Both, elements in order, without the numbers by which the kernel knows rules and chains, which are others
/// after a repair, and without what counters have counted.
fn tables(node: &Host) -> anyhow::Result<[Vec<Value>; 2]> {
    let [mut ipv4, mut ipv6] = [table(node, FAMILIES[0])?, table(node, FAMILIES[1])?];
    for object in ipv4.iter_mut().chain(&mut ipv6).filter_map(Value::as_object_mut) {
        for fields in object.values_mut().filter_map(Value::as_object_mut) {
            for changing in ["handle", "packets", "bytes"] {
                fields.remove(changing);
            }
            if let Some(elements) = fields.get_mut("elem").and_then(Value::as_array_mut) {
                elements.sort_by_key(Value::to_string);
            }
        }
    }
    Ok([ipv4, ipv6])
}

fn are_as_before(node: &Host, before: &[Vec<Value>; 2], what: &str) {
    eventually(what, || {
        let now = tables(node)?;
        anyhow::ensure!(now == *before, "{now:#?}");
        Ok(())
    })
    .unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_flushed_ruleset_is_back_within_a_second_and_clients_are_masqueraded_again() {
    let (cluster, web) = served(&[NO_PERIOD]);
    let node = &cluster.lab.node;
    let is_masqueraded = || {
        let answer = cluster.lab.client.ask(web.address()).unwrap();
        let pod = cluster.lab.pods.iter().find(|pod| pod.name == answer.from).unwrap();
        assert_eq!(answer.seen_as, pod.gateway(web.address().ip()));
    };
    is_masqueraded();
    let mut connection = cluster.lab.client.connect(web.address()).unwrap();
    let before = tables(node).unwrap();

    node.run("nft", &["flush", "ruleset"]).unwrap();
    let begun = Instant::now();
    are_as_before(node, &before, "the tables as before");
    // A second on any machine that is not emulated.
    assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
    is_masqueraded();
    connection.still_works().unwrap();

    let status = cluster.daemon().ask(node, "status").unwrap();
    assert!(status.contains("after a change of our nf_tables tables: "), "{status}");
    assert!(status.contains("\nlast repair:     "), "{status}");
    // The next look at everything finds nothing, and it is still to be seen.
    cluster.daemon().ask(node, "resync").unwrap();
    let status = cluster.daemon().status(node).unwrap();
    assert_eq!(status["last_sync"]["report"]["repairs"], json!([]));
    assert_eq!(status["last_repair"]["report"]["repairs"][0], "prepare table IPv4", "{status:#}");
    assert!(status["repaired"].as_u64() > Some(2), "{status:#}");
    let log = cluster.daemon().log();
    assert!(log.contains("repaired: prepare table IPv4"), "{log}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn whatever_is_changed_in_our_tables_by_hand_is_changed_back_at_once() {
    let (cluster, _) = served(&[NO_PERIOD]);
    let node = &cluster.lab.node;
    let before = tables(node).unwrap();
    let rule = || table(node, "ip").unwrap().iter().find_map(|object| object.get("rule").cloned()).unwrap();
    let chain = rule()["chain"].as_str().unwrap().to_owned();
    // A repair may write the rules anew, and then they have other handles.
    let delete_rule = || format!("delete rule ip kube-ipvs {chain} handle {}", rule()["handle"]);
    let change_back = |change: &str| {
        node.run("nft", &[change]).unwrap();
        are_as_before(node, &before, change);
    };
    for change in [
        "delete element ip kube-ipvs cluster-ips { 10.96.0.10 . tcp . 80 }",
        "add element ip kube-ipvs external { 192.0.2.1 . tcp . 22 }",
        // None that could be ours.
        "add element ip kube-ipvs allowed-sources { 192.0.2.0/24 . tcp . 80 . 0.0.0.0-10.5.5.0 }",
        "add element ip kube-ipvs cluster-ips { 10.96.0.10 . udplite . 22 }",
        &format!("insert rule ip6 kube-ipvs {chain} counter drop"),
        &format!("flush chain ip6 kube-ipvs {chain}"),
        "add chain ip kube-ipvs another { type filter hook input priority 0; policy drop; }",
        "add table ip kube-ipvs { flags dormant; }",
        "flush table ip kube-ipvs",
        "delete table ip6 kube-ipvs",
    ] {
        change_back(change);
        change_back(&delete_rule());
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_firewall_that_is_loaded_anew_makes_no_work_and_is_not_touched() {
    let (mut cluster, _) = served(&[]);
    cluster.restart(&[NO_PERIOD, "-v=4"]);
    let node = &cluster.lab.node;
    // As firewalld does: everything of its own away, and hundreds of rules anew.
    let load = || {
        let rule = |number| format!("add rule inet firewall input tcp dport {number} accept");
        let rules: Vec<_> = (1..=500).map(rule).collect();
        let table = "table inet firewall {
            set banned { type ipv4_addr; elements = { 192.0.2.1, 192.0.2.2 }
            }
            chain input { type filter hook input priority 10; }
        }";
        let anew = format!("add table inet firewall\ndelete table inet firewall\n{table}\n");
        node.run("nft", &[&(anew + &rules.join("\n"))]).unwrap();
    };
    load();
    let resync = || cluster.daemon().ask(node, "resync");
    eventually("the first sync", resync).unwrap();
    // All notifications from the start have arrived by now.
    resync().unwrap();
    let so_far = cluster.daemon().log().len();
    let ours = || FAMILIES.map(|family| table(node, family).unwrap());
    let before = ours();
    for _ in 0..5 {
        load();
    }
    let firewall = node.run("nft", &["-a", "list", "table", "inet", "firewall"]).unwrap();
    // Notifications arrive in order: once this is repaired, all before have arrived.
    node.run("nft", &["flush", "set", "ip", "kube-ipvs", "cluster-ips"]).unwrap();
    eventually("the element is back", || {
        anyhow::ensure!(ours() == before);
        Ok(())
    })
    .unwrap();
    assert_eq!(node.run("nft", &["-a", "list", "table", "inet", "firewall"]).unwrap(), firewall);
    resync().unwrap();
    let log = cluster.daemon().log();
    let of_a_sync = |line: &&str| {
        line.contains(": plan trigger=TablesChanged") || line.contains(": repaired what something else")
    };
    let syncs: Vec<_> = log[so_far..].lines().filter(of_a_sync).collect();
    assert!(
        matches!(syncs.as_slice(), [plan, done] if plan.contains("operations=1") && done.contains("done=1 ")),
        "{syncs:#?}"
    );
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn repeated_deletions_of_our_table_are_repaired_five_times_a_second_at_most() {
    const FOR: Duration = Duration::from_secs(3);
    let (cluster, _) = served(&[NO_PERIOD]);
    let node = &cluster.lab.node;
    let before = tables(node).unwrap();
    let mut deleted = 0;
    let begun = Instant::now();
    while begun.elapsed() < FOR {
        deleted += u32::from(node.run("nft", &["delete", "table", "ip", "kube-ipvs"]).is_ok());
    }
    let most = FOR.as_millis().div_ceil(200) + 1;
    assert!(deleted > 1 && u128::from(deleted) <= most, "{deleted} times");
    are_as_before(node, &before, "the last word is ours");
}
