//! A node leaves kube-ipvs for a kube-proxy that translates destinations itself, while it is in use.

use std::{
    fs::{self, File},
    path::PathBuf,
    process::Child,
    thread,
    time::Duration,
};

use anyhow::ensure;
use nix::{sys::signal, unistd::Pid};
use testkit::{
    daemon::{binary, eventually, eventually_within},
    kube_proxy::Mode,
    lab::Host,
};

use crate::{
    hand_over::{Stage, successor::Rules},
    support::traffic,
};

/// How long each state lasts, for the traffic to show what it does.
const A_WHILE: Duration = Duration::from_secs(3);

/// How long open connections may take. Those that the load has closed are in `TIME_WAIT` for two minutes.
const WAIT: Duration = Duration::from_secs(40);

/// A command that goes on while the load does.
struct Running {
    child: Child,
    files: tempfile::TempDir,
}

impl Running {
    fn hand_over(node: &Host) -> Self {
        let files = tempfile::tempdir().unwrap();
        let log = File::create(files.path().join("said")).unwrap();
        let mut command = node.command(&binary().unwrap().to_string_lossy());
        command.args(["cleanup", "--hand-over", &format!("--wait={}s", WAIT.as_secs())]);
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        Self { child, files }
    }

    fn log(&self) -> PathBuf {
        self.files.path().join("said")
    }

    fn has_said(&self, words: &str) {
        eventually(&format!("it says {words:?}"), || {
            let said = fs::read_to_string(self.log())?;
            ensure!(said.contains(words), "{said}");
            Ok(())
        })
        .unwrap();
    }

    /// Waits for its end; what it has said, and its exit code.
    fn ended(&mut self) -> (String, Option<i32>) {
        let code = eventually_within(WAIT * 2, "it has ended", || {
            self.child.try_wait()?.ok_or_else(|| anyhow::anyhow!("it goes on"))
        });
        (fs::read_to_string(self.log()).unwrap(), code.unwrap().code())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What of ours is on the node: nothing.
fn nothing_of_ours_is_left(node: &Host) {
    for (list, left) in [
        ("nft list tables | grep kube-ipvs", ""),
        ("nft list ruleset | grep 'kube-ipvs:'", ""),
        ("ip route show table local proto 73", ""),
        ("ip -6 route show table local proto 73", ""),
        ("ip link show kube-ipvs0 2>&1 | grep -v 'does not exist'", ""),
        ("ipvsadm -Sn", ""),
    ] {
        let found = node.run("sh", &["-c", &format!("{list} || true")]).unwrap();
        assert_eq!(found, left, "{list}");
    }
}

fn goes_on_to(mode: Mode) {
    let Some(stage) = Stage::new() else { return };
    let node = &stage.lab.node;
    let rules = Rules::written_elsewhere(&stage, mode);
    let kube_ipvs = stage.kube_ipvs(&[]);
    let before = stage.load();
    thread::sleep(A_WHILE);

    kube_ipvs.kill().unwrap();
    let mut hand_over = Running::hand_over(node);
    hand_over.has_said("waiting: no kube-proxy answers");
    let _successor = rules.put_on(node);
    hand_over.has_said("handed over: new connections are those of the proxy in ");
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
fn a_node_goes_on_to_nftables_mode_and_no_traffic_is_lost() {
    goes_on_to(Mode::Nftables);
}

#[test]
#[ignore = "needs root, ip_vs, kube-apiserver and kube-proxy: cargo xtask test --tier peer"]
fn a_node_goes_on_to_iptables_mode_and_no_traffic_is_lost() {
    goes_on_to(Mode::Iptables);
}

#[test]
#[ignore = "needs root, ip_vs, kube-apiserver and kube-proxy: cargo xtask test --tier peer"]
fn a_node_that_was_handed_over_is_taken_back_and_no_traffic_is_lost() {
    let Some(stage) = Stage::new() else { return };
    let node = &stage.lab.node;
    let rules = Rules::written_elsewhere(&stage, Mode::Iptables);
    let kube_ipvs = stage.kube_ipvs(&[]);
    let load = stage.load();
    thread::sleep(A_WHILE);

    kube_ipvs.kill().unwrap();
    let successor = rules.put_on(node);
    let mut hand_over = Running::hand_over(node);
    hand_over.has_said("handed over");
    thread::sleep(A_WHILE);
    signal::kill(Pid::from_raw(hand_over.child.id().cast_signed()), signal::Signal::SIGTERM).unwrap();
    let (said, code) = hand_over.ended();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("interrupted: what open connections need stays"), "{said}");
    drop(successor);

    let _kube_ipvs = stage.kube_ipvs(&[]);
    stage.nothing_of_kube_proxy_is_left();
    thread::sleep(A_WHILE);
    traffic::is_whole(load);
    let addresses = node.run("ip", &["-brief", "address", "show", "dev", "kube-ipvs0"]).unwrap();
    assert!(addresses.contains("10.96.77.1/32"), "{addresses}");
}
