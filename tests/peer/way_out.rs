//! A node leaves kube-ipvs for a kube-proxy that translates destinations itself, while it is in use.

use std::{thread, time::Duration};

use testkit::{kube_proxy::Mode, lab::Host};

use crate::{
    hand_over::{SERVICE, Stage, successor::NftablesRules},
    support::{hand_over::HandOver, peer::PATIENCE, traffic},
};

/// How long each state lasts, for the traffic to show what it does.
const A_WHILE: Duration = Duration::from_secs(3);

/// How long open connections may take. Those that the load has closed are in `TIME_WAIT` for two minutes.
const WAIT: &str = "--wait=20s";

/// What of ours is on the node: nothing.
fn nothing_of_ours_is_left(node: &Host) {
    for list in [
        "nft list tables | grep kube-ipvs",
        "nft list ruleset | grep 'kube-ipvs:'",
        "ip route show table local proto 73",
        "ip -6 route show table local proto 73",
        "ip link show kube-ipvs0 2>&1 | grep -v 'does not exist'",
        "ipvsadm -Sn",
    ] {
        let left = node.run("sh", &["-c", &format!("{list} || true")]).unwrap();
        assert_eq!(left, "", "{list}");
    }
}

/// kube-ipvs stops, and `begin` starts another proxy.
fn goes_on<P>(stage: &Stage, begin: impl FnOnce() -> P) {
    let node = &stage.lab.node;
    let kube_ipvs = stage.kube_ipvs(&[]);
    let before = stage.load();
    // Beside the times of what is lost.
    let at = |what| println!("after {:.2} s: {what}", before.elapsed().as_secs_f64());
    thread::sleep(A_WHILE);

    kube_ipvs.kill().unwrap();
    at("kube-ipvs is gone");
    let mut hand_over = HandOver::start(node, &[WAIT]);
    hand_over.says("waiting: no kube-proxy answers");
    let _proxy = begin();
    at("the other proxy has begun");
    hand_over.says_within(PATIENCE, "handed over: new connections go to the proxy in ");
    at("handed over");
    thread::sleep(A_WHILE);
    let after = stage.load();
    thread::sleep(A_WHILE);
    traffic::is_whole(before);
    let (said, code) = hand_over.ended();
    println!("{said}");
    assert_eq!(code, Some(0), "{said}");
    nothing_of_ours_is_left(node);
    thread::sleep(A_WHILE);
    traffic::is_whole(after);
}

#[test]
#[ignore = "needs root, ip_vs, kube-apiserver and kube-proxy: cargo xtask test --tier peer"]
fn a_node_goes_on_to_iptables_mode_and_no_traffic_is_lost() {
    let Some(stage) = Stage::new() else { return };
    goes_on(&stage, || stage.kube_proxy(Mode::Iptables));
}

/// In this mode kube-proxy 1.36 deletes all virtual servers when it starts; one without code for IPVS does not.
#[test]
#[ignore = "needs root, ip_vs, kube-apiserver and kube-proxy: cargo xtask test --tier peer"]
fn a_node_goes_on_to_nftables_mode_and_no_traffic_is_lost() {
    let Some(stage) = Stage::new() else { return };
    let rules = NftablesRules::written_elsewhere(&stage);
    goes_on(&stage, || rules.put_on(&stage.lab.node));
}

#[test]
#[ignore = "needs root, ip_vs, kube-apiserver and kube-proxy: cargo xtask test --tier peer"]
fn a_node_that_was_handed_over_is_taken_back_and_no_traffic_is_lost() {
    let Some(stage) = Stage::new() else { return };
    let node = &stage.lab.node;
    let kube_ipvs = stage.kube_ipvs(&[]);
    let load = stage.load();
    thread::sleep(A_WHILE);

    kube_ipvs.kill().unwrap();
    let kube_proxy = stage.kube_proxy(Mode::Iptables);
    let mut hand_over = HandOver::start(node, &[WAIT]);
    hand_over.says_within(PATIENCE, "handed over");
    thread::sleep(A_WHILE);
    hand_over.terminate();
    let (said, code) = hand_over.ended();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("interrupted: what open connections need is kept"), "{said}");
    kube_proxy.kill().unwrap();

    let _kube_ipvs = stage.kube_ipvs(&[]);
    stage.nothing_of_kube_proxy_is_left();
    thread::sleep(A_WHILE);
    traffic::is_whole(load);
    let addresses = node.run("ip", &["-brief", "address", "show", "dev", "kube-ipvs0"]).unwrap();
    assert!(addresses.contains(SERVICE.cluster_ips[0]), "{addresses}");
}
