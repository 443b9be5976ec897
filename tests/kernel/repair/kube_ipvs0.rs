//! The device kube-ipvs0, the VIPs on it, and their local routes.

use std::{
    net::IpAddr,
    thread::sleep,
    time::{Duration, Instant},
};

use serde_json::json;
use testkit::daemon::{binary, eventually};

use super::served;
use crate::support::cluster::{Cluster, NO_PERIOD, Service, V4, V6, at};

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
        cluster.resync_writes_nothing();
    }
}

/// Removes what makes the VIPs addresses of the node, after the kernel has added all of it: seconds after an IPv6 address
/// it adds a missing route again, and its notification makes the daemon read all addresses.
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
        cluster.resync_writes_nothing();
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
    cluster.resync_writes_nothing();
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
        cluster.resync_writes_nothing();
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
