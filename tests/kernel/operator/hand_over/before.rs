//! What precedes a hand-over: its dry run, and on a terminal a question.

use serde_json::Value;
use testkit::{daemon::binary, lab::Host};

use super::{RULES, echo, state, stopped, web};
use crate::support::{
    cluster::{Cluster, NO_PERIOD},
    hand_over::{HandOver, Successor},
};

/// What a dry run with these arguments prints.
fn dry_run(node: &Host, arguments: &[&str]) -> String {
    let (said, code) = HandOver::start(node, &[&["--dry-run"], arguments].concat()).ended();
    assert_eq!(code, Some(0), "{said}");
    said
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_dry_run_prints_what_a_hand_over_waits_for_and_removes_and_writes_nothing() {
    let (cluster, open) = stopped();
    let node = &cluster.lab.node;
    let before = state(node);
    let connections = "would wait: 2 active and 0 inactive connections, which have 1 d 0 h to end\n";
    let drain = "warning: kube-proxy up to 1.42 deletes all virtual servers";

    let said = dry_run(node, &[]);
    assert!(said.starts_with("would wait: no kube-proxy answers") && said.contains(connections), "{said}");
    assert!(said.contains("\nwould remove: kube-ipvs0\nwould remove: 3 virtual servers: TCP "), "{said}");
    assert!(said.contains("\nwould remove: our nf_tables table of IPv4\n"), "{said}");
    assert!(said.contains(drain) && !said.contains("10.99.0.1") && !said.contains("default route"), "{said}");

    let successor = Successor::in_mode(node, "nftables");
    let said = dry_run(node, &[]);
    assert!(said.contains("would wait: a proxy in nftables mode runs on this node"), "{said}");
    assert!(said.contains("has no rules for IPv4 yet") && !said.contains(drain), "{said}");

    node.run("nft", &[RULES]).unwrap();
    node.ip("route del default").unwrap();
    let said = dry_run(node, &[]);
    assert!(said.starts_with(connections), "nothing else is waited for: {said}");
    assert!(said.contains("\nwarning: there is no IPv4 default route"), "{said}");
    let said: Value = serde_json::from_str(&dry_run(node, &["--wait=0s", "-o", "json"])).unwrap();
    let cut = &said["cut"];
    assert_eq!(cut, &serde_json::json!(["2 active and 0 inactive connections to TCP 10.96.0.10:80"]));
    assert_eq!((&said["dry_run"], &said["waits"]), (&true.into(), &serde_json::json!([])));
    drop(successor);

    let _successor = Successor::in_mode(node, "ipvs");
    let (said, code) = HandOver::start(node, &["--dry-run"]).ended();
    assert!(code == Some(1) && said.contains("a proxy in ipvs mode runs"), "{code:?} {said}");
    node.run("nft", &["delete", "table", "ip", "kube-proxy"]).unwrap();
    assert_eq!(state(node), before);
    echo(&open);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_dry_run_beside_kube_ipvs_says_that_a_hand_over_waits_for_its_end() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    cluster.apply(&web());
    let node = &cluster.lab.node;
    let before = state(node);
    let mut command = node.command(&binary().unwrap().to_string_lossy());
    command.args(["cleanup", "--hand-over", "--dry-run", "--control-socket"]);
    let output = command.arg(cluster.daemon().socket()).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let waits = "would wait: another kube-ipvs runs on this node: it answers at ";
    assert!(said.starts_with(waits), "{said}");
    assert!(said.contains("\nwould remove: 2 virtual servers: "), "{said}");
    assert!(said.contains("\nwarning: there is no IPv4 default route"), "{said}");
    assert_eq!(state(node), before);
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn on_a_terminal_a_hand_over_is_confirmed_unless_the_answer_is_given_before() {
    let (cluster, open) = stopped();
    let node = &cluster.lab.node;
    node.run("nft", &[RULES]).unwrap();
    let _successor = Successor::in_mode(node, "nftables");
    // The time limit ends it as a signal does.
    let on_terminal = |input: &str, arguments: &str| {
        let program = binary().unwrap();
        let hand_over =
            format!("timeout --foreground 4 {} cleanup --hand-over {arguments}", program.display());
        let command = format!("{input} | script -qec '{hand_over}; echo status $?' /dev/null");
        node.run("bash", &["-c", &command]).unwrap()
    };
    let before = state(node);
    let question = "The proxy in nftables mode gets all new connections. Open ones have 1 d 0 h to end";
    for (input, end) in [("echo n", "nothing was changed"), ("sleep 6", "interrupted: ")] {
        let said = on_terminal(input, "");
        assert!(said.contains(question) && said.contains(end), "{said}");
        assert_eq!(state(node), before);
    }
    for (input, arguments) in [("(echo y; sleep 6)", ""), ("sleep 6", "--yes")] {
        let said = on_terminal(input, arguments);
        assert_eq!(said.contains("[y/N]"), arguments.is_empty(), "{said}");
        assert!(said.contains("handed over: new connections go to the proxy in nftables mode"), "{said}");
    }
    echo(&open);
}
