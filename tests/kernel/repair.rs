//! Changes of others are repaired: at once if the kernel notifies of them, otherwise with the period or on request.

use std::{
    fs,
    net::IpAddr,
    path::Path,
    process::Stdio,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use serde_json::{Value, json};
use testkit::{
    daemon::{binary, eventually},
    lab::Host,
};

use crate::support::cluster::{Cluster, NO_PERIOD, Service, V4, V6, at, tcp};

fn served(arguments: &[&str]) -> (Cluster, Service) {
    let cluster = Cluster::start(2, arguments);
    let web = Service::tcp(V4).endpoints([1, 2]);
    cluster.apply(&web);
    (cluster, web)
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn resync_restores_a_cleared_table_and_says_what_it_did() {
    let (cluster, web) = served(&[]);
    cluster.lab.node.run("ipvsadm", &["-C"]).unwrap();
    let said = cluster.daemon().ask(&cluster.lab.node, "resync").unwrap();
    assert!(said.starts_with("resynced: 3 operations in"), "{said}");
    cluster.lab.client.ask(web.address()).unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_deleted_kube_ipvs0_is_back_long_before_the_period() {
    let (cluster, web) = served(&[]);
    cluster.lab.node.run("ip", &["link", "delete", "kube-ipvs0"]).unwrap();
    let begun = Instant::now();
    eventually("the VIP answers again", || cluster.lab.client.ask(web.address())).unwrap();
    assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
    let device = cluster.lab.node.run("ip", &["link", "show", "kube-ipvs0"]).unwrap();
    assert!(device.contains("NOARP") && device.contains("state DOWN"), "{device}");
}

/// A Service of both families on one pod.
fn dual_stack(arguments: &[&str]) -> (Cluster, Service) {
    let cluster = Cluster::start(1, arguments);
    let web = Service::new("web", &json!({"clusterIPs": [V4, V6], "ports": [{"port": 80}]})).endpoints([1]);
    cluster.apply(&web);
    (cluster, web)
}

/// Both VIPs answer.
fn answers(cluster: &Cluster) {
    for vip in [V4, V6] {
        eventually("the VIP answers", || cluster.lab.client.ask(at(vip, 80))).unwrap();
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn kube_ipvs0_that_is_set_up_and_down_has_all_its_vips_again_at_once() {
    for binding in ["--vip-binding=address", "--vip-binding=route"] {
        let (cluster, _) = dual_stack(&[NO_PERIOD, binding]);
        for _ in 0..3 {
            for state in ["up", "down"] {
                cluster.lab.node.run("ip", &["link", "set", "kube-ipvs0", state]).unwrap();
                answers(&cluster);
            }
        }
        if binding == "--vip-binding=address" {
            // The kernel takes the IPv6 addresses of a device that goes down.
            for vip in [V4, V6] {
                cluster.is_bound(vip.parse().unwrap(), true);
            }
        }
        let said = cluster.daemon().ask(&cluster.lab.node, "resync").unwrap();
        assert!(said.starts_with("resynced: 0 operations"), "{said}");
    }
}

/// Removes what makes the VIPs addresses of the node, after the kernel has added all of it: IPv6 routes come a little later
/// than addresses.
fn remove_local_routes(cluster: &Cluster) {
    sleep(Duration::from_secs(6));
    for vip in [V4, V6] {
        cluster.lab.node.run("ip", &["route", "del", "local", vip, "table", "local"]).unwrap();
    }
}

/// What `kube-ipvs diff` prints, whose exit code says that it is something.
fn difference(cluster: &Cluster) -> String {
    let mut diff = cluster.lab.node.command(&binary().unwrap().to_string_lossy());
    let output = diff.arg("diff").arg("--control-socket").arg(cluster.daemon().socket()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_local_route_that_was_removed_is_in_the_difference_and_resync_restores_it() {
    let (cluster, _) = dual_stack(&[NO_PERIOD]);
    let node = &cluster.lab.node;
    remove_local_routes(&cluster);
    assert!(cluster.lab.client.ask(at(V4, 80)).is_err());
    let differs = difference(&cluster);
    for vip in [V4, V6] {
        assert!(differs.contains(&format!("bind {vip}")), "{differs}");
    }
    let said = cluster.daemon().ask(node, "resync").unwrap();
    assert!(said.starts_with("resynced: 2 operations"), "{said}");
    answers(&cluster);
    assert!(node.run("ip", &["route", "show", "table", "local", "proto", "73"]).unwrap().is_empty());
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_local_route_that_was_removed_comes_back_by_itself() {
    for binding in ["--vip-binding=address", "--vip-binding=route"] {
        let (cluster, _) = dual_stack(&["--ipvs-sync-period=1s", binding]);
        remove_local_routes(&cluster);
        answers(&cluster);
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn vips_that_are_removed_around_the_first_sync_come_back_before_any_period() {
    for (binding, remove) in [
        ("--vip-binding=address", "ip address flush dev kube-ipvs0"),
        (
            "--vip-binding=route",
            "ip -4 route flush table local proto 73; ip -6 route flush table local proto 73",
        ),
    ] {
        let (mut cluster, _) = dual_stack(&[NO_PERIOD, binding]);
        let again_and_again = format!("for i in $(seq 100); do {remove}; sleep 0.01; done");
        let mut others = cluster.lab.node.command("sh").args(["-c", &again_and_again]).spawn().unwrap();
        cluster.restart(&[NO_PERIOD, binding]);
        assert!(others.wait().unwrap().success());
        answers(&cluster);
        let said = cluster.daemon().ask(&cluster.lab.node, "resync").unwrap();
        assert!(said.starts_with("resynced: 0 operations"), "{said}");
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_renamed_kube_ipvs0_gets_its_name_back_and_the_vips_are_there_all_the_time() {
    let (cluster, _) = dual_stack(&[NO_PERIOD]);
    let node = &cluster.lab.node;
    let before = cluster.bound().unwrap();
    let index = || node.run("cat", &["/sys/class/net/kube-ipvs0/ifindex"]);
    let number = index().unwrap();
    for name in ["mine", "yours"] {
        let mut connection = cluster.lab.client.connect(at(V4, 80)).unwrap();
        node.run("ip", &["link", "set", "kube-ipvs0", "name", name]).unwrap();
        eventually("it has its name again", index).unwrap();
        assert_eq!((index().unwrap(), cluster.bound().unwrap()), (number.clone(), before.clone()));
        node.run("ip", &["link", "show", name]).unwrap_err();
        connection.still_works().unwrap();
        answers(&cluster);
    }
    let said = cluster.daemon().ask(node, "resync").unwrap();
    assert!(said.starts_with("resynced: 0 operations"), "{said}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_kube_ipvs0_renamed_while_no_daemon_runs_is_left_alone_and_another_is_made() {
    let (mut cluster, _) = dual_stack(&[NO_PERIOD]);
    let mut connection = cluster.lab.client.connect(at(V4, 80)).unwrap();
    cluster.stop();
    cluster.lab.node.run("ip", &["link", "set", "kube-ipvs0", "name", "mine"]).unwrap();
    cluster.restart(&[NO_PERIOD]);
    answers(&cluster);
    let node = &cluster.lab.node;
    let nothing_to_do = || {
        let said = cluster.daemon().ask(node, "resync").unwrap();
        assert!(said.starts_with("resynced: 0 operations"), "{said}");
        assert_eq!(cluster.bound().unwrap(), [V4, V6].map(|vip| vip.parse().unwrap()).into());
    };
    nothing_to_do();
    let mine = node.run("ip", &["-o", "addr", "show", "dev", "mine"]).unwrap();
    assert!(mine.contains(V4) && mine.contains(V6), "{mine}");

    node.run("ip", &["link", "delete", "mine"]).unwrap();
    answers(&cluster);
    nothing_to_do();
    connection.still_works().unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn network_manager_that_keeps_claiming_kube_ipvs0_is_outlasted() {
    let (cluster, _) = dual_stack(&[NO_PERIOD]);
    let node = &cluster.lab.node;
    for _ in 0..5 {
        node.run("ip", &["link", "set", "kube-ipvs0", "up"]).unwrap();
        node.run("ip", &["address", "flush", "dev", "kube-ipvs0"]).unwrap();
        for lease in ["10.99.0.7/24", "fd00:99::7/64"] {
            node.run("ip", &["address", "replace", lease, "dev", "kube-ipvs0"]).unwrap();
        }
        answers(&cluster);
    }
    let vips = [V4, V6].map(|vip| vip.parse().unwrap()).into();
    eventually("the VIPs and nothing else", || {
        let mut bound = cluster.bound()?;
        bound.retain(|address: &IpAddr| !address.to_string().starts_with("fe80"));
        anyhow::ensure!(bound == vips, "{bound:?}");
        Ok(())
    })
    .unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_vip_removed_by_hand_comes_back_and_a_foreign_one_goes() {
    let (cluster, _) = served(&[]);
    let node = &cluster.lab.node;
    node.run("ip", &["addr", "del", &format!("{V4}/32"), "dev", "kube-ipvs0"]).unwrap();
    node.run("ip", &["addr", "add", "10.96.0.99/32", "dev", "kube-ipvs0"]).unwrap();
    eventually("only the VIP", || {
        let addresses = node.run("ip", &["addr", "show", "dev", "kube-ipvs0"])?;
        anyhow::ensure!(addresses.contains(V4) && !addresses.contains("10.96.0.99"), "{addresses}");
        Ok(())
    })
    .unwrap();
}

/// The virtual and real servers, in order.
fn saved(host: &Host) -> Vec<String> {
    let table = host.run("ipvsadm", &["-Sn"]).unwrap();
    let mut lines: Vec<_> = table.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn the_period_repairs_virtual_servers_real_servers_and_weights() {
    let (cluster, _) = served(&["--ipvs-sync-period=1s"]);
    let node = &cluster.lab.node;
    let wanted = saved(node);
    node.run("ipvsadm", &["-d", "-t", "10.96.0.10:80", "-r", "10.244.1.2:8080"]).unwrap();
    node.run("ipvsadm", &["-e", "-t", "10.96.0.10:80", "-r", "10.244.2.2:8080", "-m", "-w", "7"]).unwrap();
    node.run("ipvsadm", &["-A", "-t", "192.0.2.7:80", "-s", "wlc"]).unwrap();
    eventually("everything is as before", || {
        anyhow::ensure!(saved(node) == wanted, "{:?}", saved(node));
        Ok(())
    })
    .unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn excluded_ranges_and_firewall_marks_are_left_alone() {
    let (cluster, _) = served(&["--ipvs-exclude-cidrs=192.0.2.0/24"]);
    let node = &cluster.lab.node;
    node.run("ipvsadm", &["-A", "-t", "192.0.2.7:80", "-s", "wlc"]).unwrap();
    node.run("ipvsadm", &["-A", "-f", "5", "-s", "wlc"]).unwrap();
    node.run("ipvsadm", &["-A", "-t", "203.0.113.7:80", "-s", "wlc"]).unwrap();
    cluster.daemon().ask(node, "resync").unwrap();
    let table = node.run("ipvsadm", &["-Ln"]).unwrap();
    assert!(table.contains("192.0.2.7:80 wlc") && table.contains("FWM  5 wlc"), "{table}");
    assert!(!table.contains("203.0.113.7"), "{table}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_restart_over_unchanged_state_writes_nothing_and_keeps_connections() {
    let (mut cluster, web) = served(&[]);
    let mut connection = cluster.lab.client.connect(web.address()).unwrap();
    cluster.restart(&["-v=4"]);
    let said = cluster.daemon().ask(&cluster.lab.node, "resync").unwrap();
    assert!(said.starts_with("resynced: 0 operations"), "{said}");
    let log = cluster.daemon().log();
    assert!(log.contains("trigger=Start done=0"), "{log}");
    connection.still_works().unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn switching_between_addresses_and_routes_leaves_nothing_of_the_other_way() {
    let (mut cluster, web) = served(&[]);
    for (arguments, addresses, routes) in
        [(["--vip-binding=route"], false, true), (["--vip-binding=address"], true, false)]
    {
        cluster.restart(&arguments);
        let node = &cluster.lab.node;
        eventually("bound in the new way alone", || {
            let shown = node.run("ip", &["addr", "show", "dev", "kube-ipvs0"])?;
            anyhow::ensure!(shown.contains(V4) == addresses, "{shown}");
            let shown = node.run("ip", &["route", "show", "table", "local", "proto", "73"])?;
            anyhow::ensure!(shown.contains(V4) == routes, "{shown}");
            Ok(())
        })
        .unwrap();
        cluster.lab.client.ask(web.address()).unwrap();
    }
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn list_prints_what_ipvsadm_prints() {
    let (cluster, _) = served(&[]);
    let node = &cluster.lab.node;
    let ours = cluster.daemon().list(node).unwrap();
    assert_eq!(ours, node.run("ipvsadm", &["-Ln"]).unwrap());
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_table_that_somebody_flushes_is_back_within_a_period() {
    const PERIOD: Duration = Duration::from_secs(5);
    let (cluster, web) = served(&["--ipvs-sync-period=5s"]);
    cluster.write(&Service::new("many", &json!({"clusterIPs": ["10.96.0.11", V6], "ports": [{"port": 80}]})));
    let node = &cluster.lab.node;
    cluster.ipvsadm("both Services", |table| table.matches("TCP").count() == 3);
    let wanted = saved(node);
    node.run("ipvsadm", &["-C"]).unwrap();
    let flushed = Instant::now();
    eventually("everything is as before", || {
        anyhow::ensure!(saved(node) == wanted, "{:?}", saved(node));
        Ok(())
    })
    .unwrap();
    assert!(flushed.elapsed() < 2 * PERIOD, "{:?}", flushed.elapsed());
    cluster.lab.client.ask(web.address()).unwrap();
}

/// The families of our tables in nft's words.
const FAMILIES: [&str; 2] = ["ip", "ip6"];

/// Our table as nft lists it.
fn table(node: &Host, family: &str) -> anyhow::Result<Vec<Value>> {
    let listed = node.run("nft", &["-j", "list", "table", family, "kube-ipvs"])?;
    let mut listed: Value = serde_json::from_str(&listed)?;
    Ok(serde_json::from_value(listed["nftables"].take())?)
}

/// Both, elements in order, without the numbers by which the kernel knows rules and chains: those are others
/// after a repair.
fn tables(node: &Host) -> anyhow::Result<[Vec<Value>; 2]> {
    let [mut ipv4, mut ipv6] = [table(node, FAMILIES[0])?, table(node, FAMILIES[1])?];
    for object in ipv4.iter_mut().chain(&mut ipv6).filter_map(Value::as_object_mut) {
        for fields in object.values_mut().filter_map(Value::as_object_mut) {
            fields.remove("handle");
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
    assert_eq!(status["last_sync"]["report"]["repairs"], serde_json::json!([]));
    assert_eq!(status["last_repair"]["report"]["repairs"][0], "prepare table IPv4", "{status:#}");
    assert!(status["repaired"].as_u64() > Some(2), "{status:#}");
    let log = cluster.daemon().log();
    assert!(log.contains("repaired: prepare table IPv4"), "{log}");
}

/// How many repairs of a kind the metrics tell of.
fn repairs(node: &Host, kind: &str) -> anyhow::Result<f64> {
    let page = node.run("curl", &["--silent", "--fail", "http://127.0.0.1:10249/metrics"])?;
    let name = format!("kube_ipvs_repairs_total{{kind=\"{kind}\"}} ");
    let value = page.lines().find_map(|line| line.strip_prefix(&name));
    Ok(value.with_context(|| page.clone())?.parse()?)
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn every_kind_of_repair_is_in_the_log_and_counted_in_the_metrics() {
    let (cluster, _) = served(&["--ipvs-sync-period=1s"]);
    let node = &cluster.lab.node;
    eventually("the metrics are there", || repairs(node, "device")).unwrap();
    for (kind, change, repair) in [
        ("device", "ip link delete kube-ipvs0", "ensure device kube-ipvs0"),
        ("vip", "ip address delete 10.96.0.10/32 dev kube-ipvs0", "bind 10.96.0.10"),
        ("table", "nft delete table ip kube-ipvs", "prepare table IPv4"),
        ("element", "nft delete element ip kube-ipvs vips { 10.96.0.10 }", "add element"),
        ("virtual_server", "ipvsadm -D -t 10.96.0.10:80", "add virtual server TCP 10.96.0.10:80"),
        (
            "real_server",
            "ipvsadm -d -t 10.96.0.10:80 -r 10.244.1.2:8080",
            "add real server TCP 10.96.0.10:80 -> 10.244.1.2:8080",
        ),
    ] {
        let (before, log) = (repairs(node, kind).unwrap(), cluster.daemon().log().len());
        node.run("sh", &["-c", change]).unwrap();
        eventually(&format!("{kind}: it is counted"), || {
            let now = repairs(node, kind)?;
            anyhow::ensure!(now > before, "{now}");
            Ok(())
        })
        .unwrap();
        let log = cluster.daemon().log()[log..].to_owned();
        let line = format!("repaired: {repair}");
        assert!(log.contains(&line), "{kind}: {line} is not in\n{log}");
    }
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

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_daemon_that_is_told_to_end_leaves_the_data_path_as_it_is() {
    let (cluster, web) = served(&[]);
    let node = &cluster.lab.node;
    let mut connection = cluster.lab.client.connect(web.address()).unwrap();
    let kernel = || {
        let programs: [(&str, &[&str]); 3] = [
            ("ipvsadm", &["-Sn"]),
            ("nft", &["list", "ruleset"]),
            ("ip", &["-brief", "addr", "show", "dev", "kube-ipvs0"]),
        ];
        programs.map(|(program, arguments)| node.run(program, arguments).unwrap())
    };
    let before = kernel();
    node.run("kill", &["-TERM", &cluster.daemon().id().to_string()]).unwrap();
    eventually("the daemon has ended", || {
        let log = cluster.daemon().log();
        anyhow::ensure!(log.contains("kube-ipvs ends; the kernel keeps what was programmed"), "{log}");
        Ok(())
    })
    .unwrap();
    assert_eq!(kernel(), before);
    connection.still_works().unwrap();
    cluster.lab.client.ask(web.address()).unwrap();
}

/// How many Services make a listing of the kernel several messages long, so that others can change
/// the table in between.
const MANY: u32 = 400;

/// Services without endpoints at 10.97.x.y.
fn many_services() -> String {
    let service = |number: u32| {
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": format!("many-{number}"), "namespace": "default"},
            "spec": {"clusterIP": format!("10.97.{}.{}", number / 256, number % 256), "ports": [{"port": 80}]},
        })
    };
    json!({"apiVersion": "v1", "kind": "List", "items": (0..MANY).map(service).collect::<Vec<Value>>()})
        .to_string()
}

/// A listing that others disturb can miss an entry, or show it twice: the kernel counts its way
/// through hash chains that become shorter and longer meanwhile (`ip_vs_genl_dump_services` in
/// net/netfilter/ipvs/ip_vs_ctl.c). What is missed is added again, which makes it as wanted; only
/// what was seen, and no Service wants, is deleted.
#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn while_others_edit_the_table_no_wanted_virtual_or_real_server_is_deleted() {
    let (mut cluster, web) = served(&[]);
    fs::write(cluster.manifests.path().join("many.json"), many_services()).unwrap();
    let all = usize::try_from(MANY).unwrap() + 1;
    let wanted = |table: &str| {
        let lines = table.lines().filter(|line| line.starts_with("TCP  10.9"));
        (lines.count(), table.matches("-> 10.244.").count())
    };
    cluster.ipvsadm("every Service", |table| wanted(table) == (all, 2));
    cluster.restart(&["-v=4"]);

    let node = &cluster.lab.node;
    let add_and_delete = "while :; do for n in $(seq 1 120); do \
         printf -- '-A -t 192.0.2.%s:80 -s rr\n' $n; done | ipvsadm -R; ipvsadm -Sn | \
         grep ' 192.0.2.' | sed 's/^-A/-D/; s/ -s.*//' | ipvsadm -R; done";
    let mut others = node
        .command("sh")
        .args(["-c", add_and_delete])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut connection = cluster.lab.client.connect(web.address()).unwrap();
    for _ in 0..20 {
        // What others have deleted before us counts as deleted: not one resync fails.
        cluster.daemon().ask(node, "resync").unwrap();
        connection.still_works().unwrap();
    }
    others.kill().unwrap();
    others.wait().unwrap();

    // The last round of the others may still be under way.
    eventually("ours alone", || {
        cluster.daemon().ask(node, "resync")?;
        let table = node.run("ipvsadm", &["-Ln"])?;
        anyhow::ensure!(wanted(&table) == (all, 2) && !table.contains("192.0.2."), "{table}");
        Ok(())
    })
    .unwrap();
    let log = cluster.daemon().log();
    let deleted: Vec<_> = log.lines().filter(|line| line.contains("delete virtual server")).collect();
    assert!(!deleted.is_empty(), "nothing was deleted, so nothing could be deleted wrongly:\n{log}");
    assert!(deleted.iter().all(|line| line.contains("192.0.2.")), "{deleted:#?}");
    assert!(!log.contains("delete real server"), "{log}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn virtual_servers_of_others_are_named_before_they_go_or_kept_if_that_is_wanted() {
    const OTHERS: &str = "192.0.2.7:6443";
    let mut cluster = Cluster::without_daemon(1);
    let web = Service::tcp(V4).endpoints([1]);
    let add = |cluster: &Cluster| {
        cluster.lab.node.run("ipvsadm", &["-A", "-t", OTHERS, "-s", "rr"]).unwrap();
        cluster.lab.node.run("ipvsadm", &["-a", "-t", OTHERS, "-r", "192.0.2.9:6443", "-g"]).unwrap();
    };
    let list = |cluster: &Cluster| -> Vec<bool> {
        let binary = binary().unwrap();
        let json = cluster.lab.node.run(&binary.to_string_lossy(), &["list", "-o", "json"]).unwrap();
        let table: Value = serde_json::from_str(&json).unwrap();
        let foreign = table["virtual_servers"].as_array().unwrap().iter().map(|row| &row["foreign"]);
        foreign.map(|foreign| foreign.as_bool().unwrap()).collect()
    };
    let has = |cluster: &Cluster, what| cluster.lab.node.run("ipvsadm", &["-Ln"]).unwrap().contains(what);
    add(&cluster);
    let keep = [NO_PERIOD, "--foreign-virtual-servers=keep"];
    cluster.restart(&keep);
    cluster.apply(&web);
    // Not by a repair either, nor when a Service goes while there is no daemon.
    cluster.daemon().ask(&cluster.lab.node, "resync").unwrap();
    let mut foreign = list(&cluster);
    foreign.sort_unstable();
    assert_eq!(foreign, [false, true]);
    cluster.stop();
    cluster.delete(&web);
    cluster.restart(&keep);
    eventually("what was of a Service is gone", || {
        anyhow::ensure!(!has(&cluster, "10.96.0.10"));
        Ok(())
    })
    .unwrap();
    assert!(has(&cluster, OTHERS));
    assert!(cluster.daemon().ask(&cluster.lab.node, "diff").unwrap().is_empty());
    let count = |cluster: &Cluster, field: &str| {
        let status = cluster.daemon().status(&cluster.lab.node).unwrap();
        status[field]["count"].as_u64().unwrap()
    };
    assert_eq!((count(&cluster, "kept_foreign"), count(&cluster, "removed_foreign")), (1, 0));

    cluster.restart(&[NO_PERIOD]);
    eventually("it is gone", || {
        anyhow::ensure!(!has(&cluster, OTHERS));
        Ok(())
    })
    .unwrap();
    assert_eq!((count(&cluster, "kept_foreign"), count(&cluster, "removed_foreign")), (0, 1));
    let log = cluster.daemon().log();
    assert!(log.contains("a virtual server that no Service made is removed: TCP 192.0.2.7:6443"), "{log}");
    assert!(log.contains("--foreign-virtual-servers=keep"), "{log}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn own_virtual_servers_are_not_kept_after_our_tables_were_flushed_without_a_daemon() {
    const OTHERS: &str = "192.0.2.7:6443";
    const PROBE: &str = "198.51.100.0:20000";
    for binding in ["--vip-binding=address", "--vip-binding=route"] {
        let mut cluster = Cluster::without_daemon(1);
        let run = |cluster: &Cluster, program: &str, arguments: &[&str]| {
            cluster.lab.node.run(program, arguments).unwrap()
        };
        run(&cluster, "ipvsadm", &["-A", "-t", OTHERS, "-s", "rr"]);
        let keep = [NO_PERIOD, "--foreign-virtual-servers=keep", binding];
        cluster.restart(&keep);
        let web = Service::tcp(V4).endpoints([1]);
        cluster.apply(&web);
        cluster.stop();
        run(&cluster, "nft", &["flush", "ruleset"]);
        run(&cluster, "ipvsadm", &["-A", "-t", PROBE, "-s", "rr"]);
        cluster.delete(&web);
        cluster.restart(&keep);
        eventually("only what is of others is left", || {
            let table = run(&cluster, "ipvsadm", &["-Ln"]);
            anyhow::ensure!(table.matches("TCP ").count() == 1 && table.contains(OTHERS), "{table}");
            Ok(())
        })
        .unwrap();
        assert!(cluster.daemon().ask(&cluster.lab.node, "diff").unwrap().is_empty());
        let status = cluster.daemon().status(&cluster.lab.node).unwrap();
        assert_eq!(status["kept_foreign"]["count"], 1, "{status}");
    }
}

/// Unloads ip_vs with all that holds on to it, and loads it again; not where it is built in, or others use it.
fn reload_ip_vs(cluster: &Cluster) -> bool {
    if !Path::new("/sys/module/ip_vs/initstate").exists() {
        println!("ABSENT: ip_vs as a module");
        return false;
    }
    let unload = || -> anyhow::Result<()> {
        cluster.lab.node.run("ipvsadm", &["-C"])?;
        for holder in fs::read_dir("/sys/module/ip_vs/holders")? {
            let holder = holder?.file_name();
            cluster.lab.node.run("rmmod", &[&*holder.to_string_lossy()])?;
        }
        cluster.lab.node.run("rmmod", &["ip_vs"]).map(drop)
    };
    let unloaded = (0..20).any(|_| {
        sleep(Duration::from_millis(100));
        unload().is_ok()
    });
    if !unloaded {
        println!("ABSENT: an ip_vs that nothing else uses");
        return false;
    }
    cluster.lab.node.run("modprobe", &["ip_vs"]).unwrap();
    true
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn ip_vs_that_was_unloaded_and_loaded_again_is_prepared_and_filled_again() {
    let (cluster, web) = served(&[NO_PERIOD]);
    let is_right = || -> anyhow::Result<()> {
        let table = cluster.lab.node.run("ipvsadm", &["-Ln"])?;
        anyhow::ensure!(table.contains("10.96.0.10:80"), "{table}");
        let conntrack = cluster.lab.node.run("cat", &["/proc/sys/net/ipv4/vs/conntrack"])?;
        anyhow::ensure!(conntrack.trim() == "1", "conntrack = {conntrack}");
        cluster.lab.client.ask(web.address()).map(drop)
    };
    if !reload_ip_vs(&cluster) {
        return;
    }
    // What is to be deleted is missing, what is to be added is refused: neither is believed.
    cluster.apply(&Service::tcp(V4).endpoints([2]));
    eventually("a change finds it", is_right).unwrap();
    assert!(reload_ip_vs(&cluster));
    cluster.daemon().ask(&cluster.lab.node, "resync").unwrap();
    is_right().unwrap();
    cluster.serves(tcp(V4, 80), &[2]);
    let log = cluster.daemon().log();
    assert_eq!(
        log.matches("ip_vs was unloaded and loaded again, and its connections are lost").count(),
        2,
        "{log}"
    );
}
