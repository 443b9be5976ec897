//! kube-ipvs takes over from the real kube-proxy on a node that is in use, and gives it back.

use std::{thread, time::Duration};

use testkit::{
    daemon::Daemon,
    kube_proxy::{KubeProxy, Mode},
    lab::{Load, Tally},
};

use crate::{
    hand_over::{Stage, masquerade::Watch},
    support::traffic,
};

/// How long each proxy works alone, for the traffic to show what it does.
const A_WHILE: Duration = Duration::from_secs(3);

fn tell(load: &Load, what: &str) {
    println!("{:.1} s: {what}", load.elapsed().as_secs_f64());
}

#[test]
#[ignore = "needs root, ip_vs, kube-apiserver and kube-proxy: cargo xtask test --tier peer"]
fn migration_from_kube_proxy_s_ipvs_mode_and_back_loses_no_traffic() {
    let Some(stage) = Stage::new() else { return };
    goes_there_and_back(&stage, &[]);
}

#[test]
#[ignore = "needs root, ip_vs, kube-apiserver and kube-proxy: cargo xtask test --tier peer"]
fn a_node_goes_to_vips_that_are_routes_and_back_and_no_traffic_is_lost() {
    let Some(stage) = Stage::new() else { return };
    goes_there_and_back(&stage, &["--vip-binding=route"]);
}

fn goes_there_and_back(stage: &Stage, arguments: &[&str]) {
    let kube_proxy = stage.kube_proxy(Mode::Ipvs);
    stage.kube_proxy_has_synced();
    let load = stage.load();
    let watch = Watch::start(&stage.lab.node);
    thread::sleep(A_WHILE);

    let kube_ipvs = takes_over(stage, kube_proxy, arguments, &load);

    tell(&load, "kube-ipvs stops");
    kube_ipvs.kill().unwrap();
    let kube_proxy = stage.kube_proxy(Mode::Ipvs);
    stage.kube_proxy_has_synced();
    tell(&load, "kube-proxy has synced");
    stage.clean_up_and_keep_ipvs();
    tell(&load, "our tables are gone");
    thread::sleep(A_WHILE);

    let seen = watch.finish();
    println!("{} looks, {} at our rules, {} at kube-proxy's", seen.looks, seen.by_ours, seen.by_kube_proxy);
    traffic::is_whole(load);
    assert!(seen.by_ours > 0 && seen.by_kube_proxy > 0, "{seen:?}");
    assert!(seen.bare.is_empty(), "not masqueraded: {seen:?}");
    assert!(seen.gone.is_empty(), "not reachable: {seen:?}");
    kube_proxy.kill().unwrap();
}

#[test]
#[ignore = "needs root, ip_vs, kube-apiserver and kube-proxy: cargo xtask test --tier peer"]
fn migration_from_kube_proxy_s_iptables_mode_fails_no_connection() {
    let Some(stage) = Stage::new() else { return };
    comes_from_another_mode(stage, Mode::Iptables);
}

#[test]
#[ignore = "needs root, ip_vs, kube-apiserver and kube-proxy: cargo xtask test --tier peer"]
fn migration_from_kube_proxy_s_nftables_mode_fails_no_connection() {
    let Some(stage) = Stage::new() else { return };
    comes_from_another_mode(stage, Mode::Nftables);
}

/// kube-proxy stops, and its rules stay; kube-ipvs starts, and removes them after its first sync.
fn takes_over(stage: &Stage, kube_proxy: KubeProxy, arguments: &[&str], load: &Load) -> Daemon {
    tell(load, "kube-proxy stops");
    kube_proxy.kill().unwrap();
    let kube_ipvs = stage.kube_ipvs(arguments);
    tell(load, "kube-ipvs has synced");
    stage.nothing_of_kube_proxy_is_left();
    tell(load, "nothing of kube-proxy is left");
    thread::sleep(A_WHILE);
    kube_ipvs
}

/// There are so many Services that the first sync takes its time: all the while the old rules serve.
fn comes_from_another_mode(mut stage: Stage, mode: Mode) {
    stage.write_crowd();
    let kube_proxy = stage.kube_proxy(mode);
    let load = stage.load();
    thread::sleep(A_WHILE);

    let kube_ipvs = takes_over(&stage, kube_proxy, &[], &load);

    let log = kube_ipvs.log();
    println!("{}", log.lines().find(|line| line.contains("trigger=Start")).unwrap());
    for Tally { target, long_lived, short, .. } in traffic::finish(load) {
        assert_eq!([long_lived.failed, short.failed], [0, 0], "long-lived connections, short ones: {target}");
    }
}
