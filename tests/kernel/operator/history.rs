//! `history` and `watch`: what changed for a Service, when, and why.

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
};

use anyhow::ensure;
use serde_json::Value;
use testkit::daemon::{binary, eventually};

use crate::support::cluster::{Cluster, NO_PERIOD, Service, V4, at, tcp};

fn command(cluster: &Cluster, arguments: &[&str]) -> Command {
    let mut command = cluster.lab.node.command(binary().unwrap().to_str().unwrap());
    command.args(arguments).args(["--control-socket", cluster.daemon().socket().to_str().unwrap()]);
    command
}

fn output(cluster: &Cluster, arguments: &[&str]) -> (Option<i32>, String) {
    let output = command(cluster, arguments).output().unwrap();
    (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

/// The changes without their times, once the last one is of this kind.
fn history(cluster: &Cluster, last: &str) -> Vec<String> {
    let mut texts = Vec::new();
    eventually(last, || {
        let (code, json) = output(cluster, &["history", "default/web4", "-o", "json"]);
        ensure!(code == Some(0), "{json}");
        let history: Value = serde_json::from_str(&json)?;
        let changes = history["changes"].as_array().unwrap();
        ensure!(changes.last().is_some_and(|change| change["change"] == last), "{json}");
        texts = changes.iter().map(|change| change["text"].as_str().unwrap().to_owned()).collect();
        Ok(())
    })
    .unwrap();
    texts
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn each_change_of_a_service_is_one_line_with_its_cause() {
    let cluster = Cluster::start(2, &[NO_PERIOD, "-v=3"]);
    // IPVS forgets a connection a second after the server has closed it.
    cluster.lab.node.run("ipvsadm", &["--set", "0", "1", "0"]).unwrap();
    let web = Service::tcp(V4);
    cluster.apply(&web.clone().endpoints([1]));
    let [first, second] = [1, 2].map(|pod| cluster.pod_address(pod, V4.parse().unwrap()));
    let begin = [format!("virtual server TCP {V4}:80 added with 1 endpoint"), format!("VIP {V4} bound")];
    assert_eq!(history(&cluster, "vip-bound"), begin);

    let mut watch = command(&cluster, &["watch", "-o", "json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut watched = BufReader::new(watch.stdout.take().unwrap()).lines();
    // It begins with what comes after its first question.
    std::thread::sleep(std::time::Duration::from_secs(1));

    let mut connection = cluster.lab.client.connect(at(V4, 80)).unwrap();
    cluster.write(&web.endpoints([2]));
    cluster.weighs(tcp(V4, 80), 1, Some(0));
    connection.server_closes().unwrap();
    let removed = history(&cluster, "endpoint-removed").split_off(begin.len());
    let unlisted = "no EndpointSlice lists it";
    assert_eq!(
        removed,
        [
            format!("endpoint {first} draining at TCP {V4}:80: {unlisted}"),
            format!("endpoint {second} added to TCP {V4}:80: ready"),
            format!("endpoint {first} removed from TCP {V4}:80: {unlisted}"),
        ]
    );
    for text in &removed {
        let line: Value = serde_json::from_str(&watched.next().unwrap().unwrap()).unwrap();
        assert_eq!((&line["text"], &line["service"]), (&text.as_str().into(), &"default/web4".into()));
    }
    watch.kill().unwrap();
    watch.wait().unwrap();

    let repaired = "repaired: another program had changed it";
    let delete = ["-d", "-t", &format!("{V4}:80"), "-r", &second.to_string()];
    cluster.lab.node.run("ipvsadm", &delete).unwrap();
    cluster.daemon().ask(&cluster.lab.node, "resync").unwrap();
    let seen = history(&cluster, "endpoint-added");
    assert_eq!(seen.last().unwrap(), &format!("endpoint {second} added to TCP {V4}:80: ready; {repaired}"));

    cluster.lab.node.run("ip", &["addr", "del", &format!("{V4}/32"), "dev", "kube-ipvs0"]).unwrap();
    let seen = history(&cluster, "vip-bound");
    assert_eq!(seen.last().unwrap(), &format!("VIP {V4} bound: {repaired}"));
    assert_eq!(seen.len(), 7, "{seen:#?}");

    let log = cluster.daemon().log();
    let logged = log.lines().find(|line| line.contains("change=endpoint-removed"));
    let fields =
        [format!("endpoint={first}"), format!("cause=\"{unlisted}\""), "service=default/web4".to_owned()];
    assert!(fields.iter().all(|field| logged.is_some_and(|line| line.contains(field))), "{logged:?}");
}

#[test]
#[ignore = "needs root and ip_vs: cargo xtask test --tier kernel"]
fn a_deleted_service_has_a_history_and_an_unknown_one_is_a_failure() {
    let cluster = Cluster::start(1, &[NO_PERIOD]);
    let web = Service::tcp(V4).endpoints([1]);
    cluster.apply(&web);
    cluster.delete(&web);
    let seen = history(&cluster, "vip-unbound");
    let gone =
        format!("virtual server TCP {V4}:80 removed: the Service was deleted, or another proxy serves it");
    assert!(seen.contains(&gone), "{seen:#?}");

    let (code, printed) = output(&cluster, &["history", "default/wep"]);
    assert_eq!((code, printed.lines().count()), (Some(1), 1), "{printed}");
    assert!(printed.contains("no change of default/wep is recorded"), "{printed}");
    for command in ["history", "watch"] {
        assert_eq!(output(&cluster, &[command, "wep"]).0, Some(64));
    }
}
