//! The table of IPVS: virtual servers, real servers and weights, ours and those of others.

use std::{
    fs,
    path::Path,
    process::Stdio,
    thread::sleep,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use testkit::{
    daemon::{binary, eventually},
    lab::Host,
};

use super::served;
use crate::support::cluster::{Cluster, NO_PERIOD, Service, V4, V6, tcp};

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn resync_restores_a_cleared_table_and_says_what_it_did() {
    let (cluster, web) = served(&[]);
    eventually("resync restores the table: the daemon may have done so by itself", || {
        cluster.lab.node.run("ipvsadm", &["-C"])?;
        let said = cluster.daemon().ask(&cluster.lab.node, "resync")?;
        anyhow::ensure!(said.starts_with("resynced: 3 operations in"), "{said}");
        Ok(())
    })
    .unwrap();
    cluster.lab.client.ask(web.address()).unwrap();
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn an_emptied_table_is_back_within_two_seconds_and_the_node_is_not_ready_meanwhile() {
    let (mut cluster, web) = served(&[NO_PERIOD]);
    fs::write(cluster.manifests.path().join("many.json"), many_services(LARGE)).unwrap();
    cluster.restart(&[NO_PERIOD]);
    let node = &cluster.lab.node;
    cluster.serves(tcp(V4, 80), &[1, 2]);
    eventually("the whole table", || {
        anyhow::ensure!(saved(node).len() > LARGE as usize, "{}", saved(node).len());
        Ok(())
    })
    .unwrap();
    let wanted = saved(node);
    let ready = || node.get("127.0.0.1:10256".parse().unwrap(), "/readyz").unwrap().status;
    eventually("the node is ready", || {
        anyhow::ensure!(ready() == 200);
        Ok(())
    })
    .unwrap();

    node.run("ipvsadm", &["-C"]).unwrap();
    let emptied = Instant::now();
    let mut unready = false;
    while emptied.elapsed() < Duration::from_secs(2) {
        unready |= ready() == 503;
    }
    assert!(unready && ready() == 200, "not ready: {unready}");
    assert_eq!(saved(node), wanted);
    let status = cluster.daemon().status(node).unwrap();
    assert_eq!(status["last_repair"]["report"]["trigger"], "virtual-server-lost", "{status:#}");
    cluster.lab.client.ask(web.address()).unwrap();
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
    cluster.resync_writes_nothing();
    let log = cluster.daemon().log();
    assert!(log.contains("trigger=Start done=0"), "{log}");
    connection.still_works().unwrap();
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
fn a_flushed_table_is_back_within_a_period() {
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

/// How many Services make a listing of the kernel several messages long, so that others can change
/// the table in between.
const MANY: u32 = 400;
/// How many take the daemon a while to restore.
const LARGE: u32 = 3_000;

/// This many Services without endpoints at 10.97.x.y.
fn many_services(many: u32) -> String {
    let service = |number: u32| {
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": format!("many-{number}"), "namespace": "default"},
            "spec": {"clusterIP": format!("10.97.{}.{}", number / 256, number % 256), "ports": [{"port": 80}]},
        })
    };
    json!({"apiVersion": "v1", "kind": "List", "items": (0..many).map(service).collect::<Vec<Value>>()})
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
    fs::write(cluster.manifests.path().join("many.json"), many_services(MANY)).unwrap();
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
    assert!(
        log.contains("removing a virtual server that belongs to no Service: TCP 192.0.2.7:6443"),
        "{log}"
    );
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
    let said = "ip_vs was unloaded and loaded again, and its connections are lost";
    assert_eq!(log.matches(said).count(), 2, "{log}");
}
