//! `kubectl ipvs`, and a kubectl that answers what the test says.
#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "a test that cannot go on must stop")]

mod preflight;

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    process::{Command, Output},
};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A directory with `kubectl-ipvs`, and a `kubectl` that does this. It writes down how it was called.
fn programs(kubectl: &str) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    symlink(env!("CARGO_BIN_EXE_kubectl-ipvs"), directory.path().join("kubectl-ipvs")).unwrap();
    let script = directory.path().join("kubectl");
    fs::write(&script, format!("#!/bin/sh\necho \"$*\" >> \"$0.calls\"\n{kubectl}")).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    directory
}

fn kubectl_ipvs(programs: &TempDir, arguments: &[&str]) -> Output {
    command(programs, arguments).output().unwrap()
}

fn command(programs: &TempDir, arguments: &[&str]) -> Command {
    let path = format!("{}:{}", programs.path().display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(programs.path().join("kubectl-ipvs"));
    command.env("PATH", path).args(arguments);
    command
}

fn calls(programs: &TempDir) -> Vec<String> {
    let calls = fs::read_to_string(programs.path().join("kubectl.calls")).unwrap();
    calls.lines().map(str::to_owned).collect()
}

/// Two pods, of which one has a table in order and the other lacks a VIP.
fn two_nodes() -> TempDir {
    let pod = |node: &str| {
        json!({
            "metadata": { "name": format!("kube-proxy-{node}") },
            "spec": { "nodeName": node, "containers": [{ "name": "kube-proxy" }] },
            "status": { "phase": "Running" },
        })
    };
    let pods = json!({ "items": [pod("one"), pod("two")] });
    let difference =
        json!({ "operations": [{ "operation": "bind", "text": "bind 10.96.0.10" }], "troubles": [] });
    programs(&format!(
        "case \"$*\" in\n\
         *' get pods '*) echo '{pods}' ;;\n\
         *' exec kube-proxy-one '*) echo '{{\"operations\":[],\"troubles\":[]}}' ;;\n\
         *) echo '{difference}'; echo 'command terminated with exit code 1' >&2; exit 1 ;;\n\
         esac\n"
    ))
}

#[test]
fn the_program_called_kubectl_ipvs_asks_each_pod_by_kubectl_and_prints_one_table() {
    let programs = two_nodes();
    let cluster = ["--context", "prod", "--kubeconfig", "/a file", "--proxy-namespace", "proxies"];
    let output = kubectl_ipvs(&programs, &[&["diff"][..], &cluster].concat());
    let expected = "\
NODE    DIFFERENCE
two     1 operation
        bind 10.96.0.10
1 node  nothing differs
";
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap()), (Some(1), String::new()));
    let mut calls = calls(&programs);
    calls.sort();
    let flags = "--context prod --kubeconfig /a file --namespace proxies";
    let exec = |node: &str| {
        format!("{flags} exec kube-proxy-{node} --container kube-proxy -- kube-ipvs diff --output json")
    };
    let get = format!("{flags} get pods --selector k8s-app in (kube-ipvs, kube-proxy) --output json");
    assert_eq!(calls, [exec("one"), exec("two"), get]);
}

#[test]
fn one_node_can_be_asked_alone_and_programs_get_its_answer() {
    let programs = two_nodes();
    let output = kubectl_ipvs(&programs, &["diff", "--node", "one", "-o", "json"]);
    assert_eq!(output.status.code(), Some(0));
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let answer = json!({ "operations": [], "troubles": [] });
    let node = json!({ "node": "one", "pod": "kube-proxy-one", "in_order": true, "complaint": null, "answer": answer });
    assert_eq!(printed, json!({ "nodes": [node] }));
    assert_eq!(calls(&programs).len(), 2);
}

#[test]
fn explain_takes_what_it_takes_on_a_node() {
    for (arguments, asked) in [
        (&["default/web"][..], "default/web"),
        (&["svc/web"], "default/web"),
        (&["-n", "shop", "web"], "shop/web"),
        (&["10.96.0.10:53/UDP"], "10.96.0.10:53/udp"),
        (&["[fd00::a]:80"], "[fd00::a]:80"),
        (&["30081"], "30081"),
    ] {
        let programs = two_nodes();
        _ = kubectl_ipvs(&programs, &[&["explain", "--node", "one"], arguments].concat());
        let calls = calls(&programs);
        let exec = format!(" -- kube-ipvs explain {asked} --output json");
        assert!(calls.iter().any(|call| call.ends_with(&exec)), "{arguments:?}: {calls:?}");
    }
    let refused = kubectl_ipvs(&two_nodes(), &["explain", "web"]);
    assert_eq!(refused.status.code(), Some(64));
}

#[test]
fn what_keeps_it_from_asking_is_one_line() {
    let said = |programs: &TempDir, arguments: &[&str]| {
        let output = kubectl_ipvs(programs, arguments);
        assert!(output.stdout.is_empty());
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let refuses = programs("echo 'error: You must be logged in to the server (Unauthorized)' >&2; exit 1\n");
    let expected =
        "kubectl ipvs: kubectl get pods: error: You must be logged in to the server (Unauthorized)\n";
    assert_eq!(said(&refuses, &["status"]), (Some(1), expected.to_owned()));
    let no_pods = programs("echo '{\"items\": []}'\n");
    let expected = "kubectl ipvs: no pod in the namespace kube-system has the label k8s-app in (kube-ipvs, kube-proxy)\n";
    assert_eq!(said(&no_pods, &["top"]), (Some(1), expected.to_owned()));
    let odd = programs("echo no JSON\n");
    assert!(said(&odd, &["status"]).1.contains("what kubectl get pods prints cannot be read: expected"));
    let (code, usage) = said(&odd, &["explain"]);
    assert_eq!(code, Some(64));
    assert!(usage.starts_with("kubectl ipvs: the following required arguments"), "{usage}");
}

#[test]
fn its_help_calls_it_as_it_is_called() {
    let output = kubectl_ipvs(&programs(""), &["status", "--help"]);
    assert!(output.status.success());
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(help.contains("\nUsage: kubectl ipvs status [OPTIONS]\n"), "{help}");
}
